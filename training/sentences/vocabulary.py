"""Train the vocabulary: byte-level BPE pieces, then Whisper's special tokens in their order.

    python -m training.sentences.vocabulary            # writes training/made/tokenizer/

Also defines the ids of the special tokens, which Whisper's code derives from their order.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AddedToken, WhisperTokenizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from training.paths import MADE
from training.sentences import fortunes, meeting, rare_words
from training.sentences.held_out import held_out, read_lines

FOLDER = MADE / "tokenizer"
PIECES = 1200
CODES = tuple(list(LANGUAGES)[:99])  # Whisper large-v2's 99 languages, in its order
SPECIALS = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in CODES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
TIMES = tuple(f"<|{step * 0.02:.2f}|>" for step in range(1501))

EOT = PIECES
SOT = PIECES + 1
EN = SOT + 1 + CODES.index("en")
TRANSLATE, TRANSCRIBE, START_OF_LM, START_OF_PREV, NO_SPEECH, NO_TIMESTAMPS = range(
    SOT + 1 + len(CODES), PIECES + len(SPECIALS)
)
TIME_ZERO = NO_TIMESTAMPS + 1
VOCABULARY = TIME_ZERO + len(TIMES)


def timestamp(seconds: float) -> int:
    """The id of a timestamp in the window, in steps of 0.02 s."""
    return TIME_ZERO + min(1500, max(0, round(seconds * 50)))


def train(texts: list[str]) -> WhisperTokenizer:
    """Train `PIECES` pieces, including all 256 bytes, and add the special tokens."""
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=PIECES,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    FOLDER.mkdir(parents=True, exist_ok=True)
    vocab_path, merges_path = learner.model.save(str(FOLDER))
    merges = [
        tuple(line.split(" "))
        for line in Path(merges_path).read_text("utf-8").splitlines()
        if line and not line.startswith("#version")
    ]
    tokenizer = WhisperTokenizer(vocab=learner.get_vocab(), merges=merges)
    specials = [AddedToken(t, normalized=False, special=True) for t in SPECIALS]
    tokenizer.add_special_tokens({"extra_special_tokens": specials[1:]})
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in TIMES])
    return tokenizer


def corpus() -> list[str]:
    """The training text of the pieces, with a leading space as after a timestamp."""
    texts = fortunes.sentences() + meeting.sentences(6000, seed=7) + read_lines("ordinary.txt")
    texts += rare_words.utterances(3)[:3000]
    return [" " + text for text in texts if not held_out(text)]


def load() -> WhisperTokenizer:
    return WhisperTokenizer.from_pretrained(FOLDER)


if __name__ == "__main__":
    made = train(corpus())
    made.save_pretrained(FOLDER)
    again = load()
    ids = again.convert_tokens_to_ids(list(SPECIALS) + list(TIMES))
    assert ids == list(range(PIECES, VOCABULARY)), "special tokens out of Whisper's order"
    assert len(again) == VOCABULARY
    print(len(again), again.tokenize(" The committee will review the budget for $1,250 at 10:30."))
