"""What comes back from a call: progress while it runs, and an outcome per recording.

Knows nothing of how they come about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forescribe.speculative.engine.stats import Stats
from forescribe.speculative.requests import Result

from ..audio.reading import Input
from ..errors import ForescribeError
from ..formats.transcript import Segment, State, Transcript

if TYPE_CHECKING:
    from ..model.loading import EncoderStates


@dataclass(frozen=True)
class Decoded:
    """A window, samples `start` to `end`, with what the engine wrote for it.

    `memory` is kept for audits only: an hour of a large model's would be gigabytes.
    """

    index: int
    start: int
    end: int
    language: str
    result: Result
    tokens: tuple[int, ...]  # of the result's, those that count
    state: State = "decoded"
    reason: str | None = None  # why its text does not count, where it does not
    encoder_states: EncoderStates | None = None
    doubt: str | None = None  # why the guards refused its text, where it was kept nevertheless

    @property
    def length(self) -> int:
        """Samples."""
        return self.end - self.start


@dataclass(frozen=True)
class Outcome:
    """What became of one recording: a transcript, or the reason why there is none."""

    source: Input
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    wall_s: float = 0.0  # from its first block to its last word, beside the others
    decoded: tuple[Decoded, ...] = ()  # with `Options.keep_encoder_states`

    @property
    def name(self) -> str:
        """The path as it was given; audio that came as bytes has none."""
        return "<bytes>" if isinstance(self.source, bytes) else str(self.source)


@dataclass(frozen=True)
class Progress:
    """How far a call has come. `total_s` is None where a container declares no length."""

    source: Input
    done_s: float  # of this recording
    total_s: float | None
    segments: tuple[Segment, ...]  # of the window that has just ended
    stats: Stats  # of the call so far
    spoken: tuple[Segment, ...] = ()  # new at the recording's beginning: in order, none left out


@dataclass(frozen=True)
class Partial:
    """Text of a window that is being decoded, the first of its recording that is. It may change."""

    source: Input
    text: str


@runtime_checkable
class Follows(Protocol):
    """A hook that wants to see text while it is being decoded too. Looking costs a wait for the device,
    so it says when it wants to."""

    @property
    def wants(self) -> bool: ...

    def follow(self, partial: Partial) -> None: ...


Hook = Callable[[Progress], None]
