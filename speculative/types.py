"""The records and the protocols of the core.

Letters of all shapes in `speculative/`:

    B  rows (slots of the batch)          G  gamma, drafted tokens per round
    N  scored nodes per row, G + 1        T  token slots per row, the last one a dump
    V  vocabulary                         D  model width
    K  rows admitted together             P  padded prompt length of an admission

Nothing here knows audio, text, files or HTTP: it is token ids and tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from . import checks
from .errors import DecodingError, RequestError, SpeculativeError


class Guarantee(Enum):
    """What a result may claim against plain decoding with the same target, processors and dtype."""

    EXACT = "exact"  # same distribution, and the same tokens at temperature 0
    GREEDY_ONLY = "greedy-only"  # the same tokens at temperature 0, nothing claimed above it
    LOSSY = "lossy"


class Distribution(Enum):
    """The law a drafter drew its tokens from; a rule names the laws it can verify exactly."""

    ONE_HOT = "one-hot"  # all mass on the proposed token: n-gram, retrieval, greedy drafts
    DENSE = "dense"  # `Draft.probs` holds the whole distribution of every drafted position


class Source(IntEnum):
    """Who wrote a token."""

    PROMPT = 0
    ACCEPTED = 1  # drafted, and kept by the target
    CORRECTION = 2  # the target's own token after a rejection
    BONUS = 3  # the target's own token after full acceptance
    PLAIN = 4  # the target's own token in a round without drafts


@dataclass(frozen=True)
class Topology:
    """A static tree over the scored nodes: `parents[i]` is the node before drafted node i + 1.

    Node 0 is the pending token. Parents come before children, so the tree is topologically sorted.
    The chain of G drafts is `parents == (0, 1, ..., G - 1)`, written as `None` wherever a topology is
    optional.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for child, parent in enumerate(self.parents, start=1):
            if not 0 <= parent < child:
                raise ValueError(f"node {child} has parent {parent}; parents come before children")

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; the root has 0."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    def ancestry(self) -> list[list[bool]]:
        """`[N][N]`: entry (i, j) is True where node j is node i or one of its ancestors."""
        size = len(self.parents) + 1
        seen = [[i == j for j in range(size)] for i in range(size)]
        for child, parent in enumerate(self.parents, start=1):
            seen[child] = [a or b for a, b in zip(seen[child], seen[parent], strict=True)]
        return seen


@dataclass(frozen=True)
class Draft:
    """What a drafter proposed for every row."""

    tokens: Tensor  # [B, G] int64
    valid: Tensor  # [B] int64: how many leading drafts of the row count, 0..G
    probs: Tensor | None = (
        None  # [B, G, V] float32, the law the tokens were drawn from; None: one-hot
    )
    topology: Topology | None = None  # None: a chain


@dataclass(frozen=True)
class Scores:
    """One target forward over the pending token and the drafts."""

    logits: Tensor  # [B, N, V] float32, unprocessed
    taps: Tensor | None = None  # [B, N, D] last hidden states, for drafters that read them


@dataclass(frozen=True)
class Verdict:
    """What the target says of a draft. `tokens[b, :num_accepted[b] + 1]` are emitted, in order."""

    tokens: Tensor  # [B, N] accepted drafts, then one token of the target; junk behind it
    num_accepted: Tensor  # [B] 0..G
    path: Tensor | None = None  # [B, N] node of every emitted token's predecessor; None: a chain


@dataclass(frozen=True)
class Prefix:
    """What the processors may look at: for each scored position, the tokens before it."""

    tokens: Tensor  # [B, T] prompt, committed tokens, and this round's drafts already written in
    last: Tensor  # [B, N] slot of the last token before each prediction
    begin: Tensor  # [B] slot of the first generated token, which is the prompt length


class Processor(Protocol):
    """Changes logits as a pure function of the prefix; `[B, N, V]` in, `[B, N, V]` out."""

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor: ...


@dataclass(frozen=True)
class Sampling:
    """How a row's next token is chosen, besides its temperature. The defaults change nothing.

    Penalties change logits at every temperature; bounds cut what is sampled from, in the order of
    transformers: temperature, top-k, top-p, min-p. Raises `RequestError` for impossible numbers.
    """

    top_k: int = 0  # the most likely so many tokens; 0: all
    top_p: float = 1.0  # the fewest tokens that hold so much of the probability
    min_p: float = 0.0  # tokens at least so likely, as a share of the likeliest one
    repetition: float = 1.0  # above 1: tokens of prompt and text are less likely
    presence: float = 0.0  # taken from the logits of tokens that the text has
    frequency: float = 0.0  # likewise, for each time that it has them

    def __post_init__(self) -> None:
        checks.whole("top_k", self.top_k, 0, must="0 (all) or more, in 64 bits")
        tiny = 5e-324  # the least number above 0
        checks.real("top_p", self.top_p, tiny, 1, must="above 0, up to 1")
        checks.real("min_p", self.min_p, 0, 1, must="from 0 to 1")
        most = checks.LARGEST
        checks.real(
            "repetition", self.repetition, 1 / most, most, must=f"from {1 / most:g} to {most:g}"
        )
        for name in ("presence", "frequency"):
            bounds = f"a number from {-most:g} to {most:g}"
            checks.real(name, getattr(self, name), -most, most, must=bounds)

    @property
    def bounded(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Mode:
    """What a round can do. Static, so a part of its shape: what no row asks for costs nothing."""

    sampling: bool = False  # a row is above temperature 0: drafts are drawn, and carry their law
    bounded: bool = False  # a sampled row has top-k, top-p or min-p
    penalised: bool = False  # a row has penalties
    ranked: bool = False  # a row wants the likeliest tokens of each position

    def covers(self, other: Mode) -> bool:
        """Whether rounds of this mode do all that those of the other do."""
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))

    @staticmethod
    def of(requests: Iterable[Request]) -> Mode:
        """What these requests need, and no more."""
        work = list(requests)
        return Mode(
            sampling=any(r.temperature > 0 for r in work),
            bounded=any(r.temperature > 0 and r.sampling.bounded for r in work),
            penalised=any(r.sampling.penalised for r in work),
            ranked=any(r.ranks > 0 for r in work),
        )


@dataclass
class Rows:
    """The state of all rows on the device. Shapes never change; finished rows stay and are masked.

    Both models have seen all tokens of a row but the last, the *pending* one. The last slot of
    `tokens` is a dump: writes that must not count go there.
    """

    tokens: Tensor  # [B, T] int64
    lengths: Tensor  # [B] int64, prompt and committed tokens
    begin: Tensor  # [B] int64, prompt length
    limits: Tensor  # [B] int64, `lengths` never exceeds it
    active: Tensor  # [B] bool
    temperature: Tensor  # [B] float32, 0 is greedy
    seed: Tensor  # [B] int64, randomness is keyed by (seed, start of the round, slot)
    top_k: Tensor  # [B] int64, the fields of `Sampling` from here on
    top_p: Tensor  # [B] float32
    min_p: Tensor  # [B] float32
    repetition: Tensor  # [B] float32
    presence: Tensor  # [B] float32
    frequency: Tensor  # [B] float32
    gamma: Tensor  # [B] int64, most drafts the row wants: 0 is plain decoding for this row alone
    logprobs: Tensor  # [B, T] float32, of each emitted token under the processed logits
    sources: Tensor  # [B, T] int8, `Source`
    ranked: Tensor  # [B, T, R] int64, the likeliest tokens at each emitted one; R may be 0
    ranked_logprobs: Tensor  # [B, T, R] float32
    rounds: Tensor  # [B] int64, rounds this row took part in
    drafted: Tensor  # [B] int64
    accepted: Tensor  # [B] int64
    # Static, so a part of the round's shape:
    reach: int  # no slot from here on is read
    mode: Mode

    @staticmethod
    def empty(batch: int, slots: int, device: torch.device, ranks: int = 0) -> Rows:
        """Rows that are all free, with room for `slots` tokens and one dump slot behind them; `ranks`
        of the likeliest tokens are kept for each."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return Rows(
            tokens=zeros(batch, slots + 1),
            lengths=torch.ones(batch, dtype=torch.int64, device=device),
            begin=torch.ones(batch, dtype=torch.int64, device=device),
            limits=torch.ones(batch, dtype=torch.int64, device=device),
            active=zeros(batch, dtype=torch.bool),
            temperature=zeros(batch, dtype=torch.float32),
            seed=zeros(batch),
            top_k=zeros(batch),
            top_p=torch.ones(batch, device=device),
            min_p=zeros(batch, dtype=torch.float32),
            repetition=torch.ones(batch, device=device),
            presence=zeros(batch, dtype=torch.float32),
            frequency=zeros(batch, dtype=torch.float32),
            gamma=zeros(batch),
            logprobs=zeros(batch, slots + 1, dtype=torch.float32),
            sources=zeros(batch, slots + 1, dtype=torch.int8),
            ranked=zeros(batch, slots + 1, ranks),
            ranked_logprobs=zeros(batch, slots + 1, ranks, dtype=torch.float32),
            rounds=zeros(batch),
            drafted=zeros(batch),
            accepted=zeros(batch),
            reach=slots,
            mode=Mode(),
        )

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def scratch(self) -> int:
        """The slot whose content nobody reads."""
        return self.tokens.shape[1] - 1

    def pending(self) -> Tensor:
        """`[B, 1]`: the last committed token of each row."""
        return self.tokens.gather(1, (self.lengths - 1)[:, None])

    def clear(self, row: int) -> None:
        """Makes a row as empty as at the start: nothing of its sequence is read again."""
        ranks = self.ranked.shape[2]
        empty = Rows.empty(1, self.scratch, self.tokens.device, ranks).tensors()
        for name, tensor in self.tensors().items():
            tensor[row] = empty[name][0]

    def tensors(self) -> dict[str, Tensor]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Probe:
    """Asks for probabilities of some tokens at a prompt slot, from unprocessed logits.

    Whisper reads the no-speech probability and the language this way, at start-of-transcript.
    """

    slot: int
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        checks.whole("the probe's slot", self.slot, 0)
        checks.tokens("the probe", self.tokens)


@dataclass(frozen=True)
class Request:
    """One sequence to decode. Raises `RequestError` for impossible numbers."""

    prompt: tuple[int, ...]
    encoder_states: Any = (
        None  # what the models condition on besides tokens; passed through untouched
    )
    max_new_tokens: int | None = None  # None: up to the model's last position
    temperature: float = 0.0
    sampling: Sampling = Sampling()
    ranks: int = 0  # how many of the likeliest tokens are reported at each position
    seed: int = 0
    gamma: int | None = None  # at most so many drafts per round; None: as the schedule says
    hint: tuple[int, ...] = ()  # text that the answer may repeat: a lookup drafter searches it too
    probe: Probe | None = None
    tag: Any = None  # the caller's own key

    def __post_init__(self) -> None:
        checks.tokens("the prompt", self.prompt)
        if not self.prompt:
            raise RequestError("a request needs at least one prompt token")
        checks.tokens("the hint", self.hint)
        most = checks.HOTTEST
        checks.real("temperature", self.temperature, 0, most, must=f"from 0 to {most:g}")
        checks.whole("ranks", self.ranks, 0, checks.ANY)
        for name in ("max_new_tokens", "gamma"):
            value = getattr(self, name)
            if value is not None:
                checks.whole(name, value, 0, checks.ANY)
        checks.whole("seed", self.seed, -checks.INT64 - 1, must="of 64 bits with a sign")
        if self.probe is not None and self.probe.slot >= len(self.prompt):
            raise RequestError(f"probe slot {self.probe.slot} is behind the prompt")


Ranked = tuple[tuple[tuple[int, float], ...], ...]
"""For each token of a text the likeliest ones there, with their log-probabilities."""


@dataclass(frozen=True)
class Partial:
    """What is new of a sequence that is being decoded, from token `begin` of its text on. It is final."""

    request: Request
    begin: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranked: Ranked


class Finish(Enum):
    STOP = "stop"  # the end-of-text token
    LENGTH = "length"  # the budget, or the model's last position
    CANCELLED = "cancelled"
    FAILED = "failed"  # `Result.error` says why; the tokens are those that came before


@dataclass(frozen=True)
class Result:
    """One decoded sequence. `tokens` excludes the prompt and includes end-of-text where it came.

    `draft_error` is a fault of the drafter: from there on the sequence was decoded without drafts. At
    temperature 0 its tokens are the same; above, they are other draws from the same distribution.
    """

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    sources: tuple[Source, ...]
    finish: Finish
    rounds: int
    drafted: int
    accepted: int
    probe: tuple[float, ...] = ()
    ranked: Ranked = ()
    guarantee: Guarantee = field(default=Guarantee.EXACT)
    error: SpeculativeError | None = None  # where it failed, and only there
    draft_error: DecodingError | None = None

    def __post_init__(self) -> None:
        assert (self.error is not None) == (self.finish is Finish.FAILED)
        assert len(self.tokens) == len(self.logprobs) == len(self.sources)
        assert 0 <= self.accepted <= self.drafted


class Model(Protocol):
    """A decoder with one cache strip per row. Adapters over transformers live in `models/`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    def allocate(self, batch: int, slots: int) -> None:
        """Takes memory for `batch` rows of `slots` token slots, zeroed."""

    def prefill(self, rows: Tensor, tokens: Tensor, encoder_states: Sequence[Any]) -> Tensor:
        """Writes the prompts `tokens [K, P]` (right-padded) into `rows [K]`; logits `[K, P, V]`, or
        `[K, 0, V]` of a family that is never probed: a long prompt's take more memory than the model."""

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        """One forward over `tokens [B, N]`; node i of row b is written to slot `start[b] + i`.

        Attention reads slots below `reach` only: no active row is longer.
        """

    def commit(self, start: Tensor, path: Tensor) -> None:
        """Moves the K/V of a tree's accepted path `[B, N]` to the slots from `start` on."""


class Drafter(Protocol):
    """Proposes, and learns from the outcome."""

    def distribution(self, *, sampling: bool) -> Distribution:
        """What its drafts are drawn from, in rounds with and without rows above temperature 0."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None: ...

    def forwards(self, gamma: int) -> int:
        """Model forwards that one proposal of `gamma` drafts costs; for the statistics."""

    def admit(self, rows: Tensor, tokens: Tensor, requests: Sequence[Request]) -> None:
        """Takes new requests into `rows [K]`; their prompts are `tokens [K, P]`, right-padded."""

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Reads `count` tokens from slot `start [B]` on, which rounds without drafts have written. A
        short row ends before; what is behind it there is junk that nobody will look at. Rows that are
        not active may be left out."""

    def propose(self, rows: Rows, gamma: int) -> Draft: ...

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Sees what became of its draft; `rows` is the state before the verdict is committed."""


class Rule(Protocol):
    """Decides how much of a draft is kept, and which token follows."""

    name: str
    distributions: frozenset[Distribution]  # the drafts it can verify

    def guarantee(self, distribution: Distribution) -> Guarantee: ...

    def __call__(self, rows: Rows, draft: Draft, logits: Tensor) -> Verdict:
        """`logits [B, N, V]` are processed, not yet divided by the temperature."""


@dataclass(frozen=True)
class Poll:
    """What the rounds since the host's last look came to, over all rows."""

    gamma: int
    rounds: int
    row_rounds: int  # rounds that rows took part in
    judged: int  # drafts that were kept, or the first of their row and round that was not
    accepted: int
    seconds: float
    sampling: bool = False


class Schedule(Protocol):
    """Chooses gamma for the next round from a few buckets, so that few shapes exist."""

    @property
    def buckets(self) -> tuple[int, ...]: ...

    def choose(self, *, sampling: bool) -> int:
        """Gamma until the host looks again; `sampling` where a row is above temperature 0."""

    def learn(self, poll: Poll) -> None:
        """What came of it."""
