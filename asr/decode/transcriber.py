"""Transcriber: one object for many recordings; the windows of all of them share the engine's slots.

    transcriber = Transcriber.load("tiny.en")
    for outcome in transcriber.transcribe(["samples/memo.flac"]):
        print(outcome.transcript.text)

Decode audio -> windows -> log-mel -> encoder -> engine -> tokens -> segments: a `Call` does that in the
caller's thread, as a session does for a service (`asr.decode.session`). A recording that fails does not
affect the others.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from itertools import count

from forescribe.speculative.device import choose
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.model_engines import ModelEngine, draft_device
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.requests import Stats

from ..audio.fork_server import Cutting
from ..audio.inputs import Input, Sound
from ..audio.reader_pool import ReaderPool
from ..audio.reading import open_audio, read_audio
from ..errors import UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import SAMPLE_RATE, Json, Segment, Word, seconds
from ..model.languages import read_languages
from ..model.loading import load
from ..model.presets import check_request, resolve
from ..model.speech_model import SpeechModel
from ..segment.vad import Detector
from ..segment.windows import MAX_SAMPLES
from .analysis import DetectedLanguage, align, align_window, detect_language
from .context import DecodingContext
from .options import (
    Decoded,
    FindsSpeakers,
    Follows,
    Guards,
    Hook,
    Options,
    Outcome,
    Part,
    Partial,
    Progress,
    SpeakerSearch,
)
from .outcome import settings_of
from .recording import RecordingState, WordTimer, fault, timed_segments
from .requests import BoundOptions, bind
from .session import Session
from .submission import Submission
from .text import text_of

__all__ = ["Decoded", "Hook", "Options", "Outcome", "Progress", "Transcriber"]


class Transcriber:
    """Whisper with speculative decoding, on one device.

    Calls may follow each other, but only one runs at a time: an earlier one that goes on raises UsageError.
    What a call that is stopped early has in the engine is dropped. `batch` windows are decoded at once, with
    `gamma` drafted tokens per round: 0 is plain decoding, None adapts the number to measured speed. The words
    do not depend on either. Without a draft model, drafts are copied from `Options.hint`.
    """

    readers = 0
    speakers: FindsSpeakers | None = None

    def __init__(
        self,
        whisper: SpeechModel,
        *,
        batch: int = 8,
        gamma: int | None = None,
        detector: Detector | None = None,
    ) -> None:
        self.context = DecodingContext.of(whisper, batch, gamma, detector)

    @classmethod
    @loading()
    def load(
        cls,
        model: str | None = None,
        draft: str | None = None,
        *,
        language: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch: int = 8,
        gamma: int | None = None,
        network: bool = True,
        engine: str | None = None,
        draft_dtype: str | None = None,
        quantize: str | None = None,
        modules: bool = False,
    ) -> Transcriber:
        """Load models by name: presets, hub ids or local folders, see `asr.model.presets.resolve`.

        `engine` runs the decoders: "auto", "native", "lean" or "modules"; the tokens are the same.
        `draft_dtype` is the draft's number format, which changes no token either (None: the fastest here, see
        `draft_precision`). `quantize` "int8" rounds the target's matrices to 8-bit integers, on the native
        engine alone: other words than in float32, and the same with and without drafts. With `modules` the
        models are transformers' own, to be distilled or exported, whatever engine runs them. `language`
        chooses the draft. Raises ModelError for weights that are missing or that the engine cannot run,
        DeviceError for a missing device, UsageError for a language that the model does not know.
        """
        known = read_languages(language).one
        pair = resolve(model, "none" if gamma == 0 else draft, known)
        check_request(pair.target, language, "transcribe")
        place, forward = choose(device, dtype, quantize), ModelEngine.of(engine)
        drafts = draft_device(place, draft_dtype, forward)
        whisper = load(
            pair, place, network=network, engine=forward, draft_device=drafts, modules=modules
        )
        whisper.tokens.spoken(language)
        return cls(whisper, batch=batch, gamma=gamma)

    @property
    def whisper(self) -> SpeechModel:
        return self.context.whisper

    @property
    def engine(self) -> Engine:
        return self.context.engine

    @property
    def batch(self) -> int:
        """Windows that are decoded at a time."""
        return self.context.engine.batch

    @property
    def gamma(self) -> int | None:
        """Drafted tokens per round; None adapts the number."""
        return self.context.gamma

    @property
    def detector(self) -> Detector | None:
        """The voice activity detector; None until a recording needs one."""
        return self.context.detector

    def stats(self) -> Stats:
        """The engine's statistics since the transcriber was created, with the seconds before the
        engine: `audio` (decoding audio and voice activity) and `encode`."""
        return self.context.stats()

    def set_batch(self, size: int) -> None:
        """Decode `size` windows at a time from now on, here and in what `with_readers` and `with_speakers`
        have returned; all options stay. No call may be running."""
        self.context.resize(size)

    def settings(self, options: Options) -> dict[str, Json]:
        """Models, options and versions, for reproducing a transcript."""
        return settings_of(self.context, options)

    def with_readers(self, readers: int) -> Transcriber:
        """The same model, whose calls read recordings ahead in so many processes. The transcripts are the
        same."""
        other = copy(self)
        other.readers = readers
        return other

    def with_speakers(self, speakers: FindsSpeakers) -> Transcriber:
        """The same model, whose transcripts say who speaks:
        `forescribe.diarize.speaker_finder.SpeakerFinder`."""
        other = copy(self)
        other.speakers = speakers
        return other

    def transcribe(
        self,
        sources: Iterable[Input],
        options: Options | None = None,
        hook: Hook | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes as recordings end, which need not be the order of `sources`.

        Raises UsageError immediately for a single recording in place of a list, and for options that this
        model cannot serve; errors of a recording are in its outcome. A recording whose speakers are to be
        found, and cannot be, fails.
        """
        one = isinstance(sources, str | bytes | os.PathLike | Mapping | Sound)
        if one or hasattr(sources, "__array__") or hasattr(sources, "read"):
            raise UsageError("the sources are one recording; give a list of them")
        options = options or Options()
        if self.speakers is not None:
            options = replace(options, words=True)
        bound = bind(options, self.context)
        call, pool = Call(self.context, bound), None
        if self.readers:
            pool = ReaderPool(self.readers, Cutting(options.vad, options.windows))
        return call.transcribe(sources, hook, pool=pool, speakers=self.speakers)

    def stream(self, source: Input, options: Options | None = None) -> SegmentStream:
        """Iterate over the segments of one recording as they become final, in order.

            segments = transcriber.stream("a.flac")
            for segment in segments:
                print(segment.text)
            segments.transcript.save("a.srt")

        A segment is final once its window (at most 30 s) and all before it have been decoded; together they
        are the segments of the transcript, with words where `options.words` asks for them. Leaving the loop
        drops the rest. Raises UsageError immediately as `transcribe` does; the loop raises an error of the
        recording.
        """
        bound = bind(options or Options(), self.context)
        return SegmentStream(Call(self.context, bound).stream(source))

    def detect_language(self, source: Input) -> DetectedLanguage:
        """The spoken language, `(language, probability)`: of the first window with speech in which it is not
        doubtful; else the most probable one. Raises AudioError, also where there is no speech, and UsageError
        for a model of one language."""
        return detect_language(self.context, source)

    def align(self, source: Input, text: str, language: str | None = None) -> tuple[Word, ...]:
        """The words of `text`, all that is spoken in the recording, with their times. With only a part of it
        the times are wrong; a word that is not spoken has a low probability. `language` None detects it.

        A recording of more than 30 s is transcribed first, to find where each part of the text is; it is held
        in memory, 230 MB per hour. Raises AudioError, and UsageError for special tokens and too much text.
        """
        options = Options(language=language, hint=text, vad=False, guards=Guards())
        known = bind(options, self.context).language
        samples = read_audio(source)
        if not text.strip() or not len(samples):
            return ()
        if len(samples) <= MAX_SAMPLES:
            return align_window(self.context, samples, 0, text, known)
        for _ in (segments := self.stream((samples, SAMPLE_RATE), options)):
            pass
        assert segments.transcript is not None
        return tuple(align(self.context, samples, text, segments.transcript, known))


class SegmentStream(Iterator[Segment]):
    """What `Transcriber.stream` iterates over. `transcript` is the whole result, with warnings and coverage,
    once the loop has ended; None before."""

    def __init__(self, parts: Generator[Segment | Outcome, None, None]) -> None:
        self._parts = parts
        self.transcript: Transcript | None = None

    def __next__(self) -> Segment:
        for part in self._parts:
            if isinstance(part, Segment):
                return part
            if part.error is not None:
                raise part.error
            self.transcript = part.transcript
        raise StopIteration

    def close(self) -> None:
        """Drop the rest."""
        self._parts.close()


class Call(Session):
    """A session in the caller's thread, which reads the recordings too: one after the other, when slots are
    free, so hours of audio are never in memory. A recording arrives where the one before it ends; that gives
    the order of the sources."""

    inline = True

    def __init__(self, context: DecodingContext, bound: BoundOptions) -> None:
        super().__init__(context, readers=0)
        self.bound = bound
        self._coming: Iterator[Submission] | None = None  # None once all have been pulled
        self._read_s = 0.0  # up to where the recordings have been read
        self._searched: list[_Searched] = []  # their outcomes are not yielded yet
        self._hook: Hook | None = None
        self._stats_before = Stats()

    def transcribe(
        self,
        sources: Iterable[Input],
        hook: Hook | None = None,
        *,
        pool: ReaderPool | None = None,
        speakers: FindsSpeakers | None = None,
    ) -> Iterator[Outcome]:
        """Yield outcomes as recordings end. Sources are pulled as slots become free; the words of all are
        timed together. `pool` reads them ahead, and is closed at the end. Errors of a recording are in its
        outcome; what the engine or the hook raises ends the call."""
        context, bound = self.context, self.bound
        if hook is not None:
            self._hook, self._stats_before = hook, context.slots.stats
        timer = WordTimer(context.whisper, bound.options.task, context.engine.batch, context.beside)
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
                    timer=timer,
                    progress=None if hook is None else self._window_ended,
                )
                for source in coming
            )
            for _ in self._steps():
                yield from self._outcomes()
            while self._searched:
                yield self._searched.pop(0).with_speakers()

    def stream(self, source: Input) -> Generator[Segment | Outcome, None, None]:
        """Yield the segments of one recording as they become final, in order and numbered, and last its
        outcome. Words are timed window by window."""
        context, bound, told = self.context, self.bound, _Told()
        timer = WordTimer(context.whisper, bound.options.task, 1, context.beside)
        submission = Submission(context, source, bound, told, timer=timer)
        self._coming = iter((submission,))
        with self._calling():
            for _ in self._steps():
                while told.items:
                    yield told.items.popleft()

    def _steps(self) -> Iterator[None]:
        """Decode; yields whenever something may be complete. Raises UsageError once another call has begun,
        which takes what the engine returns."""
        context = self.context
        while self._live or self._coming is not None:
            if context.caller is not self:
                raise UsageError("another call of this transcriber has begun: one runs at a time")
            self._fill_slots()
            for ended in context.slots.ended(context.engine.step()):
                self._finish(ended)
                self._handle_notes()
                yield
            self._show_partial()
            self._handle_notes()
            yield

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

    def _read_on(self) -> None:
        """Read in this thread until the next windows to be encoded are there."""
        reading = self.reading
        while self._coming is not None and len(reading.ready) < self._together:
            if not reading.readings:
                submission = next(self._coming, None)
                if submission is None:
                    self._coming = None
                    return
                self.enter(submission)
            self.context.watch.start()
            first = heapq.heappop(reading.readings)
            reading.read_window(first)
            self._read_s = first.due_s
            self.context.watch.mark("audio")

    def _outcomes(self) -> Iterator[Outcome]:
        """Those that are ready: failures, then the others in the order of their sources; then those whose
        speakers have been found."""
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

    def _window_ended(self, recording: RecordingState, decoded: Decoded) -> None:
        """Tell the hook of a window, and of the segments that are complete in order now; without words."""
        assert self._hook is not None
        spoken, error = recording.next_windows() or (), decoded.result.draft_error
        progress = Progress(
            recording.source,
            seconds(recording.done),
            recording.audio.declared_s,
            tuple(timed_segments(self.context.whisper, recording, decoded)),
            self.context.slots.stats - self._stats_before,
            tuple(s for d in spoken for s in recording.segments.get(d.start, ())),
            error and error.__cause__,
        )
        self._hook(progress)

    def _show_partial(self) -> None:
        """Show a hook that asks for it the text that is being decoded: of the first window of a recording."""
        hook, engine = self._hook, self.context.engine
        recording = next(iter(self._live)).recording if self._live else None
        if recording is None or not isinstance(hook, Follows) or not hook.wants:
            return
        if self.bound.redactor is not None:  # only what is complete is redacted
            return
        try:
            partials = [
                partial
                for partial in engine.peek()
                if getattr(partial.request.tag, "recording", None) is recording
                and not partial.request.tag.window.unheard
            ]
            if not partials:
                return
            earliest = min(partials, key=lambda partial: partial.request.tag.window.start)
            text = text_of(self.context.whisper, earliest.tokens)
        except Exception:  # partial text is only for display: decoding goes on without it
            return
        hook.follow(Partial(recording.source, text.rstrip("\ufffd")))  # an incomplete character


class _Told:
    """The listener of `Call.stream`."""

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


def _turn(submission: Submission) -> tuple[bool, float]:
    assert submission.outcome is not None
    return submission.outcome.error is None, submission.arrived_s
