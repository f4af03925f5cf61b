"""RecordingState: one recording that is being decoded, from its first window to its last.

Knows which windows there are and how each of them ended; nothing of models or engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from ...audio.reading import Input, Recording
from ...formats.transcript import Segment, Word, seconds
from ...segment.pauses import Pause
from ...segment.windows import Run, Window
from ..outcome import Decoded


@dataclass(eq=False)
class RecordingState:
    """A recording with its windows so far.

    Each window ends once: as an entry of `decoded`, whatever came of it, or of `silent`. One whose answer
    was closed early ends in several parts, which are entries of their own. `segments`, `words`, `faults`
    and `timing_faults` are by the sample where a window or part starts; segments are without words,
    `words` holds those of each segment. One thread may read windows while another one adds results.
    """

    source: Input
    audio: Recording
    name: str  # for messages
    started: float
    language: str | None = None
    language_probability: float | None = None
    window_count: int = 0  # windows found so far
    fully_read: bool = False  # no window will follow
    failed: bool = False
    decoded: list[Decoded] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)  # indices of the decoded windows that have ended
    silent: list[Window] = field(default_factory=list)  # without their samples
    segments: dict[int, tuple[Segment, ...]] = field(default_factory=dict)
    words: dict[int, list[tuple[Word, ...]]] = field(default_factory=dict)
    faults: dict[int, Exception] = field(default_factory=dict)  # windows that could not be decoded
    timing_faults: dict[int, Exception] = field(default_factory=dict)  # windows without word times
    resources: ExitStack = field(default_factory=ExitStack)  # closed when decoding ends

    @property
    def complete(self) -> bool:
        """Whether every window has ended."""
        return self.fully_read and len(self.ended) + len(self.silent) == self.window_count

    @property
    def done_s(self) -> float:
        """Seconds in windows that have ended."""
        return seconds(sum(d.length for d in self.decoded) + sum(w.length for w in self.silent))

    def add(self, decoded: Decoded) -> None:
        """Record the end of a window, or of a part of one."""
        assert decoded.index not in self.ended
        self.decoded.append(decoded)
        if not decoded.continued:
            self.ended.add(decoded.index)
        assert len(self.ended) + len(self.silent) <= self.window_count

    def spoken_windows(self, windows: Iterable[Window]) -> Iterator[Window]:
        """Count the windows and yield those with speech.

        The last one is held back until the recording has been read to its end, so that its result
        completes the transcript, however long the next recording takes to open.
        """
        held: Window | None = None
        for window in windows:
            self.window_count += 1
            if not window.speech:
                self.silent.append(window)
                continue
            if held is not None:
                yield held
            held = window
        self.fully_read = True
        if held is not None:
            yield held


@dataclass(frozen=True, eq=False)
class WindowTag:
    """The tag of a window's request: samples `start` to `end` of a recording.

    `pauses` are known where words are to be timed, `voiced` are the runs with a voice, None if nothing
    listened. `window` holds the samples, for what may be left of it; None where no part follows.
    """

    recording: RecordingState
    index: int
    start: int
    end: int
    language: str
    pauses: tuple[Pause, ...] = ()
    voiced: tuple[Run, ...] | None = None
    window: Window | None = None

    @property
    def heard(self) -> bool:
        """Whether there may be a voice."""
        return self.voiced is None or bool(self.voiced)
