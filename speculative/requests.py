"""What a caller asks of an engine and what comes back: requests and their options, results and statistics.

Knows token ids and numbers; nothing of tensors, models or slots. Impossible numbers raise RequestError with
their name and the permitted values: `check_*` are those checks, also for options of other parts. Import is
light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from enum import Enum, IntEnum
from itertools import starmap, zip_longest
from numbers import Integral, Real
from operator import add, ge, or_, sub
from typing import Any

from .errors import DecodingError, RequestError, SpeculativeError

INT64 = 2**63 - 1
ANY = float("inf")  # no upper bound, for numbers that are not stored in a tensor

# Well inside the range of float32: a logit that overflows would give NaN.
LARGEST = 1e6
HOTTEST = 1e30

MOST_BEAMS = 32  # whose slots are allocated for the longest text
MOST_PATIENCE = 10

Ranked = tuple[tuple[tuple[int, float], ...], ...]
"""For each token of a text, the most likely ones there, with their log-probabilities."""


def check_whole(
    name: str, value: Any, least: int, most: float = INT64, *, must: str | None = None
) -> None:
    """Checks for an integer from `least` to `most`; a bool is not one."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return
    bounds = f"{least} or more" if most >= INT64 else f"from {least} to {most}"
    raise RequestError(f"{name} is {_shown(value)}; it must be a whole number, {must or bounds}")


def check_real(name: str, value: Any, least: float, most: float, *, must: str) -> None:
    """Checks for a number from `least` to `most`; NaN and bools are refused."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and least <= value <= most:
        return
    raise RequestError(f"{name} is {_shown(value)}; it must be {must}")


def check_tokens(name: str, values: Any) -> None:
    """Checks for a sequence of integers from 0 up."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise RequestError(f"{name} is {_shown(values)}; it must be a tuple of token ids")
    for value in values:
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
            raise RequestError(f"{name} holds {_shown(value)}; a token id is a whole number from 0")


def check_text(name: str, value: Any) -> None:
    """Checks for a string that can be encoded: half of a surrogate pair has no bytes, so no tokens."""
    if not isinstance(value, str):
        raise RequestError(f"{name} is {_shown(value)}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise RequestError(f"{name} holds {half!a}, half of a surrogate pair") from None


def check_in_vocabulary(name: str, values: Sequence[int], size: int) -> None:
    """Checks that all `values`, which passed `check_tokens`, are below the vocabulary's `size`."""
    if values and max(values) >= size:
        raise RequestError(f"{name} holds token {max(values)}; the model has {size} tokens")


def _shown(value: object) -> str:
    """A short form: a client may send megabytes."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Sampling:
    """How a row's next token is chosen, besides its temperature. The defaults change nothing.

    Penalties change logits at every temperature; bounds restrict what is sampled from, in the order
    of transformers: temperature, top-k, top-p, min-p. Raises `RequestError` for impossible numbers.
    """

    top_k: int = 0  # keep this many of the most likely tokens; 0: all
    top_p: float = 1.0  # keep the fewest tokens that hold this much of the probability
    min_p: float = 0.0  # keep tokens at least this likely, relative to the most likely one
    repetition: float = 1.0  # above 1: tokens of prompt and text become less likely
    presence: float = 0.0  # subtracted from the logits of tokens that occur in the text
    frequency: float = 0.0  # likewise, once for each occurrence

    def __post_init__(self) -> None:
        check_whole("top_k", self.top_k, 0, must="0 (all) or more, in 64 bits")
        tiny = 5e-324  # the least number above 0
        check_real("top_p", self.top_p, tiny, 1, must="above 0, up to 1")
        check_real("min_p", self.min_p, 0, 1, must="from 0 to 1")
        bounds = f"from {1 / LARGEST:g} to {LARGEST:g}"
        check_real("repetition", self.repetition, 1 / LARGEST, LARGEST, must=bounds)
        for name in ("presence", "frequency"):
            bounds = f"a number from {-LARGEST:g} to {LARGEST:g}"
            check_real(name, getattr(self, name), -LARGEST, LARGEST, must=bounds)

    @property
    def bounded(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def penalised(self) -> bool:
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Beams:
    """Beam search as in openai/whisper (`BeamSearchDecoder`, `MaximumLikelihoodRanker`).

    The `size` most probable texts go on together, and the search ends with `candidates` that have ended. The
    best of them has the highest sum of log-probabilities, divided by its length, or with a `length_penalty`
    by ((5 + length) / 6) to that power (Wu et al. 2016). `patience` is by Kasai et al. 2022. Raises
    `RequestError` for impossible numbers.
    """

    size: int
    patience: float = 1.0
    length_penalty: float | None = None

    def __post_init__(self) -> None:
        check_whole("beam_size", self.size, 1, MOST_BEAMS)
        tiny = 5e-324  # the least number above 0
        must = f"above 0, up to {MOST_PATIENCE}"
        check_real("patience", self.patience, tiny, MOST_PATIENCE, must=must)
        if self.length_penalty is not None:
            check_real("length_penalty", self.length_penalty, 0, 1, must="from 0 to 1")
        if not self.candidates:
            raise RequestError(
                f"patience {self.patience:g} of {self.size} beams ends before the first text; "
                f"it must be above {0.5 / self.size:g}"
            )

    @property
    def candidates(self) -> int:
        """Texts that have ended, with which the search ends."""
        return round(self.size * self.patience)

    def score(self, total: float, length: int) -> float:
        """By which texts of `length` tokens are ranked, from the sum of their log-probabilities."""
        length = max(length, 1)
        if self.length_penalty is None:
            return total / length
        return float(total / ((5 + length) / 6) ** self.length_penalty)


@dataclass(frozen=True)
class Probe:
    """Requests the probabilities of some tokens after a prompt slot, from unprocessed logits.

    Whisper reads the no-speech probability and the language this way, at start-of-transcript.
    """

    slot: int
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        check_whole("the probe's slot", self.slot, 0)
        check_tokens("the probe", self.tokens)


@dataclass(frozen=True)
class Request:
    """One sequence to decode. Raises `RequestError` for impossible numbers.

    A `guess` is what the answer is expected to begin with, e.g. the answer to nearly the same request. The
    target reads it together with the prompt, and the answer begins with the longest part that is what it
    would have written, so a right guess costs no rounds and a wrong one changes nothing. It needs
    temperature 0."""

    prompt: tuple[int, ...]
    encoder_states: Any = None  # read besides tokens (`types.Embedded`); passed on unchanged
    max_new_tokens: int | None = None  # None: up to the model's last position
    temperature: float = 0.0
    sampling: Sampling = Sampling()
    ranks: int = 0  # how many of the most likely tokens are reported at each position
    seed: int = 0
    gamma: int | None = None  # the most drafts per round; None: as the schedule chooses
    hint: tuple[int, ...] = ()  # text that the answer may repeat: a lookup drafter searches it too
    guess: tuple[int, ...] = ()  # how the answer may begin: verified with the prompt, see above
    probe: Probe | None = None
    beams: Beams | None = None  # None: the most probable token, or one that is drawn
    tag: Any = None  # the caller's own key

    def __post_init__(self) -> None:
        check_tokens("the prompt", self.prompt)
        if not self.prompt:
            raise RequestError("a request needs at least one prompt token")
        check_tokens("the hint", self.hint)
        check_tokens("the guess", self.guess)
        if self.guess and self.temperature:
            raise RequestError(
                f"a guess is verified at temperature 0 only, and the temperature is {self.temperature}"
            )
        if self.beams is not None and (self.guess or self.temperature):
            raise RequestError("beams have neither a guess nor a temperature above 0")
        check_real("temperature", self.temperature, 0, HOTTEST, must=f"from 0 to {HOTTEST:g}")
        check_whole("ranks", self.ranks, 0, ANY)
        for name in ("max_new_tokens", "gamma"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value, 0, ANY)
        check_whole("seed", self.seed, -INT64 - 1, must="of 64 bits with a sign")
        if self.probe is not None and self.probe.slot >= len(self.prompt):
            raise RequestError(f"probe slot {self.probe.slot} is behind the prompt")


@dataclass(frozen=True)
class Mode:
    """The features that a round computes. Static, so a part of its shape: unused ones cost nothing."""

    sampling: bool = False  # a row is above temperature 0: tokens are drawn, those of drafts too
    bounded: bool = False  # a sampled row has top-k, top-p or min-p
    penalised: bool = False  # a row has penalties
    ranked: bool = False  # a row reports the most likely tokens of each position

    def covers(self, other: Mode) -> bool:
        """Whether rounds of this mode compute everything that those of the other do."""
        return all(map(ge, astuple(self), astuple(other)))

    def __or__(self, other: Mode) -> Mode:
        """The smallest mode that covers both."""
        return Mode(*map(or_, astuple(self), astuple(other)))

    @staticmethod
    def of(requests: Iterable[Request]) -> Mode:
        """The smallest mode that covers these requests."""
        sampling = bounded = penalised = ranked = False
        for request in requests:
            sampled, own = request.temperature > 0, request.sampling
            sampling |= sampled
            bounded |= sampled and own.bounded
            penalised |= own.penalised
            ranked |= request.ranks > 0
        return Mode(sampling, bounded, penalised, ranked)


class Source(IntEnum):
    """Where a token comes from."""

    PROMPT = 0
    ACCEPTED = 1  # drafted, and kept by the target
    CORRECTION = 2  # the target's own token after a rejection
    BONUS = 3  # the target's own token after full acceptance
    PLAIN = 4  # the target's own token in a round without drafts
    GUESSED = 5  # of the request's guess, and kept by the target


class Finish(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # the end-of-text token
    LENGTH = "length"  # the budget, or the model's last position
    CANCELLED = "cancelled"
    FAILED = "failed"  # `Result.error` has the reason; the tokens are those written before


@dataclass(frozen=True)
class Partial:
    """New tokens of a sequence that is being decoded, from token `begin` of its text on. They are final."""

    request: Request
    begin: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranked: Ranked


@dataclass(frozen=True)
class Result:
    """One decoded sequence. `tokens` excludes the prompt and includes end-of-text where it came.

    `draft_error` is a fault of the drafter: from there on the sequence was decoded without drafts. Its tokens
    are the same.
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
    error: SpeculativeError | None = None  # set exactly where `finish` is FAILED
    draft_error: DecodingError | None = None

    def __post_init__(self) -> None:
        assert (self.error is not None) == (self.finish is Finish.FAILED)
        assert len(self.tokens) == len(self.logprobs) == len(self.sources)
        assert 0 <= self.accepted <= self.drafted


@dataclass(frozen=True)
class Stats:
    """Counts and seconds of a stretch of decoding. Two stretches can be added and subtracted.

    `acceptance_rate` is accepted / drafted; `mean_acceptance_length` is tokens per row and round,
    the target's own token included (vLLM's convention). The counters on the device are `rows.Counters`.
    """

    rounds: int = 0  # rounds of the whole batch
    row_rounds: int = 0  # rounds that rows took part in: `rounds` times the mean occupancy
    emitted: int = 0
    drafted_at_depth: tuple[int, ...] = ()
    accepted_at_depth: tuple[int, ...] = ()
    target_forwards: int = 0
    draft_forwards: int = 0
    faults: int = 0  # exceptions in models, drafters, rules and schedules, repeated ones included
    draft_faults: int = 0  # those of drafters: the words stay, and speed is lost
    seconds: dict[str, float] = field(default_factory=dict)  # by stage; empty where not measured

    @property
    def drafted(self) -> int:
        return sum(self.drafted_at_depth)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at_depth)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds of a row; 0 where no round was run."""
        return 1 + self.accepted / self.row_rounds if self.row_rounds else 0.0

    @property
    def acceptance_at_depth(self) -> tuple[float, ...]:
        """Share of submitted drafts kept, by depth; the chain before it must have been kept too."""
        pairs = zip(self.accepted_at_depth, self.drafted_at_depth, strict=True)
        return tuple(a / d if d else 0.0 for a, d in pairs)

    def __add__(self, other: Stats) -> Stats:
        return self._merge(other, add)

    def __sub__(self, other: Stats) -> Stats:
        return self._merge(other, sub)

    def _merge(self, other: Stats, combined: Callable[[Any, Any], Any]) -> Stats:
        merged: dict[str, Any] = {}
        for name, mine in vars(self).items():
            theirs = getattr(other, name)
            if isinstance(mine, tuple):  # by depth
                pairs = zip_longest(mine, theirs, fillvalue=0)
                merged[name] = tuple(starmap(combined, pairs))
            elif isinstance(mine, dict):  # by stage
                stages = sorted(mine.keys() | theirs.keys())
                merged[name] = {s: combined(mine.get(s, 0.0), theirs.get(s, 0.0)) for s in stages}
            else:
                merged[name] = combined(mine, theirs)
        return Stats(**merged)

    def to_dict(self) -> dict[str, object]:
        """All fields and the derived rates, for JSON."""
        return vars(self) | {
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_at_depth": self.acceptance_at_depth,
        }
