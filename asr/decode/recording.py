"""A recording that is being decoded: its windows on their way, and what those that have ended have written.

`RecordingState` holds the windows from the first to the last and how each ended; a `WordTimer` times words,
of several windows in one forward pass. Knows nothing of engines.
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from forescribe.speculative.errors import release

from ..audio.inputs import Input
from ..audio.reading import Recording
from ..errors import AudioError, CapacityError, ForescribeError, clipped, out_of_memory
from ..formats.transcript_parts import Segment, Word
from ..model.speech_model import SpeechModel
from ..model.tokens import Task
from ..model.whisper import attending
from ..segment.windows import Window
from ..words.aligning import Spoken, align
from ..words.assembly import assemble_words
from ..words.timing import Beside, TokenTimes, Utterance, token_times
from .context import apply_each
from .options import Decoded, PhaseTimes
from .text import name_of, segments_of, texts_of
from .window import PendingWindow


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
    decoded: list[Decoded] = field(default_factory=list)  # in the order of the recording
    ended: set[int] = field(default_factory=set)  # indices of the decoded windows that have ended
    silent: list[Window] = field(default_factory=list)  # without their samples
    segments: dict[int, tuple[Segment, ...]] = field(default_factory=dict)
    words: dict[int, list[tuple[Word, ...]]] = field(default_factory=dict)
    faults: dict[int, Exception] = field(default_factory=dict)  # windows that could not be decoded
    timing_faults: dict[int, Exception] = field(default_factory=dict)  # windows without word times
    next_sample: int = 0  # the first one that `next_windows` has not returned
    waiting: dict[int, Decoded | Window] = field(
        default_factory=dict
    )  # behind it, by their first sample
    silent_seen: int = 0  # silent windows that wait there, or have been returned

    @property
    def complete(self) -> bool:
        """Whether every window has ended."""
        return self.fully_read and len(self.ended) + len(self.silent) == self.window_count

    @property
    def done(self) -> int:
        """Samples in windows that have ended."""
        return sum(map(attrgetter("length"), (*self.decoded, *self.silent)))

    def add(self, decoded: Decoded) -> None:
        """Record the end of a window, or of a part of one."""
        assert decoded.index not in self.ended
        insort(self.decoded, decoded, key=attrgetter("start"))
        self.waiting[decoded.start] = decoded
        if not decoded.continued:
            self.ended.add(decoded.index)
        assert len(self.ended) + len(self.silent) <= self.window_count

    def next_windows(self) -> list[Decoded] | None:
        """The windows that follow those returned before, which end in any order, without silent ones; None
        where the next one has not ended."""
        for window in self.silent[self.silent_seen :]:
            self.waiting[window.start] = window
            self.silent_seen += 1
        first, decoded = self.next_sample, list[Decoded]()
        while self.next_sample in self.waiting:
            ended = self.waiting.pop(self.next_sample)
            if isinstance(ended, Decoded):
                decoded.append(ended)
            self.next_sample = ended.end
        return None if self.next_sample == first else decoded

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


# -- what a window has written --------------------------------------------------------------------------


def timed_segments(
    whisper: SpeechModel, recording: RecordingState, decoded: Decoded
) -> list[Segment]:
    """A window's segments, with their words where these have been timed: then each lasts from its first to
    its last word (openai/whisper), as timestamp tokens are less exact."""
    segments = recording.segments.get(decoded.start)
    if segments is None:  # restored: it was not decoded here
        segments = recording.segments[decoded.start] = segments_of(whisper, decoded)
    words = recording.words.get(decoded.start)
    if words is None:
        return list(segments)
    timed = []
    for segment, own in zip(segments, words, strict=True):
        if own:
            end = max(map(attrgetter("end_sample"), own))
            segment = replace(segment, start_sample=own[0].start_sample, end_sample=end)
        timed.append(replace(segment, words=own))
    return timed


@dataclass(eq=False)
class WordTimer:
    """Times the words of decoded windows, which wait here with their encoder states: as soon as there are
    `batch`; None waits for `run`. Where timing fails, a window keeps its text and has no word times."""

    whisper: SpeechModel
    task: Task
    batch: int | None
    beside: Beside
    waiting: list[PendingWindow] = field(default_factory=list)
    phases: PhaseTimes | None = None

    def add(self, pending: PendingWindow) -> None:
        """Queue a window, and time all that wait if the batch is full."""
        self.waiting.append(pending)
        if self.batch is not None and len(self.waiting) >= self.batch:
            self.run()

    def run(self, indices: Collection[int] | None = None) -> None:
        """Time all windows that wait, or those of these indices, in their order; the others wait on."""
        began_ns, chosen = time.time_ns(), self.waiting
        self.waiting = []
        if indices is not None:
            self.waiting = [p for p in chosen if p.window.index not in indices]
            chosen = [p for p in chosen if p.window.index in indices]
            chosen.sort(key=attrgetter("window.start"))
        work = [pending for pending in chosen if pending.recording.segments[pending.window.start]]
        for pending, times in zip(work, apply_each(self._times_of, work), strict=True):
            recording = pending.recording
            try:
                if isinstance(times, Exception):
                    raise times
                recording.words[pending.window.start] = _words_of(self.whisper, pending, times)
                if pending.window.part:
                    _set_apart(recording, pending)
            except Exception as error:
                release(error)
                recording.timing_faults[pending.window.start] = error
        if self.phases is not None and chosen:
            self.phases.add("words", began_ns, time.time_ns())

    def forget(self, recording: RecordingState) -> None:
        """Drop the windows of a recording."""
        self.waiting = [p for p in self.waiting if p.recording is not recording]

    def _times_of(self, work: Sequence[PendingWindow]) -> list[TokenTimes]:
        """The times of the tokens of windows, aligned with their encoder states."""
        if not self.whisper.attends:
            return [_aligned(self.whisper, pending) for pending in work]
        utterances = []
        for pending in work:
            decoded, states = pending.decoded, pending.states
            assert decoded is not None and states is not None
            prompt, states = self.whisper.prompt(
                states, decoded.language, self.task, timestamps=False
            )
            tokens = _heard_tokens(self.whisper, pending)
            utterances.append(Utterance(states, prompt, tokens, pending.spoken))
        return token_times(attending(self.whisper, "words"), utterances, self.beside)


def _heard_tokens(whisper: SpeechModel, pending: PendingWindow) -> tuple[int, ...]:
    """The text tokens of a window that were heard: before others were written in their place."""
    decoded = pending.decoded
    assert decoded is not None
    if decoded.spoken is not None:
        return tuple(filter(whisper.tokens.is_text, decoded.spoken))
    segments = pending.recording.segments[pending.window.start]
    return tuple(token for segment in segments for token in segment.tokens)


def _aligned(whisper: SpeechModel, pending: PendingWindow) -> TokenTimes:
    """The times of the tokens that were heard, by another model."""
    decoded, tokens = pending.decoded, _heard_tokens(whisper, pending)
    assert decoded is not None
    pairs = zip(decoded.tokens, decoded.result.logprobs, strict=False)
    logprobs = [logprob for token, logprob in pairs if whisper.tokens.is_text(token)]
    if decoded.spoken is not None:
        begin = decoded.origin[:-1]
        logprobs = [logprobs[bisect_right(begin, n) - 1] for n in range(len(tokens))]
    spoken = Spoken(pending.window.samples, decoded.language, tokens, tuple(logprobs))
    times, pending.pauses = align(whisper, spoken)
    return times


def _words_of(
    whisper: SpeechModel, pending: PendingWindow, times: TokenTimes
) -> list[tuple[Word, ...]]:
    """The words of each segment of a window."""
    decoded = pending.decoded
    assert decoded is not None
    parts = texts_of(whisper, decoded)
    if decoded.spoken is not None:
        kept = [n for part in parts for n in range(part.first, part.first + len(part.tokens))]
        times = times.shared([decoded.origin[n] for n in kept], decoded.origin[kept[-1] + 1])
    # There are more sources than tokens where only the first tokens of an answer count.
    pairs = zip(decoded.tokens, decoded.result.sources, strict=False)
    sources = [name_of(source) for token, source in pairs if whisper.tokens.is_text(token)]
    return assemble_words(
        whisper.tokenizer,
        decoded.language,
        [(part.tokens, part.text) for part in parts],
        times,
        pending.pauses,  # the window may have been encoded beyond its end
        decoded.start,
        [
            source
            for part in parts
            for source in sources[part.first : part.first + len(part.tokens)]
        ],
        length=pending.spoken,
    )


def _set_apart(recording: RecordingState, pending: PendingWindow) -> None:
    """The last word before a part ends where its first word begins, if the part holds words after all."""
    start = pending.window.start
    part, before = (
        recording.words[start],
        next((d for d in recording.decoded if d.end == start), None),
    )
    earlier = [] if before is None else recording.words.get(before.start, [])
    if any(part) and any(earlier):
        border = next(own for own in part if own)[0].start_sample
        place = max(i for i, own in enumerate(earlier) if own)
        *others, last = earlier[place]
        if last.end_sample > border:
            earlier[place] = (*others, replace(last, end_sample=max(last.start_sample, border)))


# -- faults -----------------------------------------------------------------------------------------------


REASON_LENGTH = 500
"""The most characters of a reason: exceptions quote what they were given."""


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
