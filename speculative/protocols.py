"""The roles of the core: model, drafter, logits processor and schedule.

Knows their methods and records; nothing of any implementation. Shapes: see `types`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .requests import Request
from .rounds.choice import Allowed, Choice
from .rows import Rows, RowState
from .types import Chain, Draft, Level, Paths, Prefilled, Prefix, Scores, States, Verdict


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

    vocab_size: int
    max_positions: int

    def tap(self, layers: tuple[int, ...]) -> None:
        """Returns the hidden states that enter these layers with every forward from here on, as `taps`; none
        for `()`. Layer 0 is entered by the embeddings, and -1 is the state after the final norm, which the
        head reads. Raises `ValueError` for a layer that the model does not have. Comes before `allocate`."""

    def allocate(self, batch: int, slots: int) -> None:
        """Allocates the cache for `batch` rows of `slots` token slots, zeroed."""

    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        """Writes the prompts `tokens [K, P]` (right-padded) into `rows [K]`. With `nodes [K, M]` the logits
        are those of these positions alone. Without, a family may leave them out: those of a long prompt take
        more memory than the model."""

    def score(self, tokens: Tensor, start: Tensor, *, reach: int) -> Scores:
        """Runs one forward over `tokens [B, N]`; node i of row b is written to slot `start[b] + i`.

        Attention reads slots below `reach` only: no active row is longer. B may be smaller than the batch:
        these are its first rows then.
        """


class StackedModel(Model, Protocol):
    """A model whose prefill can be captured, as its encoder states are one tensor. Optional."""

    def stacked(self, encoder_states: States) -> Tensor:
        """The encoder states `[K, S, D]` of requests."""

    def prefill_stacked(
        self, rows: Tensor, tokens: Tensor, states: Tensor, nodes: Tensor | None = None
    ) -> Prefilled:
        """As `prefill`, of encoder states `[K, S, D]`."""


class EmbeddingModel(Model, Protocol):
    """A model whose prompts may have embeddings in place of tokens: `types.Embedded` among the encoder states
    of a request. Optional."""

    def check_request(self, request: Request) -> None:
        """Raises `RequestError` for embeddings that this model or this prompt has no place for. They end
        before the prompt's last token, which the first round reads again, as a token."""

    def embedded(
        self,
        tokens: Tensor,
        encoder_states: States,
        embed: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor | None:
        """The embeddings `[K, P, D]` of prompts `tokens [K, P]` with those of their requests in place; None
        where no request has any. `embed` are those of another table than the model's."""


class NodeModel(Model, Protocol):
    """A model that can score one node of each row without the vocabulary head of the others. Optional:
    of a model without this method a drafter takes the node's logits from `score`."""

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """As `score`, but returns logits `[B, 1, V]` float32 of node `node [B]` of each row alone."""


class BeamModel(Model, Protocol):
    """A model that scores the beams of a row as nodes that share its prompt and its encoder states."""

    def score_paths(self, tokens: Tensor, paths: Paths, *, reach: int) -> Tensor:
        """Logits `[B, N, V]` float32 after each path. Node i of row b is the last token of path i: it is
        written to the path's last slot, and reads the path's slots alone. All of them are below `reach`."""


Chooser = Callable[[Level, Tensor], tuple[Tensor, Tensor]]
"""The most probable tokens `[B, N, C]` behind the texts of a level, by logits `[B, N, V]`, with their
log-probabilities."""


class BeamDrafter(Protocol):
    """A drafter of groups of beams."""

    def grow(self, rows: RowState, slots: Tensor, eos: Tensor, choose: Chooser) -> list[Level]:
        """The levels of a tree behind the beams of `rows`, in the order of their length; the texts of level
        g are in `slots [B, G, W]`."""


class SharedHeadModel(Model, Protocol):
    """A model that lends its embeddings and its vocabulary head to drafters. Optional."""

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings `[..., D]` of `tokens [...]`, without positions."""

    def head(self, states: Tensor) -> Tensor:
        """Logits `[..., V]` float32 of states `[..., D]` after the final norm."""


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


@dataclass(frozen=True)
class Needs:
    """What a drafter needs of the engine and the target."""

    taps: tuple[int, ...] = ()
    """Target layers whose input states it reads, see `Model.tap`; in this order in `Scores.taps`."""

    prompt: bool = False
    """It reads the taps of whole prompts. It then takes requests as they are admitted; other drafters do
    when they are about to draft, so that a schedule that does not draft costs nothing."""

    always: bool = False
    """`observe` is called in rounds without drafts too, in the place of `catch_up`: what it learns cannot be
    had from the tokens later."""

    vocab: int | None = None
    """Size of the vocabulary that it proposes tokens of, which must be the target's; None where it proposes
    tokens that it has seen."""

    ends_early: bool = False
    """A draft may be shorter than gamma, depending on the data. Such rounds have no static shape, so devices
    that need one refuse it."""

    @property
    def at_once(self) -> bool:
        """Whether prompts are given to it as they are admitted."""
        return self.prompt or self.always


class Drafter(Protocol):
    """Proposes tokens, and may learn from the outcome. A subclass inherits what it has no use for."""

    @property
    def needs(self) -> Needs:
        """Asked once by an engine, before `bind`."""
        return Needs()

    def bind(self, target: Model) -> None:
        """Receives the target, once and before `allocate`: a head shares its embeddings and its output layer.
        Raises `ValueError` for a target that does not fit."""
        return

    def allocate(self, batch: int, slots: int, device: torch.device) -> None: ...

    def forwards(self, gamma: int) -> int:
        """Model forwards that one proposal of `gamma` drafts costs; for the statistics."""
        return 0

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        """Takes new requests into `rows [K]`; their prompts are `tokens [K, P]`, right-padded. `taps
        [K, P, H, D]` where it needs those of prompts."""

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Reads `count` tokens from slot `start [B]` on, which rounds without drafts have written. A
        short row ends before that; the tokens after its end are undefined and are never used. Inactive
        rows may be skipped."""
        return

    def propose(self, rows: Rows, gamma: int) -> Draft:
        """Drafts for `rows`, the first ones of the batch or all of them."""

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Receives the verdict on its draft; `rows` is the state before the verdict is committed. The draft
        is empty in rounds without drafts, which only drafters that need them see. A round that fails in
        another row is run, and observed, again: what is kept of a round belongs to the slots from
        `rows.lengths` on."""
        return


@dataclass(frozen=True)
class Poll:
    """Totals over all rows of the rounds since the host's last poll.

    `reading_s` is the time in which the drafter read `read` prompts before these rounds, its own encoder
    included; it is not in `seconds`. `admitted` requests have begun. `width` is how many tokens drafts had,
    the mean over rounds: they may end early; None: gamma.
    """

    gamma: int
    rounds: int
    row_rounds: int  # rounds that rows took part in
    judged: int  # drafts that were kept, or the first of their row and round that was not
    accepted: int
    seconds: float
    admitted: int = 0
    read: int = 0
    reading_s: float = 0.0
    width: float | None = None


class Schedule(Protocol):
    """Chooses gamma for the next rounds from a few buckets, so that few shapes exist."""

    @property
    def buckets(self) -> tuple[int, ...]: ...

    def choose(self) -> int:
        """Returns gamma until the next poll."""

    def learn(self, poll: Poll) -> None:
        """Receives the totals of the rounds since the last poll."""
