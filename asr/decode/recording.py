"""A recording that is being decoded, and a window of it that has not ended.

`RecordingState` holds the windows from the first to the last and how each ended, `PendingWindow` what is
known of one on its way. Knows nothing of models or engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forescribe.speculative.errors import release
from forescribe.speculative.requests import Request, Result

from ..audio.inputs import Input
from ..audio.reading import Recording
from ..errors import AudioError, CapacityError, ForescribeError, clipped, out_of_memory
from ..formats.transcript_parts import (
    Segment,
    Word,
    seconds,
)
from ..segment.windows import Window
from ..words.borders import Pause
from .options import Decoded, Judgement

if TYPE_CHECKING:
    from ..model.whisper import EncoderStates


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

    def restore(
        self,
        decoded: Sequence[Decoded],
        words: Sequence[Sequence[tuple[Word, ...]] | None],
        language: str | None,
        language_probability: float | None,
    ) -> None:
        """Record windows that were decoded earlier, with their words, None where none were timed."""
        self.language, self.language_probability = language, language_probability
        for window, own in zip(decoded, words, strict=True):
            self.window_count += not window.continued
            self.add(window)
            if own is not None:
                self.words[window.start] = list(own)

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


@dataclass(frozen=True)
class Attempt:
    """An answer for a window that was judged."""

    result: Result
    judgement: Judgement
    reason: str | None
    rank: tuple[bool, float]  # `Guards.rank`


@dataclass(eq=False)
class PendingWindow:
    """A window with speech, from its reader to its end: the one record of it, and the tag of its requests.

    What becomes known is added: once it is encoded its `language`, the `pauses` where words are to be timed,
    and the `request` for the engine; `best`, the best answer that the guards have rejected; `decoded`, how it
    ended, with the encoder `states`, if its words are still to be timed. `end` drops what refers to it.
    """

    recording: RecordingState
    window: Window
    language: str = ""
    pauses: tuple[Pause, ...] = ()
    request: Request | None = None
    best: Attempt | None = None
    decoded: Decoded | None = None
    states: EncoderStates | None = None

    @property
    def start(self) -> int:
        return self.window.start

    @property
    def heard(self) -> bool:
        """Whether there may be a voice."""
        return self.window.voiced is None or bool(self.window.voiced)

    def end(self) -> None:
        """No cycle through a request: encoder states are freed with the window."""
        self.request = self.best = None


REASON_LENGTH = 500
"""The most characters of a reason: exceptions quote what they were given."""

DOUBTFUL = 0.5
"""Below this probability a detected language is doubtful. Measured with whisper-base on 248 cuts of human
voices, clean and in noise: 8 of 9 wrong languages and 8 of 239 right ones were below it (docs/transcribe.md).
"""


def fault(name: str, cause: BaseException) -> ForescribeError:
    """The error of the recording with this name for an exception; our own errors stay as they are."""
    release(cause)
    if isinstance(cause, ForescribeError):
        return cause
    error: ForescribeError
    if out_of_memory(cause):
        error = CapacityError(f"{name}: out of memory; try a smaller batch or a smaller model")
    else:
        text = f"{name}: {type(cause).__name__}: {cause}"
        error = AudioError(text, code="internal_error")
    error.__cause__ = cause
    return error


def reason_of(error: BaseException) -> str:
    """Why a window has no text, for the coverage."""
    if isinstance(error, ForescribeError | ArithmeticError):
        return clipped(str(error), REASON_LENGTH)
    text = clipped(" ".join(str(error).split()), REASON_LENGTH)
    return f"internal error ({type(error).__name__}: {text})"


def in_order(decoded: Iterable[Decoded]) -> Sequence[Decoded]:
    """Windows and their parts in the order of the recording."""
    return sorted(decoded, key=lambda window: window.start)
