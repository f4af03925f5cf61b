"""Labels: what the target wrote, with its distributions, on disk and in batches for training.

A distribution is its 64 most probable tokens, which hold nearly all of the probability in a hundredth of
the space of all logits. Some rows are held out: whole recordings where there are enough, else some rows of
each kind. A batch has rows of similar length and is a pure function of seed and step, so that a run that is
resumed at a step goes on as it would have. Some text tokens of the input are replaced (the labels stay
right): in use a draft reads its own wrong tokens.

On disk there is a file of rows for each recording, or for each group of prompts. A file appears whole or
not at all, so a run that was killed goes on with those that are there. Encoder states are stored in float16
and are read row by row. Knows rows, tensors and files; nothing of models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from forescribe.asr.errors import UsageError

from .files import put_bytes

LISTED = 64
"""Tokens that are kept of each distribution (R)."""

LOWEST_LOG = -60.0
"""The log-probability of a token that a logits processor forbids: float16 can store it, and its share of
any loss is zero."""

OWN, GENERAL = "own", "general"
"""Kinds of rows: of the user's data, and of what is mixed in so that a draft keeps what it could do."""

SHARE = 0.15
MOST, LEAST_HELD_OUT = 48, 2
"""Held-out rows of a kind: more would make each evaluation slow, fewer say nothing."""

SOURCES = 7
"""Recordings from which on whole recordings are held out."""

RUN = 5
"""Tokens in a row that two texts seldom share by chance."""

ROWS, TOKENS = 12, 400
"""Rows and tokens of answers below which no draft can be trained."""

MISLED = 0.04
"""Share of the answer's text tokens that are replaced in the input."""

NEIGHBOURS = 0.05
"""Share of all rows, next in length, that a batch is drawn from: less padding, still other company."""


@dataclass(frozen=True, eq=False)
class LabelRow:
    """A prompt with the target's answer.

    `tokens` hold both; the answer begins at `begin`. `wanted` has one distribution for each of its tokens.
    `greedy` says that the answer is the target's choice at every place, else it was drawn at temperature 1.
    `states` reads the encoder states `[S, D]` of the target and of the draft; text has none.
    """

    source: str
    kind: str
    tokens: tuple[int, ...]
    begin: int
    greedy: bool
    wanted: SparseDistribution
    states: Callable[[], tuple[Tensor, Tensor]] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.begin < len(self.tokens):
            raise ValueError(f"an answer begins at {self.begin} of {len(self.tokens)} tokens")
        if len(self.wanted) != self.answered:
            raise ValueError(f"{len(self.wanted)} distributions for {self.answered} tokens")

    @property
    def answered(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.begin


@dataclass(frozen=True, eq=False)
class SparseDistribution:
    """The R most probable tokens of N distributions, in order; the rest of each is one lump.

    `ids [N, R]` int64, `logs [N, R]` float32 log-probabilities.
    """

    ids: Tensor
    logs: Tensor

    @classmethod
    def of(cls, logits: Tensor, listed: int = LISTED) -> SparseDistribution:
        """From logits [N, V], processed ones included: forbidden tokens are -inf."""
        best = logits.float().log_softmax(-1).topk(min(listed, logits.shape[-1]), dim=-1)
        return cls(best.indices, best.values.clamp(min=LOWEST_LOG))

    def under(self, head: CutHead) -> SparseDistribution:
        """With places in a cut head for ids: a token that it lacks has no probability, its share is part of
        the rest, and its id is 0."""
        places = head.places[self.ids]
        there = places >= 0
        return SparseDistribution(
            torch.where(there, places, 0), torch.where(there, self.logs, LOWEST_LOG)
        )

    @property
    def choice(self) -> Tensor:
        """The most probable tokens [N]."""
        return self.ids[:, 0]

    @property
    def probabilities(self) -> Tensor:
        """Of the listed tokens [N, R]."""
        return self.logs.exp()

    @property
    def rest(self) -> Tensor:
        """The probability of all tokens that are not listed [N]."""
        return (1 - self.probabilities.sum(-1)).clamp(min=0)

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def joined(cls, parts: list[SparseDistribution]) -> SparseDistribution:
        """One after the other; all list the same number of tokens."""
        return cls(torch.cat([p.ids for p in parts]), torch.cat([p.logs for p in parts]))


@dataclass(frozen=True, eq=False)
class CutHead:
    """The tokens that a cut output head has: `ids [L]`, ascending, and by token its place among them
    (`places [V]`), -1 for one that the head lacks."""

    ids: Tensor
    places: Tensor

    @classmethod
    def of(cls, ids: Sequence[int], vocab_size: int, device: torch.device) -> CutHead:
        """From a list of tokens, in ascending order."""
        listed = torch.tensor(ids, device=device)
        places = torch.full((vocab_size,), -1, device=device)
        places[listed] = torch.arange(len(ids), device=device)
        return cls(listed, places)

    def has(self, tokens: Tensor) -> Tensor:
        """Whether the head has each of the tokens."""
        return self.places[tokens] >= 0


class LabelStore:
    """The labels of a folder, which is created. Raises OutputError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def key(*names: str | int) -> str:
        """A file name for what is labelled together."""
        return hashlib.sha256("\0".join(map(str, names)).encode(errors="replace")).hexdigest()[:20]

    def has(self, key: str) -> bool:
        """Whether this was labelled, by this run or one before."""
        return self._path(key).exists()

    def add(self, key: str, rows: Sequence[LabelRow]) -> None:
        """Keep the rows of one recording; none where it has no speech. Raises OutputError."""
        tensors: dict[str, Tensor] = {}
        if rows:
            tensors["tokens"] = torch.tensor([t for row in rows for t in row.tokens]).int()
            tensors["ids"] = torch.cat([row.wanted.ids for row in rows]).int()
            tensors["logs"] = torch.cat([row.wanted.logs for row in rows]).half()
        loaded = [row.states() for row in rows if row.states is not None]
        if loaded:
            tensors["target_states"] = torch.stack([target for target, _ in loaded]).half()
            if any(target is not draft for target, draft in loaded):
                tensors["draft_states"] = torch.stack([draft for _, draft in loaded]).half()
        about = [[r.source, r.kind, len(r.tokens), r.begin, r.greedy] for r in rows]
        data = save(tensors, metadata={"rows": json.dumps(about)})
        self.folder.mkdir(parents=True, exist_ok=True)
        put_bytes(self._path(key), data)

    def rows(self) -> list[LabelRow]:
        """All rows, in an order that does not depend on when they were made. Raises UsageError for a
        damaged file."""
        found: list[LabelRow] = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                found += _read(path)
            except Exception as error:  # safetensors has an exception of its own for every fault
                raise UsageError(f"{path} is damaged ({error}): delete it") from error
        return found

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def split(rows: Sequence[LabelRow]) -> tuple[list[LabelRow], list[LabelRow]]:
    """The rows to train on and those that are held out, the same ones in every run.

    Raises UsageError for too little data.
    """
    tokens = sum(row.answered for row in rows)
    if len(rows) < ROWS or tokens < TOKENS:
        raise UsageError(
            f"too little to learn from: {len(rows)} answers of the target with {tokens} tokens, and at least "
            f"{ROWS} with {TOKENS} are needed; an hour of speech, or a thousand texts, is a good beginning"
        )
    held: list[LabelRow] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        held += _held_out([row for row in rows if row.kind == kind])
    chosen = {id(row) for row in held}
    return [row for row in rows if id(row) not in chosen], held


def repeated_share(trained: Iterable[LabelRow], held_out: Iterable[LabelRow]) -> float:
    """The share of `held_out`'s answers that is in those of `trained` too, in runs of `RUN` tokens: 0 to 1.
    What is said in several recordings is learnt by heart, and held out in none."""

    def runs(row: LabelRow) -> Iterator[tuple[int, ...]]:
        return (row.tokens[at : at + RUN] for at in range(row.begin, len(row.tokens) - RUN + 1))

    known = {run for row in trained for run in runs(row)}
    found = [run in known for row in held_out for run in runs(row)]
    return sum(found) / max(1, len(found))


@dataclass(frozen=True, eq=False)
class LabelBatch:
    """`tokens [B, L]`, right-padded; the N predicted positions are `row [N]`, `place [N]`: the place of the
    token *before* each prediction. `wanted` and `greedy [N]` belong to them. `states [B, S, D]` are what the
    draft attends to."""

    tokens: Tensor
    row: Tensor
    place: Tensor
    wanted: SparseDistribution
    greedy: Tensor
    states: Tensor | None

    def under(self, head: CutHead) -> LabelBatch:
        """The positions whose choice a cut head has, with distributions over it: at the others no draft of
        that head can be accepted."""
        there = head.has(self.wanted.choice)
        wanted = SparseDistribution(self.wanted.ids[there], self.wanted.logs[there]).under(head)
        return replace(
            self,
            row=self.row[there],
            place=self.place[there],
            wanted=wanted,
            greedy=self.greedy[there],
        )

    def to(self, device: torch.device) -> LabelBatch:
        """The same on a device."""
        return LabelBatch(
            self.tokens.to(device),
            self.row.to(device),
            self.place.to(device),
            SparseDistribution(self.wanted.ids.to(device), self.wanted.logs.to(device)),
            self.greedy.to(device),
            None if self.states is None else self.states.to(device),
        )


class BatchSource:
    """Draws batches of about `budget` tokens, padding included, at most `most` rows.

    A share `mixed` of them are of the general rows, where there are any; `text_ids` are the tokens that may
    be replaced, and replace others.
    """

    def __init__(
        self,
        rows: Sequence[LabelRow],
        *,
        seed: int,
        budget: int,
        most: int,
        text_ids: int,
        mixed: float = 0.15,
        misled: float = MISLED,
    ) -> None:
        own = sorted((r for r in rows if r.kind != GENERAL), key=lambda r: len(r.tokens))
        general = sorted((r for r in rows if r.kind == GENERAL), key=lambda r: len(r.tokens))
        self.own, self.general = own or general, general
        self.seed, self.budget, self.most = seed, budget, most
        self.text_ids, self.mixed, self.misled = text_ids, mixed, misled

    def draw_rows(self, step: int) -> list[LabelRow]:
        """The rows of a step."""
        rng = np.random.default_rng((self.seed, step))
        pool = self.general if self.general and rng.random() < self.mixed else self.own
        width = max(min(len(pool), 4), round(NEIGHBOURS * len(pool)))
        begin = int(rng.integers(max(1, len(pool) - width + 1)))
        order = rng.permutation(min(width, len(pool) - begin))
        chosen: list[LabelRow] = []
        longest = 0
        for index in order:
            row = pool[begin + int(index)]
            longest = max(longest, len(row.tokens))
            if chosen and longest * (len(chosen) + 1) > self.budget:
                break
            chosen.append(row)
            if len(chosen) == self.most:
                break
        return chosen

    def draw(self, step: int) -> LabelBatch:
        """The batch of a step."""
        batch = collate(self.draw_rows(step))
        return replace(batch, tokens=self._mislead(batch, step))

    def _mislead(self, batch: LabelBatch, step: int) -> Tensor:
        """Tokens [B, L] with a few of the answers' text tokens replaced by random ones."""
        rng = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        answer = torch.zeros_like(batch.tokens, dtype=torch.bool)
        answer[batch.row, batch.place] = True
        first = torch.full((len(batch.tokens),), batch.tokens.shape[1])
        first = first.scatter_reduce(0, batch.row, batch.place, "amin")
        answer[torch.arange(len(first)), first] = (
            False  # the prompt's last token is none of the answer
        )
        wrong = torch.rand(batch.tokens.shape, generator=rng) < self.misled
        other = torch.randint(self.text_ids, batch.tokens.shape, generator=rng)
        return torch.where(answer & wrong & (batch.tokens < self.text_ids), other, batch.tokens)


def collate(rows: Sequence[LabelRow]) -> LabelBatch:
    """Rows to one batch."""
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
    states = [row.states()[1] for row in rows if row.states is not None]
    return LabelBatch(
        tokens,
        torch.cat([torch.full((row.answered,), i) for i, row in enumerate(rows)]),
        torch.cat([torch.arange(row.begin - 1, len(row.tokens) - 1) for row in rows]),
        SparseDistribution.joined([row.wanted for row in rows]),
        torch.cat([torch.full((row.answered,), row.greedy) for row in rows]),
        torch.stack(states) if states else None,
    )


def _held_out(rows: Sequence[LabelRow]) -> list[LabelRow]:
    wanted = min(MOST, max(LEAST_HELD_OUT, round(SHARE * len(rows))))
    whole = len({row.source for row in rows}) >= SOURCES

    def rank(row: LabelRow) -> str:
        # Texts of one source and those that begin alike stay together: a word's definition in training
        # would give its held-out one away.
        name = row.source if whole else f"{row.source}\0{row.tokens[: row.begin]}"
        return hashlib.sha256(name.encode(errors="replace")).hexdigest()

    ranked = sorted(rows, key=lambda row: (rank(row), row.tokens))
    return ranked[:wanted]


def _read(path: Path) -> Iterator[LabelRow]:
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {})["rows"])
        if not about:
            return
        tokens = file.get_tensor("tokens").tolist()
        ids, logs = file.get_tensor("ids").long(), file.get_tensor("logs").float()
        spoken = "target_states" in file.keys()
    start = place = 0
    for number, (source, kind, length, begin, greedy) in enumerate(about):
        stop, until = start + length, place + length - begin
        yield LabelRow(
            source,
            kind,
            tuple(tokens[start:stop]),
            begin,
            greedy,
            SparseDistribution(ids[place:until], logs[place:until]),
            partial(_states, path, number) if spoken else None,
        )
        start, place = stop, until


def _states(path: Path, number: int) -> tuple[Tensor, Tensor]:
    """The encoder states `[S, D]` of a row: for the target and for the draft."""
    with safe_open(path, "pt") as file:
        target = file.get_slice("target_states")[number].float()
        if "draft_states" not in file.keys():
            return target, target
        return target, file.get_slice("draft_states")[number].float()
