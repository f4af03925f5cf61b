"""Session: the one driver of an engine. Recordings share its slots, in a thread or in the caller's.

    session = Session(transcriber.context)
    threading.Thread(target=session.run).start()        # the one thread that uses the model
    submission = session.submit("memo.flac", Options(), listener)
    session.cancel(submission)

Slots are shared by window, not by recording. A window is decoded in order of its *due time*: the time
when its recording arrived, plus the position in it where the window starts. So a short upload passes an
hour that came before it, and the hour still progresses at real time or faster, however many short ones
follow. Knows nothing of HTTP.

`Session(context, readers=0).transcribe(sources, bound)` does the same in the calling thread, which reads the
recordings too: one after the other, when slots are free, so hours of audio are never in memory. A recording
arrives where the one before it ends; that gives the order of the sources.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count

from forescribe.speculative.stats import Stats

from ..audio.inputs import Input
from ..audio.reader_pool import ReaderPool
from ..audio.reading import open_audio
from ..errors import CapacityError, UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import Segment
from .context import DecodingContext, EncodedWindow, Ended, encode_windows
from .options import Hook, Options, Outcome, PhaseTimes
from .parts import Part, ProgressReporter
from .read_ahead import Note, QueuedWindow, ReadAhead
from .recording import fault
from .submission import CutWindows, FindsSpeakers, Listener, SpeakerSearch, Submission, Tap
from .window_requests import BoundOptions, bind
from .word_timer import WordTimer

LOG = logging.getLogger(__name__)

STATS_S = 5.0
"""How old `Session.stats` may be. Reading the statistics waits for the device, and releases what its
stopwatches hold."""


class _Told:
    """The listener of `Session.stream`."""

    def __init__(self) -> None:
        self.items: deque[Segment | Outcome] = deque()
        self._numbers = count()

    def progressed(self, part: Part) -> None:
        self.items += [replace(s, id=next(self._numbers)) for s in part.segments]

    def ended(self, outcome: Outcome | None) -> None:
        self.items += [outcome] if outcome is not None else []


@dataclass(frozen=True)
class _Searched:
    """An outcome of a call whose speakers are being found."""

    outcome: Outcome
    search: SpeakerSearch
    found: Future[Transcript]
    began_s: float  # when its recording began to be read, `time.perf_counter`

    def with_speakers(self) -> Outcome:
        """Without speakers a transcript would look as if no speaker had been recognised: it fails then."""
        outcome = self.outcome
        try:
            wall_s = time.perf_counter() - self.began_s
            return replace(outcome, transcript=self.found.result(), wall_s=wall_s)
        except Exception as error:
            failure = fault(f"{outcome.name}: finding its speakers", error)
            return replace(outcome, transcript=None, error=failure)


class Session:
    """Shares a model among recordings. `run` owns the engine's thread; `submit`, `enter`, `cancel`, `close`
    and the attributes `stats` and `standing_s` are for any thread.

    `readers` threads decode audio; 0 is for `transcribe`. While a session runs, nothing else may use the
    model.
    """

    def __init__(
        self,
        context: DecodingContext,
        *,
        readers: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context, self.clock = context, clock
        if readers:
            context.voice_detector()  # loaded once, before several readers need it
        self.reading = ReadAhead(limit=2 * context.batch, threads=readers)
        self.stats = Stats()  # of all recordings so far, at most STATS_S old
        self._stats_read_s = clock()
        self._live: dict[Submission, None] = {}  # in order; guarded by `reading.changed`
        self._step_began_s: float | None = None
        self._encoded: list[QueuedWindow] = []
        self._together = context.encoded_together
        # Of `transcribe`:
        self._inline = readers == 0
        self._coming: Iterator[Submission] | None = None  # None once all have been pulled
        self._ended: list[Submission] = []  # their outcomes are not yielded yet
        self._searched: list[_Searched] = []  # neither are these
        self._read_s = 0.0  # up to where the recordings have been read
        self._taken_s = -math.inf  # when the last window that has been encoded was due

    # -- in the calling thread --------------------------------------------------------------------

    def transcribe(
        self,
        sources: Iterable[Input],
        bound: BoundOptions,
        hook: Hook | None = None,
        *,
        windows: type[CutWindows] = CutWindows,
        pool: ReaderPool | None = None,
        speakers: FindsSpeakers | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes as recordings end. Sources are pulled as slots become free; the words of all are
        timed together. `pool` reads them ahead, and is closed at the end. Errors of a recording are in its
        outcome; what the engine or the hook raises ends the call."""
        context = self.context
        progress = None if hook is None else ProgressReporter(context, hook)
        timer = WordTimer(context.whisper, bound.options.task, context.batch)
        self._together = context.encoded_together if windows.independent else 1
        coming = sources if pool is None else pool.ahead(sources)
        with ExitStack() as ends:
            ends.enter_context(nullcontext() if pool is None else pool)
            search = None if speakers is None else ends.enter_context(speakers.begin())
            ends.enter_context(self._calling())
            self._coming = (
                Submission(
                    context,
                    source,
                    bound,
                    None,
                    arrived_s=self._read_s,
                    search=None if search is None else search(),
                    open=open_audio if pool is None else pool.open,
                    windows=windows(context, bound),
                    timer=timer,
                    progress=progress,
                )
                for source in coming
            )
            while self._underway():
                for ended in context.slots.ended(context.engine.step()):
                    self._finish(ended)
                    yield from self._outcomes()
                if progress is not None and self._live:
                    progress.show_partial(next(iter(self._live)).recording)
                yield from self._outcomes()
            while self._searched:
                yield self._searched.pop(0).with_speakers()

    def stream(
        self,
        source: Input,
        bound: BoundOptions,
        windows: type[CutWindows] = CutWindows,
    ) -> Generator[Segment | Outcome, None, None]:
        """Yield the segments of one recording as they become final, in order and numbered, and last its
        outcome. Words are timed window by window."""
        context, told = self.context, _Told()
        self._together = context.encoded_together if windows.independent else 1
        timer = WordTimer(context.whisper, bound.options.task, 1)
        own = windows(context, bound)
        submission = Submission(context, source, bound, told, windows=own, timer=timer)
        self._coming = iter((submission,))
        with self._calling():
            while self._underway():
                for ended in context.slots.ended(context.engine.step()):
                    self._finish(ended)
                self._handle_notes()
                while told.items:
                    yield told.items.popleft()

    def _underway(self) -> bool:
        """Whether anything of a call is left; fills the slots for the next step. Raises UsageError once
        another call has begun, which takes what the engine returns."""
        if not self._live and self._coming is None:
            return False
        if self.context.caller is not self:
            raise UsageError("another call of this transcriber has begun: one runs at a time")
        self._fill_slots()
        return True

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """A call, whose rest is dropped at its end."""
        self.context.caller = self
        try:
            yield
        finally:  # the caller may stop at any outcome
            in_engine = any(submission.in_engine for submission in self._live)
            self._end_all(None)
            for searched in self._searched:
                searched.search.cancel()
            self._coming = None  # no cycle: what a call has made is freed with it
            if in_engine:
                self.context.slots.settle()

    def _outcomes(self) -> Iterator[Outcome]:
        """Those that are ready: failures, then the others in the order of their sources; then those whose
        speakers have been found."""
        self._handle_notes()
        ended, self._ended = self._ended, []
        for submission in sorted(ended, key=_turn):
            outcome, search = submission.outcome, submission.search
            assert outcome is not None
            if search is None or outcome.transcript is None:
                yield outcome
                continue
            began_s = time.perf_counter() - outcome.wall_s
            found = search.finish(outcome.transcript, outcome.name)
            self._searched.append(_Searched(outcome, search, found, began_s))
        for searched in [searched for searched in self._searched if searched.found.done()]:
            self._searched.remove(searched)
            yield searched.with_speakers()

    # -- from any thread --------------------------------------------------------------------------

    def submit(
        self,
        source: Input,
        options: Options,
        listener: Listener,
        *,
        name: str | None = None,
        tap: Tap | None = None,
        phases: PhaseTimes | None = None,
    ) -> Submission:
        """Queue a recording; `tap` receives its samples too, on a reader's thread, and `phases` the times
        of its phases.

        Raises UsageError for options that the model cannot serve, CapacityError once the session is
        closed; errors of the recording are in its outcome.
        """
        bound = bind(options, self.context)
        submission = Submission(
            self.context, source, bound, listener, arrived_s=self.clock(), name=name, tap=tap
        )
        submission.time_phases(phases)
        return self.enter(submission)

    def enter(self, submission: Submission) -> Submission:
        """Queue a submission that was made for this session's model. Raises CapacityError once the session
        is closed, UsageError for sequential decoding."""
        if submission.bound.options.long_form == "sequential":
            raise UsageError("a session decodes windows in parallel; it cannot be sequential")
        self._add(submission)
        return submission

    def _add(self, submission: Submission) -> None:
        with self.reading.changed:
            self.reading.add(submission)
            self._live[submission] = None

    def cancel(self, submission: Submission) -> None:
        """Free its rows before the next step; its listener is notified when the source is released."""
        self.reading.note(Note(submission))

    def close(self) -> None:
        """End `run` after its step. Recordings that are not complete fail with CapacityError; their readers
        end with the block that they read."""
        with self.reading.changed:
            for submission in list(self._live):  # the engine's thread removes those that have ended
                submission.stopped = True
        self.reading.close()

    @property
    def idle(self) -> bool:
        """Whether there is no recording."""
        with self.reading.changed:
            return not self._live

    @property
    def standing_s(self) -> float:
        """Seconds since the step under way began; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else self.clock() - began_s

    # -- on the engine's thread -------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the session is closed.

        An exception of the model fails the recordings under way, but none that come later. Raises
        BrokenError once the device has failed.
        """
        self.reading.start()
        try:
            while self.reading.wait(lambda: bool(self._encoded) or not self.context.slots.idle):
                self._step_began_s = self.clock()
                try:
                    self._step()
                except Exception as error:
                    self._end_all(error)
                self._step_began_s = None
                if self.context.engine.broken is not None:
                    raise self.context.engine.broken
        finally:
            self.close()
            self.reading.join()
            self._end_all(CapacityError("the service is stopping"))
            self._handle_notes()

    def _step(self) -> None:
        self._handle_notes()
        self._fill_slots()
        for ended in self.context.slots.ended(self.context.engine.step()):
            self._finish(ended)
        if self.clock() - self._stats_read_s >= STATS_S or self.context.slots.idle:
            self.stats, self._stats_read_s = self.context.stats(), self.clock()

    def _finish(self, ended: Ended) -> None:
        pending: QueuedWindow = ended.request.tag
        submission = pending.submission
        if submission not in self._live:  # of a call that another one has ended
            return
        _mark(submission, "rounds", time.time_ns())
        with self._contained(submission):
            following = submission.answered(pending, ended)
            if following.request is not None:
                self.context.slots.submit(following.request)  # behind the windows that wait
            self.reading.put(submission, following.windows, self._taken_s)

    def _handle_notes(self) -> None:
        for note in self.reading.take_notes():
            submission = note.submission
            submission.source_released |= note.released
            if note.error is not None:
                submission.fail(note.error)
            elif not note.released:
                submission.settle(None)
            with self._contained(submission):
                submission.report()

    @contextmanager
    def _contained(self, submission: Submission) -> Iterator[None]:
        """An exception, which is the listener's own, fails this recording and no other; in a call it is the
        hook's own, and ends the call."""
        try:
            yield
        except Exception as error:
            if self._inline:
                raise
            submission.fail(fault(submission.name, error))
        if submission.settled:
            self._release(submission)

    def _release(self, submission: Submission) -> None:
        """Tell of the end of a settled recording, once it is no longer read."""
        if not submission.source_released:
            self.reading.abandon(submission)
        if not submission.source_released or submission not in self._live:
            return
        del self._live[submission]
        if submission.listener is None:
            if submission.outcome is not None:
                self._ended.append(submission)
            return
        try:
            submission.listener.ended(submission.outcome)
        except Exception:  # the listener's own: other recordings go on
            LOG.exception("a listener failed at the end of %s", submission.name)

    def _end_all(self, error: Exception | None) -> None:
        """End all recordings with an error; None cancels them."""
        with self.reading.changed:
            live = list(self._live)
            self.reading.clear()
        self._encoded = []
        for submission in live:
            if error is None:
                submission.settle(None)
            else:
                submission.fail(fault(submission.name, error))
            self._release(submission)

    # -- windows into the engine ------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Fill the free rows with the windows that are due first."""
        while self.context.slots.free:
            if self._coming is not None and not self._encoded:
                self._read_on(self._coming)
            if self._must_encode():
                self._encode()
            elif not self._encoded:
                return
            else:
                chosen = heapq.heappop(self._encoded)
                if not chosen.submission.settled:
                    assert chosen.request is not None
                    _mark(chosen.submission, "rounds", time.time_ns())
                    self.context.slots.submit(chosen.request)

    def _read_on(self, coming: Iterator[Submission]) -> None:
        """Read in this thread until the next windows to be encoded are there."""
        while len(self.reading.ready) < self._together:
            if not self.reading.readings:
                submission = next(coming, None)
                if submission is None:
                    self._coming = None
                    return
                self._add(submission)
            self.context.watch.start()
            self._read_s = self.reading.read_next()
            self.context.watch.mark("audio")

    def _must_encode(self) -> bool:
        """Whether a window that has not been encoded is due before all that have been."""
        due_s = self.reading.next_due_s()
        return due_s is not None and not (self._encoded and self._encoded[0].due_s <= due_s)

    def _encode(self) -> None:
        """Encode the next windows of all recordings together."""
        taken = self.reading.take_windows(self._together)
        if self._inline:
            self._taken_s = taken[-1].due_s
        batch = [window for window in taken if not window.submission.settled]
        if not batch:
            return
        self.context.watch.start()
        began_ns = time.time_ns()
        detect = [pending.submission.detects_language(pending.window) for pending in batch]
        encoded = encode_windows(self.context, [pending.window for pending in batch], detect)
        self.context.watch.mark("encode")
        for submission in {window.submission for window in batch}:
            _mark(submission, "encode", began_ns)
        for pending, result in zip(batch, encoded, strict=True):
            self._queue(pending, result)

    def _queue(self, pending: QueuedWindow, encoded: EncodedWindow | Exception) -> None:
        """Queue a window for the engine, unless an exception has ended it."""
        submission = pending.submission
        if submission.settled:  # by a window before this one
            return
        with self._contained(submission):
            following = submission.encoded(pending, encoded)
            if following.request is not None:
                heapq.heappush(self._encoded, pending)
            self.reading.put(submission, following.windows, self._taken_s)


def _turn(submission: Submission) -> tuple[bool, float]:
    assert submission.outcome is not None
    return submission.outcome.error is None, submission.arrived_s


def _mark(submission: Submission, phase: str, began_ns: int) -> None:
    """A part of a phase ends now; nothing happens if nobody reads the times."""
    if submission.phases is not None:
        submission.phases.add(phase, began_ns, time.time_ns())
