"""The roles of the core: model, drafter, logits processor, acceptance rule and schedule.

Knows their methods and records; nothing of any implementation. Shapes: see `drafts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .drafts import Chain, Distribution, Draft, Prefix, Scores, Topology, Verdict
from .requests import Guarantee, Request
from .rounds.choice import Allowed, Choice
from .rows import Rows


class Processor(Protocol):
    """Changes logits as a pure function of the prefix; `[B, N, V]` in, `[B, N, V]` out."""

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor: ...


class AllowingProcessor(Processor, Protocol):
    """A processor that only forbids tokens, and can say which ones without reading logits. As the only
    processor it makes greedy rounds cheaper, see `rounds.choice`."""

    def allowed(self, chain: Chain) -> Allowed: ...


class Model(Protocol):
    """A decoder with a key-value cache of fixed size per row. Adapters over transformers live in
    `models/`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    def allocate(self, batch: int, slots: int) -> None:
        """Allocates the cache for `batch` rows of `slots` token slots, zeroed."""

    def prefill(self, rows: Tensor, tokens: Tensor, encoder_states: Sequence[Any]) -> Tensor:
        """Writes the prompts `tokens [K, P]` (right-padded) into `rows [K]`; returns logits `[K, P, V]`,
        or `[K, 0, V]` for a family that is never probed: those of a long prompt take more memory than
        the model."""

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        """Runs one forward over `tokens [B, N]`; node i of row b is written to slot `start[b] + i`.

        Attention reads slots below `reach` only: no active row is longer. B may be smaller than the batch:
        these are its first rows then.
        """

    def commit(self, start: Tensor, path: Tensor) -> None:
        """Moves the keys and values of a tree's accepted path `[B, N]` to the slots from `start` on."""


class NodeModel(Model, Protocol):
    """A model that can score one node of each row without the vocabulary head of the others. Optional:
    of a model without this method a drafter takes the node's logits from `score`."""

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """As `score`, but returns logits `[B, 1, V]` float32 of node `node [B]` of each row alone."""


class GreedyModel(NodeModel, Protocol):
    """A model with passes of its own for greedy rounds. Optional: they decide as `rounds.choice.choose` and
    the loop of `ModelDrafter` do, which other models use."""

    def choose(self, logits: Tensor, allowed: Allowed | None = None) -> Choice:
        """As `rounds.choice.choose`."""

    def draft_greedy(
        self,
        tokens: Tensor,
        start: Tensor,
        node: Tensor,
        active: Tensor,
        *,
        reach: int,
        gamma: int,
        confidence: float,
    ) -> Tensor:
        """Drafts `[B, W]`, W from 1 to `gamma`: the best token after `node [B]` of `tokens [B, N]`, then the
        best one after that, and so on. They end where the product of their probabilities is below
        `confidence` in all rows that are `active [B]`; 0 drafts all."""


class Drafter(Protocol):
    """Proposes tokens, and may learn from the outcome."""

    @property
    def vocab_size(self) -> int | None:
        """Size of its vocabulary, which must be the target's; None where it has none."""

    @property
    def ends_early(self) -> bool:
        """Whether a draft may be shorter than gamma, depending on the data. Such rounds have no static
        shape, so devices that need one refuse it."""

    def distribution(self, *, sampling: bool) -> Distribution:
        """The distribution of its drafts, in rounds with and without rows above temperature 0."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None: ...

    def forwards(self, gamma: int) -> int:
        """Model forwards that one proposal of `gamma` drafts costs; for the statistics."""

    def admit(self, rows: Tensor, tokens: Tensor, requests: Sequence[Request]) -> None:
        """Takes new requests into `rows [K]`; their prompts are `tokens [K, P]`, right-padded."""

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Reads `count` tokens from slot `start [B]` on, which rounds without drafts have written. A
        short row ends before that; the tokens after its end are undefined and are never used. Inactive
        rows may be skipped."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        """Drafts for `rows`, the first ones of the batch or all of them."""

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Receives the verdict on its draft; `rows` is the state before the verdict is committed."""


class Rule(Protocol):
    """Decides how much of a draft is kept, and which token follows."""

    name: str
    distributions: frozenset[Distribution]  # the drafts it can verify

    def guarantee(self, distribution: Distribution) -> Guarantee: ...

    def __call__(self, rows: Rows, draft: Draft, logits: Tensor) -> Verdict:
        """`logits [B, N, V]` are processed, not yet divided by the temperature."""


@dataclass(frozen=True)
class Poll:
    """Totals over all rows of the rounds since the host's last poll."""

    gamma: int
    rounds: int
    row_rounds: int  # rounds that rows took part in
    judged: int  # drafts that were kept, or the first of their row and round that was not
    accepted: int
    seconds: float
    sampling: bool = False


class Schedule(Protocol):
    """Chooses gamma for the next rounds from a few buckets, so that few shapes exist."""

    @property
    def buckets(self) -> tuple[int, ...]: ...

    def choose(self, *, sampling: bool) -> int:
        """Returns gamma until the next poll; `sampling` where a row is above temperature 0."""

    def learn(self, poll: Poll) -> None:
        """Receives the totals of the rounds since the last poll."""
