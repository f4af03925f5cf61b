"""What is asked of a live stream, and what it tells. Import is light."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..decode.options import Guards, Options
from ..errors import ForescribeError, UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import SAMPLE_RATE
from .commit import Delay, LiveWord

if TYPE_CHECKING:
    from ..decode.results import Token
    from ..segment.windows import Samples

Eagerness = Literal["low", "medium", "high", "auto"]

PATIENCE_S: dict[Eagerness, float] = {"low": 8.0, "medium": 4.0, "high": 2.0, "auto": 4.0}
"""How long a turn waits for the rest of a sentence (OpenAI's figures for semantic_vad)."""


@dataclass(frozen=True)
class TurnDetection:
    """How turns are found, as OpenAI's `server_vad` and `semantic_vad` do: one begins `prefix_s` before a
    voice, and ends when there was none for `silence_s`, whatever was said; with an `eagerness` it waits as
    long as `PATIENCE_S` says for the rest of a sentence. Raises UsageError for an impossible silence."""

    threshold: float = 0.5
    prefix_s: float = 0.3
    silence_s: float = 0.5
    eagerness: Eagerness | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.silence_s <= 30:
            raise UsageError(f"silence_s is {self.silence_s}; it must be from 0 to 30 seconds")

    @property
    def prefix(self) -> int:
        """Samples before a voice."""
        return round(self.prefix_s * SAMPLE_RATE)

    @property
    def longest_silence_s(self) -> float:
        """The silence after which a turn ends in any case."""
        if self.eagerness is None:
            return self.silence_s
        return max(self.silence_s, PATIENCE_S[self.eagerness])


@dataclass(frozen=True)
class LiveOptions:
    """How a stream is transcribed.

    `options` are those of the final text. While somebody speaks, the words so far are decoded after every
    `step_s` seconds of speech, and released as `delay` says (`asr.live.commit`). `turns` say how items are
    found; None: the caller commits. Without `guesses` every decode begins anew, for comparison: the words are
    the same. With `speech` the samples of items are told as well. Raises UsageError for an impossible step.
    """

    options: Options = field(default_factory=lambda: Options(guards=Guards()))
    step_s: float = 1.0
    delay: Delay = "medium"
    turns: TurnDetection | None = None
    guesses: bool = True
    speech: bool = False

    def __post_init__(self) -> None:
        if not 0.1 <= self.step_s <= 10:
            raise UsageError(f"step_s is {self.step_s}; it must be from 0.1 to 10 seconds")
        if self.options.redact:
            raise UsageError("live text is shown while it is decoded; it cannot be redacted")

    @property
    def threshold(self) -> float:
        """From which on a frame has a voice."""
        return TurnDetection.threshold if self.turns is None else self.turns.threshold


@dataclass(frozen=True)
class Event:
    """Something about an item, by its number; the first is 1."""

    item: int


@dataclass(frozen=True)
class SpeechStarted(Event):
    """A turn begins at `at_s` of the stream, the padding before the voice included."""

    at_s: float


@dataclass(frozen=True)
class SpeechStopped(Event):
    """A turn ends at `at_s` of the stream, the silence behind the voice included."""

    at_s: float


@dataclass(frozen=True)
class Committed(Event):
    """The item is from `start_s` to `end_s` of the stream; its text follows."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Delta(Event):
    """The next words of the item. They are not taken back; `Completed` has the final text."""

    words: tuple[LiveWord, ...]

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.words)


@dataclass(frozen=True)
class Hypothesis(Event):
    """The text of the item up to `audio_s` of the stream: `committed` was released, `tail` may change.
    `rounds` are those of this decode, `lag_s` is the age of the newest sample of it."""

    committed: str
    tail: str
    audio_s: float
    rounds: int
    lag_s: float


@dataclass(frozen=True, eq=False)
class Speech(Event):
    """A final window of the item: `samples` [T], at most half a minute, from its sample `start` on."""

    start: int
    samples: Samples


@dataclass(frozen=True)
class Completed(Event):
    """The item's transcript and its tokens, with times from the item's start, which is `start_s` of the
    stream. Of the `released` words, `contradicted` ones are not in their place in the transcript. `plain` is
    the transcript before speakers were put on it, where they were."""

    transcript: Transcript
    tokens: tuple[Token, ...]
    start_s: float
    released: int
    contradicted: int
    plain: Transcript | None = None


@dataclass(frozen=True)
class Failed(Event):
    """The item has no transcript. Words that were released stay."""

    error: ForescribeError


Tell = Callable[[Event], None]


@dataclass
class LiveStats:
    """What a stream has cost. `encoded` are windows, `rounds` those of their rows; `tentative_passes` and
    `tentative_rounds` are those before the ends of windows were certain. `words` were released in completed
    items, and `contradicted` of them are not in the transcripts."""

    passes: int = 0
    encoded: int = 0
    rounds: int = 0
    tentative_passes: int = 0
    tentative_rounds: int = 0
    words: int = 0
    contradicted: int = 0
