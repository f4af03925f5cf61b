"""What a call gives, and what it tells while it runs.

Its hook is told `Progress`, a listener each `Part` of a recording, a tap its samples;
`PhaseTimes` are written. An `Outcome` is the result of a recording, with its windows as `Decoded` for audits.
Knows nothing of models, or of how the records are made. Import is light.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

    from forescribe.speculative.requests import Result, Stats

    from ..audio.inputs import Input
    from ..errors import ForescribeError
    from ..formats.transcript import Transcript
    from ..formats.transcript_parts import Segment, State
    from ..model.states import EncoderStates
    from ..segment.windows import Run, Samples
    from ..storage.locations import Entry
    from ..words.edits import Change


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
    # Where that is one of its segments alone: from and to in samples of the window, and why.
    doubts: tuple[tuple[int, int, str], ...] = ()
    tried: float = 0.0  # the highest temperature that was tried; the answer may be of a lower one
    continued: bool = False  # the next part of its window follows
    wordless: tuple[Run, ...] = ()  # where a voice was heard and no word written
    reach: int | None = None  # the end of its last word, where a voice goes on behind it
    # The most probable language with its probability, where the call has named one.
    heard: tuple[str, float] | None = None
    level_db: float | None = None  # of a window without a voice that is loud, against full scale
    changes: tuple[Change, ...] = ()  # of its words, by terms and replacements
    skipped: tuple[str, ...] = ()  # replacements that took too long
    # Where words were replaced: the tokens that were heard, and where the text tokens that are written,
    # and their end, lie among the text of these.
    spoken: tuple[int, ...] | None = None
    origin: tuple[float, ...] = ()

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
    # Windows, whole ones, by what became of them, and those that were decoded again at a temperature.
    windows: Mapping[State, int] = field(default_factory=dict)
    fallbacks: int = 0
    # What another machine has read: the SHA-256 of the bytes, and what the store says about them.
    content: str | None = None
    entry: Entry | None = None

    @property
    def name(self) -> str:
        """The path as it was given; what the recording is, where it has none."""
        if isinstance(self.source, str | os.PathLike):
            return str(self.source)
        from ..audio.reading import name_of

        return name_of(self.source)


@dataclass(frozen=True)
class Progress:
    """The progress of a call. `total_s` is None where the container declares no length."""

    source: Input
    done_s: float  # of this recording
    total_s: float | None
    segments: tuple[Segment, ...]  # of the window that has just ended
    stats: Stats  # of the call so far
    # New segments in order, from the start of the recording without gaps.
    spoken: tuple[Segment, ...] = ()
    draft_error: BaseException | None = None  # why the window had no drafts


Hook = Callable[[Progress], None]
"""Is told of each window that has ended."""


@dataclass(frozen=True)
class Part:
    """The next windows of a recording that have ended, in order and without gaps. Never retracted."""

    segments: tuple[Segment, ...]  # `id` is 0 and words are missing: both come with the outcome
    tokens: tuple[Token, ...]
    done_s: float  # of the recording, silence included

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class Token:
    """A token of the text. `data` are the bytes that it stands for, which may be part of a character."""

    text: str
    logprob: float
    data: bytes


class Listener(Protocol):
    """Receives the results of one recording, on the engine's thread: it must neither block nor raise."""

    def progressed(self, part: Part) -> None: ...

    def ended(self, outcome: Outcome | None) -> None:
        """Called once and last, when the source is no longer read. None where it was cancelled."""


Tap = Callable[["Samples"], None]
"""Receives the samples of a recording as they are read."""


class SpeakerSearch(Protocol):
    """Finds the speakers of one recording while it is decoded, in a thread of its own."""

    def feed(self, samples: Samples) -> None:
        """The next samples, on the thread that reads them."""

    def finish(self, transcript: Transcript, source: str) -> Future[Transcript]:
        """The transcript of the recording `source` with speakers."""

    def cancel(self) -> None: ...


class FindsSpeakers(Protocol):
    """Finds the speakers of the recordings of a call, while they are decoded."""

    def begin(self) -> AbstractContextManager[Callable[[], SpeakerSearch]]:
        """For one call; what is returned begins with a recording."""


PhaseTimes = dict[str, list[tuple[int, int]]]
"""When the parts of the phases of one recording's decoding (`encode`, `rounds`, `words`) began and ended, in
Unix nanoseconds, for traces. Windows of several recordings are encoded and decoded together, so the parts of
one include those of others in the same batch. Written by the engine's thread."""
