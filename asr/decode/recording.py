"""Submission: one recording on its way, whose windows become words, events and an outcome.

A submission is in two threads and has no lock: a reader's thread takes its windows out of it, the engine's
thread puts results into it; the reader only adds (windows, silence, the end), and the engine's thread only
reads what was added. In a call both are the caller's thread. Where its windows come from is a `WindowSource`.

A window is decoded again where its answer is rejected, and where an answer ends before the voice in its
window does, the rest becomes the next part of the window (`asr.decode.judge`). A fault in a window costs that
window, which the coverage reports as failed; one in reading costs the recording.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np
from torch import Tensor

from forescribe.speculative.errors import release
from forescribe.speculative.requests import Finish, Request, Result

from ..audio.inputs import Input
from ..audio.reading import Open, Recording, Samples, open_audio
from ..errors import AudioError, CapacityError, ForescribeError, clipped, out_of_memory
from ..formats.transcript_parts import Segment, seconds
from ..model.speech_model import SpeechModel
from ..model.states import EncoderStates
from ..model.whisper import attending
from ..segment.windows import Window, total
from ..words.assembly import pauses
from ..words.edits import Change, replaced
from ..words.second_look import look_again
from .context import DecodingContext, EncodedWindow
from .guards import Judgement
from .judge import (
    FAINT_DB,
    LAST_WORD,
    TAIL,
    Again,
    Ending,
    Rest,
    answer_of,
    improbable,
    improbable_segments,
    judge,
    rest_of,
    restored,
    wordless_of,
)
from .requests import BoundOptions, language_in, window_request
from .results import Decoded, Listener, Outcome, Part, PhaseTimes, Tap, Token
from .sources import Kept, WindowSource, cut_source
from .text import Stretch, segments_of, tokens_of, written
from .window import PendingWindow, RecordingState
from .word_timer import WordTimer


@dataclass(frozen=True, eq=False)
class Progressed:
    """More is known of a recording: a window has ended, None where only silence has been read. Where that was
    the last one of `group` of a plan, the words of all are timed."""

    recording: Submission
    window: PendingWindow | None
    group: int | None = None


@dataclass(frozen=True, eq=False)
class RecordingEnded:
    """A recording has its outcome, None where it was cancelled, and is no longer read."""

    recording: Submission


Event = Progressed | RecordingEnded


class Submission(RecordingState):
    """One recording on its way.

    `listener` hears of it; None in a call. `name` is for messages. `tap` receives its samples too, on a
    reader's thread. `open` opens it; `windows` is where its windows come from, None cuts them. `timer` times
    its words with those of other recordings; None makes one of its own. `grouped` hears of groups of a plan.

    Each window ends once: as an entry of `windows`, whatever came of it, or of `silent`. One whose answer was
    closed early ends in several parts, which are entries of their own.
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
        open: Open | None = None,
        windows: WindowSource | None = None,
        timer: WordTimer | None = None,
        grouped: Callable[[Submission, int], None] | None = None,
    ) -> None:
        super().__init__()
        self.context, self.source, self.bound, self.listener = context, source, bound, listener
        self.name, self.arrived_s = name or Outcome(source).name, arrived_s
        self._tap, self._open = tap, open or partial(open_audio, name=self.name)
        self._from = windows or cut_source(context, bound.options)
        self.grouped = grouped
        self.phases: PhaseTimes | None = None
        self.whole = self._from.whole  # whether its windows are all of a recording
        batch = None if self._from.groups else context.engine.batch
        self.timer = timer or WordTimer(context, bound.options.task, batch)
        # By the reader:
        self.window_count = 0  # windows found so far
        self.fully_read = False  # no window will follow
        self.silent: list[Window] = []  # without their samples
        self.source_released = False  # no reader will use the source again
        # By the engine's thread:
        self.in_engine: set[PendingWindow] = set()  # encoded, and not ended
        self.outcome: Outcome | None = None
        self.settled = False  # there is an outcome, or it was cancelled
        self.stopped = False  # its reader ends before the next block
        self._started = 0.0
        self._over = set[int]()  # the indices of windows that have ended with all parts
        self._next_sample = 0  # the first one that `next_windows` has not returned

    def time_phases(self, phases: PhaseTimes | None) -> None:
        """Have the times of its phases written; call it before the recording is queued."""
        self.phases = self.timer.phases = phases

    # -- on a reader's thread ---------------------------------------------------------------------

    def read(self) -> Generator[Window, None, None]:
        """The windows with speech, in order. Raises what `open` and the decoder raise.

        The last one is held back until the recording has been read to its end, so that its result completes
        the transcript, however long the next recording takes to open.
        """
        with self._open(self.source) as audio:
            self._started = time.perf_counter()
            self._restore(self._from.kept)
            self.audio, held = audio, None
            for window in self._from.read(audio, self._blocks(audio)):
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

    def _blocks(self, audio: Recording) -> Iterator[Samples]:
        for block in audio.blocks():
            # Silence makes no window: without this, hours of it would be read after the recording's end.
            if self.stopped:
                raise CapacityError(f"{self.name}: its reading was stopped")
            if self._tap is not None:
                self._tap(block)
            yield block

    def _restore(self, kept: Kept) -> None:
        """Record windows that were decoded earlier."""
        self.language, self.language_probability = kept.language, kept.language_probability
        for decoded, words in zip(kept.decoded, kept.words, strict=True):
            self.window_count += not decoded.continued
            nothing = np.zeros(0, np.float32)
            window = Window(decoded.index, decoded.start, decoded.end, True, nothing)
            known = None if words is None else list(words)
            pending = PendingWindow(self, window, decoded=decoded, words=known)
            pending.free()
            self._add(pending)

    # -- on the engine's thread -------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether every window has ended."""
        return self.fully_read and len(self._over) + len(self.silent) == self.window_count

    @property
    def done(self) -> int:
        """Samples in windows that have ended."""
        return sum(map(attrgetter("length"), (*self.decoded, *self.silent)))

    @property
    def decoded(self) -> tuple[Decoded, ...]:
        """The windows that have ended, in the order of the recording."""
        return tuple(pending.ended for pending in self.windows)

    def _add(self, pending: PendingWindow) -> None:
        """Record the end of a window, or of a part of one."""
        decoded = pending.ended
        assert decoded.index not in self._over
        insort(self.windows, pending, key=attrgetter("ended.start"))
        if not decoded.continued:
            self._over.add(decoded.index)
        assert len(self._over) + len(self.silent) <= self.window_count

    def next_windows(self) -> list[PendingWindow] | None:
        """The windows that follow those returned before, which end in any order, without silent ones; None
        where the next one has not ended."""
        ends = {silent.start: silent.end for silent in self.silent}
        ends |= {decoded.start: decoded.end for decoded in self.decoded}
        first = self._next_sample
        while self._next_sample in ends:
            self._next_sample = ends[self._next_sample]
        if self._next_sample == first:
            return None
        return [p for p in self.windows if first <= p.ended.start < self._next_sample]

    def next_part(self) -> Part | None:
        """What is complete in order and has not been told; None where nothing is."""
        if (following := self.next_windows()) is None:
            return None
        segments, tokens = list[Segment](), list[Token]()
        for pending in following:
            segments += self.timed_segments(pending)
            tokens += tokens_of(self.context.whisper, pending.ended)
        return Part(tuple(segments), tuple(tokens), seconds(self.done))

    def segments(self, pending: PendingWindow) -> tuple[Segment, ...]:
        """Those of a window, without words."""
        if pending.segments is None:  # restored: it was not decoded here
            pending.segments = segments_of(self.context.whisper, pending.ended)
        return pending.segments

    def timed_segments(self, pending: PendingWindow) -> list[Segment]:
        """Those of a window, with their words where these have been timed: then each lasts from its first to
        its last word (openai/whisper), as timestamp tokens are less exact."""
        segments, words = self.segments(pending), pending.words
        if words is None:
            return list(segments)
        timed = []
        for segment, own in zip(segments, words, strict=True):
            if own:
                end = max(map(attrgetter("end_sample"), own))
                segment = replace(segment, start_sample=own[0].start_sample, end_sample=end)
            timed.append(replace(segment, words=own))
        return timed

    def kept(self, indices: Collection[int]) -> Kept:
        """The windows of these indices as a record."""
        own = [pending for pending in self.windows if pending.ended.index in indices]
        return Kept(
            tuple(pending.ended for pending in own),
            tuple(None if pending.words is None else tuple(pending.words) for pending in own),
            self.language,
            self.language_probability,
        )

    def mark(self, phase: str, began_ns: int) -> None:
        """A part of a phase ends now."""
        if self.phases is not None:
            self.phases.setdefault(phase, []).append((began_ns, time.time_ns()))

    def encoded(self, pending: PendingWindow, encoded: EncodedWindow | Exception) -> None:
        """A window has been encoded: it has its request, unless an exception has ended it."""
        window = pending.window
        known = self.bound.language or window.language
        try:
            if isinstance(encoded, Exception):
                raise encoded
            pending.language = known or language_in(self, encoded, unheard=window.unheard)
            if self.bound.options.words and isinstance(encoded.features, Tensor):
                pending.pauses = pauses(encoded.features, window.length)
            pending.request = self._request(pending, encoded.encoder_states)
            self.in_engine.add(pending)
        except Exception as error:
            pending.language = known or self.language or ""
            self.failed(pending, error)

    def answered(self, pending: PendingWindow, result: Result) -> Window | None:
        """The engine has returned an answer: the window has its next request, or it has ended, unless it was
        dropped. What is left of it is the next part."""
        if pending not in self.in_engine:
            return None
        pending.request, options = None, self.bound.options
        if result.error is not None:
            release(result.error)
            self.failed(pending, result.error.__cause__ or result.error)
            return None
        states = result.request.encoder_states
        try:
            answer = answer_of(self.context.whisper, options.guards, result, pending)
            alone = partial(self._request, pending, states, alone=True)
            verdict = judge(self.context.whisper, self.bound, pending, answer, alone)
            if isinstance(verdict, Again):
                pending.best, pending.request = verdict.best, verdict.request
                return None
            rest = self._settled(pending, verdict, result.request)
        except Exception as error:
            self.failed(pending, error)
            return None
        self.in_engine.discard(pending)
        pending.forget_request()
        if options.words:
            pending.states = states
            tail = rest is not None and total(rest.voiced or ()) < TAIL
            pending.spoken = (pending.window if tail else pending.ended).length
            self.timer.add(pending)
        else:
            pending.free()
        self._add(pending)
        return rest

    def _request(
        self, pending: PendingWindow, states: EncoderStates, *, alone: bool = False
    ) -> Request:
        hypothesis = self._from.hypothesis
        return window_request(self.context, self.bound, pending, states, hypothesis, alone=alone)

    def _settled(self, pending: PendingWindow, ending: Ending, last: Request) -> Window | None:
        """The window has ended with the answer that was chosen; what that leaves of it. `last` is the request
        that was answered last."""
        whisper, options, window = self.context.whisper, self.bound.options, pending.window
        beside, states, terms = self.context.beside, last.encoder_states, self.bound.terms
        ending = restored(whisper, pending, ending)
        answer, changes = ending.answer, tuple[Change, ...]()
        if terms is not None and answer.judgement is not Judgement.SILENCE and not window.unheard:
            own, held = attending(whisper, "terms"), self.context.held(answer.result.request)
            held = None if ending.restored else held  # the row holds another text
            look = partial(look_again, own, pending.language, answer.result, states, terms, held)
            looked, changes = beside(look)
            ending = replace(ending, answer=replace(answer, result=looked))
        ending, rest = rest_of(whisper, options, pending, ending, states, beside)
        decoded = decoded_of(whisper, self.bound, pending, ending, rest, changes, last)
        pending.segments, pending.decoded = segments_of(whisper, decoded), decoded
        return rest.window

    def failed(self, pending: PendingWindow, error: BaseException) -> None:
        """An exception has ended a window. Running out of memory may not happen with a smaller batch, so it
        must not look like a transcript: it fails the recording."""
        release(error)
        self._drop(pending)
        if out_of_memory(error):
            self.fail(fault(self.name, error))
            return
        window, request = pending.window, Request((self.context.whisper.tokens.end,))
        result = Result(request, (), (), (), Finish.CANCELLED, 0, 0, 0)
        pending.fault, pending.segments = error, ()
        pending.decoded = Decoded(
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
        pending.free()
        self._add(pending)

    def kept_windows(self) -> set[int]:
        """The indices of windows that have ended without a fault, and whose words are timed where they are to
        be."""
        faults = (p for p in self.windows if p.fault or p.timing_fault or p.states is not None)
        return self._over - {p.ended.index for p in faults}

    def ended_group(self, pending: PendingWindow) -> int | None:
        """The group whose last missing window this was; its words are timed now."""
        for k, group in self._from.groups.items():
            if pending.ended.index in group and self._over.issuperset(group):
                self.timer.run(group)
                return k
        return None

    @property
    def wall_s(self) -> float:
        """Seconds since its first block."""
        return 0.0 if self.audio is None else time.perf_counter() - self._started

    def fail(self, error: ForescribeError) -> None:
        """Settle it with an error."""
        self.settle(Outcome(self.source, error=error, wall_s=self.wall_s))

    def settle(self, outcome: Outcome | None) -> None:
        """Set the outcome, None where it is cancelled, once. Its windows leave the engine."""
        if self.settled:
            return
        self.outcome, self.settled, self.stopped = outcome, True, True
        for pending in list(self.in_engine):
            self._drop(pending)
        self.timer.forget(self)

    def _drop(self, pending: PendingWindow) -> None:
        """Remove a window from the engine; its row is free at once."""
        self.in_engine.discard(pending)
        self.context.cancel(pending)
        pending.forget_request()


def decoded_of(
    whisper: SpeechModel,
    bound: BoundOptions,
    pending: PendingWindow,
    ending: Ending,
    rest: Rest,
    changes: tuple[Change, ...],
    last: Request,
) -> Decoded:
    """How a window has ended: with an answer of which `rest` says how much counts. `changes` of its words
    were made by terms; `last` is the request that was answered last."""
    window, result, options = pending.window, ending.answer.result, bound.options
    language, tokens = pending.language, rest.tokens
    state, reason, parts = ending.state, ending.reason, list[Stretch]()
    doubt, doubts = None, tuple[tuple[int, int, str], ...]()
    if state == "decoded":
        reason, doubt = None, reason
        parts = written(whisper, tokens, rest.end - window.start)
        if doubt is None and parts and options.guards is not None and not window.tentative:
            doubt = improbable(whisper, language, tokens, result.logprobs)
            if doubt is None:
                doubts = improbable_segments(whisper, language, parts, tokens, result.logprobs)
        faint_db = window.faint_db
        if doubt is not None and faint_db is not None and faint_db >= FAINT_DB:
            reason = f"{faint_db:.0f} dB below the loud voices, and {doubt}"
            state, doubt, parts = "silent", None, []
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
    states = ending.answer.result.request.encoder_states
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
        doubts=doubts,
        tried=last.temperature,
        continued=rest.window is not None,
        wordless=wordless,
        reach=reach,
        heard=_heard(whisper, ending.answer.result),
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


# -- faults -----------------------------------------------------------------------------------------------


REASON_LENGTH = 500
"""The most characters of a reason: exceptions quote what they were given."""


def fault(name: str, cause: BaseException) -> ForescribeError:
    """The error of the recording with this name for an exception; our own errors stay as they are."""
    release(cause)
    if isinstance(cause, ForescribeError):
        return cause
    text = f"{name}: {type(cause).__name__}: {cause}"
    error: ForescribeError = AudioError(text, code="internal_error")
    if out_of_memory(cause):
        error = CapacityError(f"{name}: out of memory; try a smaller batch or a smaller model")
    error.__cause__ = cause
    return error


def reason_of(error: BaseException) -> str:
    """Why a window has no text, for the coverage."""
    if isinstance(error, ForescribeError | ArithmeticError):
        return clipped(str(error), REASON_LENGTH)
    text = clipped(" ".join(str(error).split()), REASON_LENGTH)
    return f"internal error ({type(error).__name__}: {text})"
