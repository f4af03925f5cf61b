"""The results of a call: progress while it runs, and an outcome for each recording.

Records only; knows nothing of how they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forescribe.speculative.requests import Result
from forescribe.speculative.stats import Stats

from ..audio.reading import ARRAY, Input, Sound
from ..errors import ForescribeError
from ..formats.transcript import Segment, State, Transcript

if TYPE_CHECKING:
    from ..model.loading import EncoderStates
    from ..segment.windows import Run
    from ..storage.backends import Entry


@dataclass(frozen=True)
class Decoded:
    """A window, samples `start` to `end`, with the engine's answer for it.

    `encoder_states` are kept for audits only: those of an hour are gigabytes in a large model.
    """

    index: int
    start: int
    end: int
    language: str
    result: Result
    tokens: tuple[int, ...]  # the tokens of the result that count
    state: State = "decoded"
    reason: str | None = None  # why its text does not count
    encoder_states: EncoderStates | None = None
    doubt: str | None = None  # why the guards rejected its text, where it was kept anyway
    tried: float = 0.0  # the highest temperature that was tried; the answer may be of a lower one
    continued: bool = False  # the next part of its window follows
    wordless: tuple[Run, ...] = ()  # where a voice was heard and no word written
    reach: int | None = None  # the end of its last word, where a voice goes on behind it

    @property
    def length(self) -> int:
        """Samples."""
        return self.end - self.start


@dataclass(frozen=True)
class Outcome:
    """The outcome of a recording: a transcript, or an error."""

    source: Input
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    wall_s: float = 0.0  # from its first block to its last word, other recordings included
    decoded: tuple[Decoded, ...] = ()  # with `Options.keep_encoder_states`
    # What another machine has read: the SHA-256 of the bytes, and what the store says about them.
    content: str | None = None
    entry: Entry | None = None
    worker: str | None = None  # which of a fleet has transcribed it

    @property
    def name(self) -> str:
        """The path as it was given; audio given as bytes or samples has none."""
        if isinstance(self.source, bytes):
            return "<bytes>"
        in_memory = isinstance(self.source, Sound | tuple | Mapping)
        return ARRAY if in_memory else str(self.source)


@dataclass(frozen=True)
class Progress:
    """The progress of a call. `total_s` is None where the container declares no length."""

    source: Input
    done_s: float  # of this recording
    total_s: float | None
    segments: tuple[Segment, ...]  # of the window that has just ended
    stats: Stats  # of the call so far
    spoken: tuple[
        Segment, ...
    ] = ()  # new segments in order, from the start of the recording without gaps


@dataclass(frozen=True)
class Partial:
    """Text of the first window of a recording that is still being decoded. It may change."""

    source: Input
    text: str


@runtime_checkable
class Follows(Protocol):
    """A hook that also shows text while it is being decoded. Reading that text waits for the device, so
    `wants` says when it is needed."""

    @property
    def wants(self) -> bool: ...

    def follow(self, partial: Partial) -> None: ...


Hook = Callable[[Progress], None]
