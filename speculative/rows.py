"""The device state of all rows: tokens, lengths, how each row is sampled, and counters of all rounds.

Knows tensors of fixed shapes; nothing of models, rounds or the host's records. Rounds change it in place,
without a host sync; the host reads it when it polls. Shapes: see `types`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from .requests import Mode, Request, Sampling

SAMPLING = tuple(field.name for field in fields(Sampling))


@dataclass
class RowState(ABC):
    """What the state of all rows has, whether a row is one text (`Rows`) or a group of them
    (`rounds.beams.BeamRows`). Shapes never change; finished rows stay and are masked."""

    tokens: Tensor  # [B, S] int64, of which the last one is a scratch slot: masked writes go there
    lengths: Tensor  # [B] int64, prompt and committed tokens
    begin: Tensor  # [B] int64, prompt length
    limits: Tensor  # [B] int64, `lengths` never exceeds it
    active: Tensor  # [B] bool
    rounds: Tensor  # [B] int64, rounds this row took part in
    # Static, so a part of the round's shape:
    reach: int  # slots from here on are not read
    mode: Mode

    computed: ClassVar[frozenset[str]]
    """Tensors that rounds write before they are read; what begins a text sets the others."""

    @staticmethod
    def common(batch: int, slots: int, device: torch.device) -> dict[str, Any]:
        """These fields of free rows of so many slots, and a scratch slot."""
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return {
            "tokens": zeros(batch, slots + 1),
            "lengths": zeros(batch) + 1,
            "begin": zeros(batch) + 1,
            "limits": zeros(batch) + 1,
            "active": zeros(batch, dtype=torch.bool),
            "rounds": zeros(batch),
            "reach": slots,
            "mode": Mode(),
        }

    @abstractmethod
    def free(self, count: int, place: torch.device) -> Self:
        """So many free rows of the same shapes, in memory of their own."""

    @abstractmethod
    def begin_texts(self, requests: Sequence[Request], most: int, gamma: int) -> None:
        """Writes a request into each of these rows, which are free and on the host. A row has `most` tokens
        and `gamma` drafts at most, and stays inactive."""

    @property
    @abstractmethod
    def texts(self) -> int:
        """How many texts a row has; each of their tokens has a slot."""

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def scratch(self) -> int:
        """The slot for masked writes, which is never read."""
        return self.tokens.shape[1] - 1

    def clear(self, row: int) -> None:
        """Resets a row to its initial state, so that nothing of its sequence is read again."""
        empty = self.free(1, self.tokens.device).tensors()
        for name, tensor in self.tensors().items():
            tensor[row] = empty[name][0]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass
class Rows(RowState):
    """Rows of one text each.

    Both models have seen all tokens of a row but the last, the *pending* one.
    """

    temperature: Tensor  # [B] float32, 0 is greedy
    seed: Tensor  # [B] int64, of the noise, see `rounds.sampling`
    # The numbers of `Sampling`:
    top_k: Tensor  # [B] int64
    top_p: Tensor  # [B] float32
    min_p: Tensor  # [B] float32
    repetition: Tensor  # [B] float32
    presence: Tensor  # [B] float32
    frequency: Tensor  # [B] float32
    gamma: Tensor  # [B] int64, the most drafts for the row: 0 is plain decoding for this row alone
    logprobs: Tensor  # [B, T] float32, of each emitted token under the processed logits
    sources: Tensor  # [B, T] int8, `Source`
    ranked: Tensor  # [B, T, R] int64, the most likely tokens at each emitted one; R may be 0
    ranked_logprobs: Tensor  # [B, T, R] float32
    drafted: Tensor  # [B] int64
    accepted: Tensor  # [B] int64

    computed = frozenset({"logprobs", "sources", "ranked", "ranked_logprobs"})

    @staticmethod
    def empty(batch: int, slots: int, device: torch.device, ranks: int = 0) -> Rows:
        """Free rows with room for `slots` tokens and the scratch slot; `ranks` of the most likely
        tokens are kept for each token."""
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        real = partial(torch.zeros, dtype=torch.float32, device=device)
        return Rows(
            **RowState.common(batch, slots, device),
            temperature=real(batch),
            seed=zeros(batch),
            top_k=zeros(batch),
            top_p=real(batch) + 1,
            min_p=real(batch),
            repetition=real(batch) + 1,
            presence=real(batch),
            frequency=real(batch),
            gamma=zeros(batch),
            logprobs=real(batch, slots + 1),
            sources=zeros(batch, slots + 1, dtype=torch.int8),
            ranked=zeros(batch, slots + 1, ranks),
            ranked_logprobs=real(batch, slots + 1, ranks),
            drafted=zeros(batch),
            accepted=zeros(batch),
        )

    def free(self, count: int, place: torch.device) -> Rows:
        return Rows.empty(count, self.scratch, place, self.ranks)

    def begin_texts(self, requests: Sequence[Request], most: int, gamma: int) -> None:
        for i, request in enumerate(requests):
            length, new = len(request.prompt), request.max_new_tokens
            self.tokens[i, :length] = torch.tensor(request.prompt)
            self.lengths[i] = self.begin[i] = length
            self.limits[i] = most if new is None else min(most, length + new)
            self.gamma[i] = gamma if request.gamma is None else request.gamma
        self.sample_as(requests)

    def sample_as(self, requests: Sequence[Request]) -> None:
        """Writes how the first rows are sampled: as these requests."""
        for name in ("temperature", "seed", *SAMPLING):
            of = attrgetter(f"sampling.{name}" if name in SAMPLING else name)
            values = [of(request) for request in requests]
            getattr(self, name)[: len(values)] = torch.tensor(values)

    @property
    def texts(self) -> int:
        return 1

    @property
    def ranks(self) -> int:
        """How many of the most likely tokens are kept for each token."""
        return self.ranked.shape[2]

    def pending(self) -> Tensor:
        """`[B, 1]`: the last committed token of each row."""
        return self.tokens.gather(1, (self.lengths - 1)[:, None])


_State = TypeVar("_State", bound=RowState)


def selected(rows: _State, index: Tensor | slice, mode: Mode, reach: int | None = None) -> _State:
    """Some rows, with a mode of their own and a reach, by default that of all: a copy of those of a tensor, a
    view of those of a slice, whose rounds change `rows`."""
    changed: dict[str, Any] = {name: value[index] for name, value in rows.tensors().items()}
    changed |= {"mode": mode, "reach": rows.reach if reach is None else reach}
    return replace(rows, **changed)


@dataclass(frozen=True)
class Counters:
    """Running sums over all rows and rounds.

    `drafted` and `accepted` are `[G_max]`, per depth of the draft: entry i counts the rows whose
    draft i + 1 was submitted, and kept.
    """

    drafted: Tensor
    accepted: Tensor
    judged: Tensor  # [] drafts that were kept, or the first of their row and round that was not
    row_rounds: Tensor  # [] sum over rounds of the active rows
    emitted: Tensor  # [] committed tokens

    @staticmethod
    def zeros(max_gamma: int, device: torch.device) -> Counters:
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return Counters(zeros(max_gamma), zeros(max_gamma), zeros(()), zeros(()), zeros(()))

    def add(self, active: Tensor, drafted: Tensor, accepted: Tensor, emitted: Tensor) -> None:
        """Adds one round: per row whether it was active, and its three counts (all `[B]`)."""
        depth = torch.arange(self.drafted.shape[0], device=self.drafted.device)
        self.drafted.add_((depth < drafted[:, None]).sum(0))
        self.accepted.add_((depth < accepted[:, None]).sum(0))
        self.judged.add_((accepted + (accepted < drafted)).sum())
        self.row_rounds.add_(active.sum())
        self.emitted.add_(emitted.sum())
