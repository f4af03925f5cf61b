"""Submission: one recording on its way through a session, with the windows that it is decoded in.

A submission is in two threads and has no lock: a reader's thread takes its windows out of it, the engine's
thread puts results into it; the reader only adds (windows, silence, the end), and the engine's thread only
reads what was added. In a call both are the caller's thread. Where its windows come from is a `CutWindows`:
cut in pauses here, by a plan in `asr.decode.planned`.

A window is decoded again at the next temperature where the guards reject its answer, and where an answer ends
before the voice in its window does, the rest becomes the next part of the window: `Following` says so to the
session, which distributes the slots.

Faults are contained: one in a window costs that window, which the coverage reports as failed; one in
reading costs the recording. Knows nothing of other recordings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from forescribe.speculative.errors import release
from forescribe.speculative.requests import Finish, Request, Result

from ..audio.inputs import Input
from ..audio.reading import Open, Recording, Samples, open_audio
from ..errors import CapacityError, ForescribeError, out_of_memory
from ..formats.transcript_parts import State, seconds
from ..model.speech_model import EncoderStates, SpeechModel
from ..model.whisper import attending
from ..segment.cut_plan import planned_windows
from ..segment.cutter import cut
from ..segment.windows import Window, total
from ..words.assembly import pauses
from ..words.edits import Change, replaced
from ..words.second_look import look_again
from .context import Among, DecodingContext, EncodedWindow, Ended, Fault
from .judge import (
    LAST_WORD,
    TAIL,
    Again,
    Keep,
    Rest,
    Silent,
    answer_of,
    improbable,
    judge,
    rest_of,
    wordless_of,
)
from .options import (
    Decoded,
    Judgement,
    Listener,
    Outcome,
    Part,
    PhaseTimes,
    SpeakerSearch,
    Tap,
)
from .outcome import outcome_of
from .recording import RecordingState, WordTimer, fault, reason_of, timed_segments
from .requests import BoundOptions, language_in, window_request
from .text import Stretch, segments_of, tokens_of, written
from .window import PendingWindow


@dataclass(frozen=True)
class Following:
    """What follows from a window that was encoded or answered: its request, the first or the next one, and
    windows that are to be encoded next."""

    request: Request | None = None
    windows: tuple[Window, ...] = ()


class Submission:
    """One recording on its way through a session.

    `listener` hears of it; None in a call, which yields its outcome; `progress` is told of each window that
    ends. `name` is for messages. `tap` receives its samples too, on a reader's thread; so does `search`,
    which finds its speakers. `open` opens it. `windows` says where its windows come from; None cuts them.
    `timer` times its words, together with those of other recordings that share it; None makes one of its own.
    """

    def __init__(
        self,
        context: DecodingContext,
        source: Input,
        bound: BoundOptions,
        listener: Listener | None,
        *,
        arrived_s: float = 0.0,
        name: str | None = None,
        tap: Tap | None = None,
        search: SpeakerSearch | None = None,
        open: Open | None = None,
        windows: CutWindows | None = None,
        timer: WordTimer | None = None,
        progress: Callable[[RecordingState, Decoded], None] | None = None,
    ) -> None:
        self.context, self.source, self.bound, self.listener = context, source, bound, listener
        self.name = name or Outcome(source).name
        self.arrived_s, self.search = arrived_s, search
        self._tap = tap if search is None else search.feed
        self._progress = progress
        self._open = open or partial(open_audio, name=self.name)
        self._windows = windows = windows or CutWindows(context, bound)
        self._timer = timer or WordTimer(
            context.whisper, bound.options.task, windows.timing_batch, context.beside
        )
        self.phases: PhaseTimes | None = None  # set before it is queued, if somebody reads them
        self.recording: RecordingState | None = None  # None until it has been opened
        self.in_engine: set[PendingWindow] = set()  # encoded, and not ended
        self.outcome: Outcome | None = None
        self.settled = False  # there is an outcome, or it was cancelled
        self.stopped = False  # its reader ends before the next block
        self.source_released = False  # no reader will use the source again

    def time_phases(self, phases: PhaseTimes | None) -> None:
        """Have the times of its phases written; call it before the submission is queued."""
        self.phases = self._timer.phases = phases

    # -- on a reader's thread ---------------------------------------------------------------------

    def read(self) -> Generator[Window, None, None]:
        """The windows with speech, in order. Raises what `open` and the decoder raise."""
        with self._open(self.source) as audio:
            recording = RecordingState(self.source, audio, self.name, time.perf_counter())
            self._windows.restore(recording)
            self.recording = recording
            yield from self._windows.read(recording, self._blocks(audio))

    def _blocks(self, audio: Recording) -> Iterator[Samples]:
        for block in audio.blocks():
            # Silence makes no window: without this, hours of it would be read after the recording's end.
            if self.stopped:
                raise CapacityError(f"{self.name}: its reading was stopped")
            if self._tap is not None:
                self._tap(block)
            yield block

    @property
    def fully_read(self) -> bool:
        """Whether the last window has been read."""
        return self.recording is not None and self.recording.fully_read

    # -- on the engine's thread -------------------------------------------------------------------

    def detects_language(self, window: Window) -> Among:
        """Among which languages that of a window is to be detected when it is encoded."""
        known = self.bound.language is not None or window.language is not None
        return None if known else self.bound.spoken.codes

    def encoded(self, pending: PendingWindow, encoded: EncodedWindow | Exception) -> Following:
        """A window has been encoded: its request, unless an exception has ended it. Raises as `report`
        does."""
        window, recording = pending.window, pending.recording
        known = self.bound.language or window.language
        try:
            if isinstance(encoded, Exception):
                raise encoded
            pending.language = known or language_in(recording, encoded, unheard=window.unheard)
            if self.bound.options.words and isinstance(encoded.features, Tensor):
                pending.pauses = pauses(encoded.features, window.length)
            pending.request = self._request(pending, encoded.encoder_states)
        except Exception as error:
            pending.language = known or recording.language or ""
            return self._failed(pending, error)
        self.in_engine.add(pending)
        return Following(pending.request)

    def answered(self, pending: PendingWindow, ended: Ended) -> Following:
        """The engine has returned an answer: the next request where it is rejected, else what it leaves of
        its window. Nothing follows from a window that was dropped. Raises as `report` does."""
        if pending not in self.in_engine:
            return Following()
        if isinstance(ended, Fault):
            return self._failed(pending, ended.error)
        options, states = self.bound.options, ended.request.encoder_states
        try:
            answer = answer_of(self.context.whisper, options.guards, ended, pending)
            alone = partial(self._request, pending, states, alone=True)
            verdict = judge(self.context.whisper, self.bound, pending, answer, alone)
            if isinstance(verdict, Again):
                pending.best, pending.request = verdict.best, verdict.request
                return Following(verdict.request)
            decoded, rest = self._settled(pending, verdict, ended.request)
        except Exception as error:
            return self._failed(pending, error)
        if options.words:
            pending.decoded, pending.states = decoded, states
            tail = rest is not None and total(rest.voiced or ()) < TAIL
            pending.spoken = (pending.window if tail else decoded).length
            self._timer.add(pending)
        return self._window_ended(pending, decoded, () if rest is None else (rest,))

    def _request(
        self, pending: PendingWindow, states: EncoderStates, *, alone: bool = False
    ) -> Request:
        return window_request(
            self.context,
            self.bound,
            pending,
            states,
            self._windows.hypothesis,
            alone=alone,
        )

    def report(self, ended: Decoded | None = None) -> None:
        """Tell of a window that has ended and of what is complete in order, and make the outcome when
        everything is.

        Raises what the listener or the hook raises.
        """
        recording = self.recording
        if recording is None or self.settled:
            return
        if self._progress is not None and ended is not None:
            self._progress(recording, ended)
        if self.listener is not None and (following := recording.next_windows()) is not None:
            whisper = self.context.whisper
            segments = [s for d in following for s in timed_segments(whisper, recording, d)]
            tokens = [token for d in following for token in tokens_of(whisper, d)]
            done_s = seconds(recording.done)
            self.listener.progressed(Part(tuple(segments), tuple(tokens), done_s))
        if recording.complete:
            self._timer.run()
            outcome = Outcome(recording.source)
            if self._windows.whole:
                outcome = outcome_of(self.context, self.bound, recording)
            if self.listener is not None:
                outcome = replace(outcome, decoded=tuple(recording.decoded))
            self.settle(outcome)

    def fail(self, error: ForescribeError) -> None:
        """Settle it with an error."""
        wall_s = 0.0 if self.recording is None else time.perf_counter() - self.recording.started
        self.settle(Outcome(self.source, error=error, wall_s=wall_s))

    def settle(self, outcome: Outcome | None) -> None:
        """Set the outcome, None where it is cancelled; later calls change nothing. Its windows leave
        the engine."""
        if self.settled:
            return
        self.outcome, self.settled, self.stopped = outcome, True, True
        if self.search is not None and (outcome is None or outcome.transcript is None):
            self.search.cancel()
        for pending in list(self.in_engine):
            self._drop(pending)
        if self.recording is not None:
            self._timer.forget(self.recording)

    def _settled(
        self, pending: PendingWindow, verdict: Keep | Silent, last: Request
    ) -> tuple[Decoded, Window | None]:
        """The window with the answer that was chosen, and what that leaves of it; `last` is the request that
        was answered last."""
        whisper, options, window = self.context.whisper, self.bound.options, pending.window
        beside, states, terms = self.context.beside, last.encoder_states, self.bound.terms
        changes: tuple[Change, ...] = ()
        if terms is not None and verdict.answer.judgement is not Judgement.SILENCE:
            if not window.unheard:
                own, answer = attending(whisper, "terms"), verdict.answer
                result, held = answer.result, self.context.held(answer.result.request)
                look = partial(look_again, own, pending.language, result, states, terms, held)
                looked, changes = beside(look)
                verdict = replace(verdict, answer=replace(answer, result=looked))
        rest = Rest(window.end, verdict.answer.result.tokens)
        if isinstance(verdict, Keep):
            found = rest_of(whisper, options, pending, verdict, states, beside)
            verdict, rest = (verdict, found) if isinstance(found, Rest) else (found, rest)
        decoded = decoded_of(whisper, self.bound, pending, verdict, rest, changes, last)
        pending.recording.segments[window.start] = segments_of(whisper, decoded)
        return decoded, rest.window

    def _failed(self, pending: PendingWindow, error: Exception) -> Following:
        """An exception has ended a window. Running out of memory may not happen with a smaller batch, so it
        must not look like a transcript: it fails the recording."""
        recording, window = pending.recording, pending.window
        release(error)
        self._drop(pending)
        if out_of_memory(error):
            self.fail(fault(self.name, error))
            return Following()
        recording.faults[window.start] = error
        recording.segments[window.start] = ()
        request = Request((self.context.whisper.tokens.end,))
        result = Result(request, (), (), (), Finish.CANCELLED, 0, 0, 0)
        decoded = Decoded(
            window.index,
            window.start,
            window.end,
            pending.language,
            result,
            (),
            "failed",
            reason_of(error),
            wordless=wordless_of(window.start, window.end, window.voiced, ())[0],
        )
        return self._window_ended(pending, decoded, ())

    def _window_ended(
        self, pending: PendingWindow, decoded: Decoded, rests: tuple[Window, ...]
    ) -> Following:
        recording = pending.recording
        self.in_engine.discard(pending)
        pending.end()
        recording.add(decoded)
        self._windows.ended(recording, decoded, self._timer)
        self.report(decoded)
        return Following(windows=rests)

    def _drop(self, pending: PendingWindow) -> None:
        """Remove a window from the engine; its row is free at once."""
        self.in_engine.discard(pending)
        self.context.slots.cancel(pending)
        pending.end()


def decoded_of(
    whisper: SpeechModel,
    bound: BoundOptions,
    pending: PendingWindow,
    verdict: Keep | Silent,
    rest: Rest,
    changes: tuple[Change, ...],
    last: Request,
) -> Decoded:
    """How a window has ended: with an answer of which `rest` says how much counts. `changes` of its words
    were made by terms; `last` is the request that was answered last."""
    window, result, options = pending.window, verdict.answer.result, bound.options
    language, tokens = pending.language, rest.tokens
    state: State = "decoded"
    doubt = reason = None
    parts = list[Stretch]()
    if isinstance(verdict, Keep):
        doubt, parts = verdict.doubt, written(whisper, tokens, rest.end - window.start)
        if doubt is None and parts and options.guards is not None and not window.tentative:
            doubt = improbable(whisper, language, tokens, result.logprobs)
    else:
        state, reason = "failed" if verdict.failed else "silent", verdict.reason
    wordless, reach = rest.wordless, rest.reach
    if reach is None and reason != LAST_WORD:
        wordless, reach = wordless_of(window.start, rest.end, window.voiced, parts)
        reach = reach if state == "decoded" else None
    request = replace(result.request, encoder_states=None, tag=None)
    result = replace(result, request=request, probe=result.probe[:1])
    edited = None
    if bound.replacements is not None or bound.redactor is not None:
        edited = replaced(
            whisper, language, result, tokens, bound.replacements, changes, bound.redactor
        )
        result, tokens, changes = edited.result, edited.tokens, edited.changes
    states = verdict.answer.result.request.encoder_states
    return Decoded(
        index=window.index,
        start=window.start,
        end=rest.end,
        language=language,
        result=result,
        tokens=tokens,
        state=state,
        reason=reason,
        encoder_states=states if options.keep_encoder_states else None,
        doubt=doubt,
        tried=last.temperature,
        continued=rest.window is not None,
        wordless=wordless,
        reach=reach,
        heard=_heard(whisper, verdict.answer.result),
        level_db=window.level_db,
        changes=changes,
        skipped=() if edited is None else edited.skipped,
        spoken=None if edited is None else edited.spoken,
        origin=() if edited is None else edited.origin,
    )


def _heard(whisper: SpeechModel, result: Result) -> tuple[str, float] | None:
    """The most probable language by what the probe has asked for; None where it asked for none."""
    chances = result.probe[1:]
    if not (whole := math.fsum(chances)):
        return None
    best, code = max(zip(chances, whisper.tokens.languages, strict=True))
    return code, best / whole


class CutWindows:
    """Where the windows of a submission come from: cut while it is read. Other ways derive from it.

    `hypothesis` is what an earlier window has written of the next one. `timing_batch` windows have their
    words timed together; None where `ended` decides.
    """

    whole = True
    """Whether they are all of a recording, which gets a transcript when they have ended."""

    hypothesis: tuple[int, ...] = ()

    def __init__(self, context: DecodingContext, bound: BoundOptions) -> None:
        self.context, self.bound = context, bound
        self.timing_batch: int | None = context.engine.batch

    def restore(self, recording: RecordingState) -> None:
        """Put windows that were decoded earlier into a recording."""

    def read(self, recording: RecordingState, blocks: Iterator[Samples]) -> Iterator[Window]:
        """The other windows with speech, from the samples, on a reader's thread: those that the recording was
        cut into before; else cut in its pauses."""
        spans, options = recording.audio.spans, self.bound.options
        if spans is not None:
            windows = planned_windows(blocks, spans)
        else:
            detector = self.context.voice_detector()
            windows = cut(blocks, detector, options.windows, skip_silence=options.vad)
        return recording.spoken_windows(windows)

    def ended(self, recording: RecordingState, decoded: Decoded, timer: WordTimer) -> None:
        """A window has ended, on the engine's thread."""
