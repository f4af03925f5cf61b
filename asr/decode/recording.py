"""A recording that is being decoded: its windows, how each of them ended, and what a transcript says of that.

`RecordingState` holds the windows from the first to the last. The functions below it make coverage,
statistics, warnings and messages of them. Knows nothing of models or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from forescribe.speculative.engine.context import release

from ..audio.inputs import Input
from ..audio.reading import Recording
from ..errors import AudioError, CapacityError, ForescribeError, clipped, out_of_memory
from ..formats.transcript_parts import (
    PLACES,
    Coverage,
    Json,
    Notice,
    Segment,
    Span,
    Word,
    seconds,
)
from ..segment.windows import Run, Window, total
from ..words import splitting
from ..words.borders import Pause
from .options import Decoded


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


REASON_LENGTH = 500
"""The most characters of a reason: exceptions quote what they were given."""

DOUBTFUL = 0.5
"""Below this probability a detected language is doubtful. Measured with whisper-base on 248 cuts of human
voices, clean and in noise: 8 of 9 wrong languages and 8 of 239 right ones were below it (docs/transcribe.md).
"""

UNWRITTEN = "a voice, and the model wrote no words"

TEXTS = 10
"""The most texts that were left out and are quoted."""


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


def coverage(done: Sequence[Decoded], silent: Iterable[Window]) -> Coverage:
    spans = [span for d in done for span in _spans(d)]
    spans += [Span(w.start, w.end, "silent", "no voice activity") for w in silent]
    wordless = sum(total(d.wordless) for d in done)
    return Coverage(tuple(sorted(spans, key=lambda span: span.start_sample)), wordless)


def _spans(decoded: Decoded) -> list[Span]:
    """A window in the coverage: decoded up to its last word, where a voice goes on behind that."""
    start, end, reach = decoded.start, decoded.end, decoded.reach
    if reach is None:
        return [Span(start, end, decoded.state, decoded.reason or decoded.doubt)]
    lost = Span(reach, end, "failed", UNWRITTEN)
    return [Span(start, reach, "decoded", decoded.doubt), lost] if start < reach else [lost]


def stats(done: Sequence[Decoded], wall: float) -> dict[str, Json]:
    """Statistics of a recording, counted by row, so that they do not depend on the rest of the batch."""
    results = [d.result for d in done]
    rounds, drafted, accepted = (
        sum(getattr(r, name) for r in results) for name in ("rounds", "drafted", "accepted")
    )
    guarantees: list[Any] = sorted({r.guarantee.value for r in results})
    return {
        "windows": len(results),
        "tokens": sum(len(r.tokens) for r in results),
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        **splitting.stats([r.sources for r in results]),
        "guarantees": guarantees,
        "wall_s": wall,
    }


# -- warnings -----------------------------------------------------------------------------------------


def mixed(done: Iterable[Decoded], language: str | None) -> list[Notice]:
    """A warning for windows in a language other than the recording's."""
    languages = {d.language for d in done if d.state != "failed"} - {language}
    if not languages:
        return []
    text = f"some windows are in another language: {', '.join(sorted(languages))}"
    return [Notice("mixed_languages", text)]


def uncertain(segments: Sequence[Segment], language: str, probability: float) -> list[Notice]:
    """A warning for text in a detected language that is hardly more probable than the others."""
    if not segments or probability >= DOUBTFUL:
        return []
    text = (
        f"the language was detected as {language} with a probability of {probability:.2f}: if that is "
        "wrong, so is the text; name the language (--language)"
    )
    return [Notice("doubtful_language", text)]


def dropped(done: Iterable[Decoded], text_of: Callable[[Decoded], str]) -> list[Notice]:
    """Warnings for text that was decoded but left out: one for each of the first windows, and one for the
    rest."""
    texts = [(d, text) for d in done if d.state != "decoded" and (text := text_of(d).strip())]
    notices = [
        Notice("dropped_text", f"{text!r} at {_span(d)} left out: {d.reason}")
        for d, text in texts[:TEXTS]
    ]
    if rest := [d for d, _ in texts[TEXTS:]]:
        message = f"more text left out at {_listed([_span(d) for d in rest])}"
        notices.append(_notice("dropped_text", message, rest))
    return notices


def failed(done: Sequence[Decoded]) -> list[Notice]:
    """A warning for windows whose decoding failed."""
    lost = [d for d in done if d.state == "failed"]
    if not lost:
        return []
    text = (
        f"no text for {_places(lost)}: decoding failed there; transcribe the recording again, or name the "
        "language"
    )
    return [_notice("failed_windows", text, lost)]


def wordless(done: Iterable[Decoded]) -> list[Notice]:
    """A warning for voice without words in windows whose text counts; the others have warnings of their
    own."""
    runs = [run for d in done if d.state == "decoded" for run in d.wordless]
    if not runs:
        return []
    places = _listed([f"{seconds(a):.1f} to {seconds(b):.1f} s" for a, b in runs])
    text = (
        f"{seconds(total(runs)):.1f} s sound like a voice and have no words: {places}; listen to them, name "
        "the language, or use a larger model"
    )
    starts = tuple(seconds(start) for start, _ in runs[:PLACES]) if len(runs) > 1 else ()
    return [Notice("voice_without_words", text, len(runs), starts)]


def untimed(done: Iterable[Decoded], faults: Mapping[int, BaseException]) -> list[Notice]:
    """A warning for windows whose words could not be timed."""
    without = [d for d in done if d.start in faults]
    if not without:
        return []
    first = reason_of(faults[without[0].start])
    spans = _listed([_span(d) for d in without])
    text = f"no word times at {spans}: {first}; the text is complete"
    return [_notice("words_untimed", text, without)]


def undrafted(done: Iterable[Decoded]) -> list[Notice]:
    """A warning for windows that were decoded without drafts because drafting failed. The words are the
    same; decoding takes longer."""
    without = [d for d in done if d.result.draft_error is not None]
    if not without:
        return []
    spans = _listed([_span(d) for d in without])
    text = (
        f"decoded without drafts at {spans}: {without[0].result.draft_error}; the text is complete"
    )
    return [_notice("draft_failed", text, without)]


def doubtful(done: Iterable[Decoded]) -> list[Notice]:
    """A warning for windows whose text was kept although the guards rejected it at every temperature."""
    doubted = [d for d in done if d.doubt is not None]
    if not doubted:
        return []
    text = (
        f"doubtful text at {_places(doubted)}; check it against the recording, name the language, or use "
        "a larger model"
    )
    return [_notice("doubtful_text", text, doubted)]


def _notice(code: str, message: str, windows: Sequence[Decoded]) -> Notice:
    """A warning that applies to these windows."""
    places = tuple(seconds(d.start) for d in windows[:PLACES]) if len(windows) > 1 else ()
    return Notice(code, message, len(windows), places)


def _places(windows: Sequence[Decoded]) -> str:
    """Times with reasons; of many windows the first ones, and the total."""
    places = _listed([f"{_span(d)} ({d.reason or d.doubt})" for d in windows])
    if len(windows) == 1:
        return places
    length = seconds(sum(d.length for d in windows))
    return f"{len(windows)} windows, {length:.1f} s in all: {places}"


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - PLACES
    return ", ".join(texts[:PLACES]) + (f" and {more} more" if more > 0 else "")


def _span(decoded: Decoded) -> str:
    return f"{seconds(decoded.start):.1f} to {seconds(decoded.end):.1f} s"


def in_order(decoded: Iterable[Decoded]) -> Sequence[Decoded]:
    """Windows and their parts in the order of the recording."""
    return sorted(decoded, key=lambda window: window.start)
