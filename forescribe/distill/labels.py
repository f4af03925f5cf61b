"""Labels: what the target wrote, with its distributions, on disk and in batches for training.

A distribution is its 64 most probable tokens, which hold nearly all of the probability in a hundredth of
the space of all logits. A batch is a pure function of seed and step, so that a run that is resumed at a step
goes on as it would have. Some text tokens of the input are replaced (the labels stay right): in use a draft
reads its own wrong tokens. On disk there is a file of rows for each recording, which appears whole or not at
all; encoder states are stored in float16 and read row by row. Knows rows, tensors and files; no models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from forescribe.asr.errors import UsageError, output_errors
from forescribe.asr.formats.files import put

LISTED = 64
"""Tokens that are kept of each distribution (R)."""

LOWEST_LOG = -60.0
"""The log-probability of a token that a logits processor forbids: float16 can store it, and its share of
any loss is zero."""

SHARE, MOST, LEAST = 0.15, 48, 2
"""Held-out rows: their share, and bounds of it: more would make each evaluation slow, fewer say nothing."""

SOURCES = 7
"""Recordings from which on whole recordings are held out."""

ROWS, TOKENS = 12, 400
"""Rows and tokens of answers below which no draft can be trained."""

MISLED = 0.04
"""Share of the answer's text tokens that are replaced in the input."""

NEIGHBOURS = 0.05
"""Share of all rows, next in length, that a batch is drawn from: less padding, still other company."""

States = tuple[Tensor, Tensor]
"""The encoder states `[S, D]` of the target and of the draft."""


@dataclass(frozen=True, eq=False)
class SparseDistribution:
    """The R most probable tokens of N distributions, in order; the rest of each is one lump.

    `ids [N, R]` int64, `logs [N, R]` float32 log-probabilities."""

    ids: Tensor
    logs: Tensor

    @classmethod
    def of(cls, logits: Tensor, listed: int = LISTED) -> SparseDistribution:
        """From logits [N, V], processed ones included: forbidden tokens are -inf."""
        best = logits.float().log_softmax(-1).topk(min(listed, logits.shape[-1]), dim=-1)
        return cls(best.indices, best.values.clamp(min=LOWEST_LOG))

    @classmethod
    def joined(cls, rows: Sequence[LabelRow]) -> SparseDistribution:
        """Those of rows, one after another."""
        return cls(
            torch.cat([row.wanted.ids for row in rows]),
            torch.cat([row.wanted.logs for row in rows]),
        )

    def split(self, lengths: list[int]) -> Iterator[SparseDistribution]:
        """One after another, so many positions each."""
        return map(SparseDistribution, self.ids.split(lengths), self.logs.split(lengths))

    def to(self, device: torch.device) -> SparseDistribution:
        return SparseDistribution(self.ids.to(device), self.logs.to(device))

    @property
    def choice(self) -> Tensor:
        """The most probable tokens [N]."""
        return self.ids[:, 0]


@dataclass(frozen=True, eq=False)
class LabelRow:
    """A prompt with the target's greedy answer: `tokens` hold both, the answer begins at `begin`. `wanted`
    has one distribution for each of its tokens. `states` reads the encoder's."""

    source: str
    tokens: tuple[int, ...]
    begin: int
    wanted: SparseDistribution
    states: Callable[[], States]

    @property
    def answered(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.begin


@dataclass(frozen=True)
class LabelStore:
    """The labels of a folder, which is created."""

    folder: Path

    def has(self, recording: str) -> bool:
        """Whether it was labelled, by this run or one before."""
        return self._path(recording).exists()

    def add(self, recording: str, rows: Sequence[LabelRow]) -> None:
        """Keep the rows of a recording; none where it has no speech. Raises OutputError."""
        tensors: dict[str, Tensor] = {}
        if rows:
            wanted = SparseDistribution.joined(rows)
            targets, drafts = zip(*(row.states() for row in rows), strict=True)
            tensors = {
                "tokens": torch.tensor([t for row in rows for t in row.tokens]).int(),
                "ids": wanted.ids.int(),
                "logs": wanted.logs.half(),
                "target_states": torch.stack(targets).half(),
            }
            if any(target is not draft for target, draft in zip(targets, drafts, strict=True)):
                tensors["draft_states"] = torch.stack(drafts).half()
        about = [[row.source, len(row.tokens), row.begin] for row in rows]
        advice = "make room, or name another folder, and run the command again"
        with output_errors(str(self.folder), advice):
            self.folder.mkdir(parents=True, exist_ok=True)
            put(self._path(recording), save(tensors, metadata={"rows": json.dumps(about)}))

    def rows(self) -> list[LabelRow]:
        """All rows, in an order that does not depend on when they were made."""
        paths = sorted(self.folder.glob("*.safetensors"))
        return [row for path in paths for row in _read(path)]

    def _path(self, recording: str) -> Path:
        name = hashlib.sha256(recording.encode(errors="replace")).hexdigest()[:20]
        return self.folder / f"{name}.safetensors"


def _read(path: Path) -> Iterator[LabelRow]:
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {})["rows"])
        if not about:
            return
        sources, lengths, begins = (list(each) for each in zip(*about, strict=True))
        texts = file.get_tensor("tokens").split(lengths)
        wanted = SparseDistribution(file.get_tensor("ids").long(), file.get_tensor("logs").float())
    answered = [length - begin for length, begin in zip(lengths, begins, strict=True)]
    rows = zip(sources, texts, begins, wanted.split(answered), strict=True)
    for number, (source, text, begin, part) in enumerate(rows):
        states = partial(_states, path, number)
        yield LabelRow(source, tuple(text.tolist()), begin, part, states)


def _states(path: Path, number: int) -> States:
    with safe_open(path, "pt") as file:
        target = file.get_slice("target_states")[number].float()
        if "draft_states" not in file.keys():
            return target, target
        return target, file.get_slice("draft_states")[number].float()


def split(rows: Sequence[LabelRow]) -> tuple[list[LabelRow], list[LabelRow]]:
    """The rows to train on and those that are held out, the same ones in every run: whole recordings where
    there are enough. Raises UsageError for too little data."""
    tokens = sum(row.answered for row in rows)
    if len(rows) < ROWS or tokens < TOKENS:
        raise UsageError(
            f"too little to learn from: {len(rows)} answers of the target with {tokens} tokens, and at least "
            f"{ROWS} with {TOKENS} are needed; an hour of speech is a good beginning"
        )
    whole = len({row.source for row in rows}) >= SOURCES

    def rank(row: LabelRow) -> str:
        name = row.source if whole else f"{row.source}\0{row.tokens}"
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()

    count = min(MOST, max(LEAST, round(SHARE * len(rows))))
    held = sorted(rows, key=lambda row: (rank(row), row.tokens))[:count]
    chosen = {id(row) for row in held}
    return [row for row in rows if id(row) not in chosen], held


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """`tokens [B, L]`, right-padded; the N predicted positions are `row [N]`, `place [N]`: the place of the
    token *before* each prediction, and `wanted` there. `states [B, S, D]` are what the draft attends to."""

    tokens: Tensor
    row: Tensor
    place: Tensor
    wanted: SparseDistribution
    states: Tensor

    @classmethod
    def of(cls, rows: Sequence[LabelRow]) -> LabelBatch:
        return cls(
            pad_sequence([torch.tensor(row.tokens) for row in rows], batch_first=True),
            torch.cat([torch.full((row.answered,), i) for i, row in enumerate(rows)]),
            torch.cat([torch.arange(row.begin - 1, len(row.tokens) - 1) for row in rows]),
            SparseDistribution.joined(rows),
            torch.stack([row.states()[1] for row in rows]),
        )

    def to(self, device: torch.device) -> LabelBatch:
        """The same on a device."""
        tokens, row, place = (each.to(device) for each in (self.tokens, self.row, self.place))
        return LabelBatch(tokens, row, place, self.wanted.to(device), self.states.to(device))


@dataclass
class BatchSource:
    """Draws batches of about `budget` tokens, padding included, at most `most` rows. `text_ids` are the
    tokens that may be replaced, and replace others."""

    rows: Sequence[LabelRow]
    seed: int
    budget: int
    most: int
    text_ids: int
    misled: float = MISLED

    def __post_init__(self) -> None:
        self.rows = sorted(self.rows, key=lambda row: len(row.tokens))

    def draw(self, step: int) -> LabelBatch:
        """The batch of a step."""
        batch = LabelBatch.of(self._rows(step))
        return replace(batch, tokens=self._mislead(batch, step))

    def _rows(self, step: int) -> list[LabelRow]:
        rng = np.random.default_rng((self.seed, step))
        width = max(min(len(self.rows), 4), round(NEIGHBOURS * len(self.rows)))
        begin = int(rng.integers(max(1, len(self.rows) - width + 1)))
        chosen: list[LabelRow] = []
        longest = 0
        for index in rng.permutation(min(width, len(self.rows) - begin)):
            row = self.rows[begin + int(index)]
            longest = max(longest, len(row.tokens))
            if chosen and longest * (len(chosen) + 1) > self.budget:
                break
            chosen.append(row)
            if len(chosen) == self.most:
                break
        return chosen

    def _mislead(self, batch: LabelBatch, step: int) -> Tensor:
        """Tokens [B, L] with a few of the answers' text tokens replaced by random ones."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        answer = torch.zeros_like(batch.tokens, dtype=torch.bool)
        answer[batch.row, batch.place] = True
        first = torch.full((len(batch.tokens),), batch.tokens.shape[1])
        first = first.scatter_reduce(0, batch.row, batch.place, "amin")
        answer[torch.arange(len(first)), first] = False  # the prompt's last token
        wrong = torch.rand(batch.tokens.shape, generator=rng) < self.misled
        other = torch.randint(self.text_ids, batch.tokens.shape, generator=rng)
        return torch.where(answer & wrong & (batch.tokens < self.text_ids), other, batch.tokens)
