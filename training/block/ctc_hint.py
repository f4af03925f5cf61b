"""A CTC head on Whisper's frozen encoder, whose text is an exact hint for the decoder.

    OMP_NUM_THREADS=1 python -m training.block.ctc_hint MODEL --labels LABELS --minutes 12 READERS ...

LABELS are what `forescribe distill MODEL --keep-labels` has stored (`.distill/labels`): the encoder's
states of windows and what the model wrote. The head, two convolutions and an output of letters with case
and punctuation, learns that text. READERS are recordings of other people. Prints the head's errors against
the model's own text, and the rounds of plain decoding, of n-grams, of the head's text as `hint`, and of the
model's own text, which is the most that a hint can give; tokens are compared. Figures:
docs/methods/free-drafts.md.
"""

from __future__ import annotations

import argparse
import random
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jiwer
import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss

from forescribe.asr.decode.options import Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.distill.labels import LabelRow, LabelStore
from forescribe.distill.speech import labelled_now
from forescribe.distill.training import Optimizers, rate

LETTERS = " " + string.ascii_letters + string.digits + ".,?!'-;:\"$%&"
BLANK, WIDTH, KERNEL = 0, 256, 7
TOGETHER, PEAK, DROPPED = 4, 2e-3, 0.1
AFTER = 25  # states of 20 ms that are kept behind the last word


class Letters(nn.Module):
    """Log-probabilities `[B, S, 1 + letters]` of encoder states `[B, S, D]`."""

    def __init__(self, states: int) -> None:
        super().__init__()
        half = KERNEL // 2
        self.norm = nn.LayerNorm(states)
        self.into = nn.Conv1d(states, WIDTH, KERNEL, padding=half)
        self.within = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=half)
        self.dropout = nn.Dropout(DROPPED)
        self.out = nn.Linear(WIDTH + states, 1 + len(LETTERS))

    def forward(self, states: Tensor) -> Tensor:
        normed = self.dropout(self.norm(states))
        hidden = nn.functional.gelu(self.into(normed.transpose(1, 2)))
        hidden = hidden + nn.functional.gelu(self.within(self.dropout(hidden)))
        read = torch.cat([self.dropout(hidden.transpose(1, 2)), normed], -1)
        found: Tensor = self.out(read).log_softmax(-1)
        return found


def ids(text: str) -> list[int]:
    """The letters of a text; others are left out."""
    return [1 + LETTERS.index(c) for c in " ".join(text.split()) if c in LETTERS]


def text_of(log_probs: Tensor) -> str:
    """The best path `[S, ...]` without repetitions and blanks."""
    best = log_probs.argmax(-1).unique_consecutive().tolist()
    return " ".join("".join(LETTERS[i - 1] for i in best if i != BLANK).split())


@dataclass(frozen=True, eq=False)
class Spoken:
    """States `[S, D]` of a window up to its last word, and its letters."""

    states: Tensor
    letters: list[int]


def spoken(row: LabelRow, tokenizer: Any) -> Spoken:
    assert row.states is not None
    zero = tokenizer.convert_tokens_to_ids("<|0.00|>")
    ends = [token - zero for token in row.tokens if token >= zero]  # in states
    length = min(1500, (max(ends) if ends else 1500) + AFTER)
    text = tokenizer.decode(
        [t for t in row.tokens[row.begin :] if t < zero], skip_special_tokens=True
    )
    return Spoken(row.states()[0][:length].clone(), ids(text))


def batches(
    rows: Sequence[Spoken], chosen: random.Random
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """States, letters and the lengths of both, without end; windows of a batch have about one length."""
    while True:
        order = sorted(rows, key=lambda row: len(row.states) + 100 * chosen.random())
        groups = [order[i : i + TOGETHER] for i in range(0, len(order), TOGETHER)]
        chosen.shuffle(groups)
        for group in groups:
            yield (
                nn.utils.rnn.pad_sequence([row.states.float() for row in group], batch_first=True),
                torch.tensor([letter for row in group for letter in row.letters]),
                torch.tensor([len(row.states) for row in group]),
                torch.tensor([len(row.letters) for row in group]),
            )


def train(rows: Sequence[Spoken], seconds: float) -> Letters:
    torch.manual_seed(0)
    head = Letters(rows[0].states.shape[1]).train()
    optimizers = Optimizers(head, peak=PEAK)
    start, step = time.time(), 0
    for states, letters, lengths, counts in batches(rows, random.Random(0)):
        progress = (time.time() - start) / seconds
        if progress >= 1:
            break
        found = head(states).transpose(0, 1)
        loss = ctc_loss(found, letters, lengths, counts, blank=BLANK, zero_infinity=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizers.step(rate(progress, step, fall_from=0.3))
        step += 1
        if step % 50 == 0:
            print(f"step {step}, {progress:.2f}: {loss.item():.3f}", flush=True)
    print(f"{step} steps of {TOGETHER} of {len(rows)} windows", flush=True)
    return head.eval()


def errors(said: Sequence[str], heard: Sequence[str]) -> str:
    pairs = list(said), list(heard)
    return f"words {jiwer.wer(*pairs):.3f}, letters {jiwer.cer(*pairs):.3f}"


def measure(model: Path, head: Letters, recordings: Sequence[str], gamma: int) -> None:
    def load(length: int) -> Transcriber:
        made = Transcriber.load(
            str(model), "none", language="en", device="cpu", batch=1, gamma=length
        )
        torch.set_num_threads(1)
        return made

    plain = load(0)
    rows = labelled_now(plain, recordings, Options(language="en"))
    by_source: dict[str, list[LabelRow]] = {}
    for row in rows:
        by_source.setdefault(row.source, []).append(row)
    tokenizer = plain.whisper.tokenizer
    own, heard = dict[str, str](), dict[str, str]()
    for source, windows in by_source.items():
        texts = []
        for row in windows:
            assert row.states is not None
            states = spoken(row, tokenizer).states.float()
            with torch.no_grad():
                texts.append(text_of(head(states[None])[0]))
        own[source] = tokenizer.decode(
            [t for row in windows for t in row.tokens[row.begin :]], skip_special_tokens=True
        )
        heard[source] = " ".join(texts)
    print(f"the head against the model: {errors([*own.values()], [*heard.values()])}")
    reference: dict[str, Any] = {}
    hints = {"n-grams": None, "the head's text": heard, "the model's own": own}
    transcriber = load(gamma)
    for name, texts_of in [("plain", None), *hints.items()]:
        engine = plain if name == "plain" else transcriber
        same, before = 0, engine.stats()
        for source in own:
            hint = None if texts_of is None else texts_of[source]
            (outcome,) = engine.transcribe(
                [source], replace(Options(language="en"), hint=hint or None)
            )
            assert outcome.transcript is not None
            reference.setdefault(source, outcome.transcript.text)
            same += outcome.transcript.text == reference[source]
        made = engine.stats() - before
        kept = f"{made.mean_acceptance_length:.2f} | {made.accepted} of {made.drafted}"
        print(f"| {name} | {kept} | {same} of {len(own)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--gamma", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Transcriber.load(options.model, "none", device="cpu", gamma=0).whisper.tokenizer
    torch.set_num_threads(1)
    rows = [spoken(row, tokenizer) for row in LabelStore(options.labels).rows()]
    head = train([row for row in rows if row.letters], 60 * options.minutes)
    measure(options.model, head, options.recordings, options.gamma)


if __name__ == "__main__":
    main()
