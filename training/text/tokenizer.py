"""The vocabulary of the text pair: byte-level BPE pieces, four special tokens, and a chat template.

python -m training.text.tokenizer            # writes training/made/text/tokenizer/
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from training.paths import MADE
from training.text.corpus import Document, documents

WORK = MADE / "text"
FOLDER = WORK / "tokenizer"
SIZE = 2048
SIGNS = BEGIN, END, USER, ASSISTANT = "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('roles are user and assistant, not ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train `SIZE` pieces: special tokens first, then all 256 bytes."""
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(SIGNS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    begin = learner.token_to_id(BEGIN)
    learner.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, begin)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def text_of(document: Document) -> str:
    """The text of a document in the format of the chat template."""
    if document.question is None:
        return f"{BEGIN}{document.answer}{END}"
    return f"{BEGIN}{USER}{document.question}{END}{ASSISTANT}{document.answer}{END}"


def prompt_of(document: Document, words: int = 4) -> str:
    """The prompt: the question, or the first words of a plain text."""
    if document.question is None:
        return BEGIN + " ".join(document.answer.split()[:words])
    return f"{BEGIN}{USER}{document.question}{END}{ASSISTANT}"


def load(folder: Path = FOLDER) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


def main() -> None:
    known = [d for d in documents() if not d.held_out]
    # Minutes would dominate the pieces; 400 documents contain all their words.
    some = [d for d in known if d.kind == "minutes"][:400]
    made = train(
        f"{d.question or ''} {d.answer}" for d in known + some if d.kind != "minutes" or d in some
    )
    made.save_pretrained(FOLDER)


if __name__ == "__main__":
    main()
