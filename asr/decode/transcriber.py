"""Transcriber: one object for many recordings; the windows of all of them share the engine's slots.

    transcriber = Transcriber.load("tiny.en")
    for outcome in transcriber.transcribe(["samples/memo.flac"]):
        print(outcome.transcript.text)

Decode audio -> windows -> log-mel -> encoder -> engine -> tokens -> segments: `decoding` does that in the
caller's thread, as a session does for a service, with the same `Driver`. A recording that fails does not
affect the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from itertools import count

from forescribe.speculative.device import choose
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.model_engines import ModelEngine, draft_device
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.requests import Stats

from ..audio.fork_server import Cutting
from ..audio.inputs import Input, Resumable, Sound
from ..audio.reader_pool import ReaderPool
from ..audio.reading import open_audio, read_audio
from ..errors import UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import SAMPLE_RATE, Segment, Word, seconds
from ..model.languages import read_languages
from ..model.loading import load
from ..model.presets import BeamSize, check_request, resolve
from ..model.speech_model import SpeechModel
from ..segment.vad import Detector
from ..segment.windows import MAX_SAMPLES
from .analysis import DetectedLanguage, align, align_window, detect_language
from .context import DecodingContext, engine_of
from .driver import Driver, ReadAhead
from .options import Guards, Options
from .planned import Group, restored
from .recording import Event, Progressed, RecordingEnded, Submission, fault
from .requests import BoundOptions, bind
from .results import Decoded, FindsSpeakers, Hook, Outcome, Progress, SpeakerSearch
from .sources import resumed_source
from .window import PendingWindow
from .word_timer import WordTimer

__all__ = ["Decoded", "Hook", "Options", "Outcome", "Progress", "Transcriber"]


class Transcriber:
    """Whisper with speculative decoding, on one device.

    Calls may follow each other, but only one runs at a time: an earlier one that goes on raises UsageError.
    What a call that is stopped early has in the engine is dropped. `batch` windows are decoded at once, with
    `gamma` drafted tokens per round: 0 is plain decoding, None adapts the number to measured speed. The words
    do not depend on either. Without a draft model, drafts are copied from `Options.hint`. `beam_size` is that
    of calls whose options name none; None: the model's own, five for models up to small.
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
        beam_size: BeamSize | None = None,
    ) -> None:
        engine, searched = engine_of(whisper, batch, gamma), beam_size or whisper.beams
        self.context = DecodingContext(whisper, engine, searched, gamma, detector)

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
        beam_size: BeamSize | None = None,
    ) -> Transcriber:
        """Load models by name: presets, hub ids or local folders, see `asr.model.presets.resolve`.

        `engine` runs the decoders: "auto", "native", "lean" or "modules"; the tokens are the same.
        `draft_dtype` is the draft's number format, which changes no token either (None: the fastest here, see
        `draft_precision`). `quantize` "int8" rounds the target's matrices to 8-bit integers, on the native
        engine alone: other words than in float32, and the same with and without drafts. With `modules` the
        models are transformers' own, to be distilled or exported, whatever engine runs them. `language`
        chooses the draft. `beam_size` is that of calls which name none, None the model's own: with beams no
        draft is loaded unless one is named. Raises ModelError for weights that are missing or that the engine
        cannot run, DeviceError for a missing device, UsageError for a language that the model does not know.
        """
        known = read_languages(language).one
        Options(beam_size=beam_size)
        pair = resolve(model, "none" if gamma == 0 else draft, known, beam_size)
        check_request(pair.target, language, "transcribe")
        place, forward = choose(device, dtype, quantize), ModelEngine.of(engine)
        drafts = draft_device(place, draft_dtype, forward)
        whisper = load(
            pair, place, network=network, engine=forward, draft_device=drafts, modules=modules
        )
        whisper.tokens.spoken(language)
        return cls(whisper, batch=batch, gamma=gamma, beam_size=beam_size)

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

    def stats(self) -> Stats:
        """The engine's statistics since the transcriber was created, with the seconds before the
        engine: `audio` (decoding audio and voice activity) and `encode`."""
        return self.context.stats()

    def set_batch(self, size: int) -> None:
        """Decode `size` windows at a time from now on, here and in what `with_readers` and `with_speakers`
        have returned; all options stay. No call may be running."""
        self.context.resize(size)

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
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
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
        call = Call(self.context, bind(options, self.context), hook, self.speakers)
        if not self.readers:
            return call.transcribe(sources)
        return call.transcribe(
            sources, ReaderPool(self.readers, Cutting(options.vad, options.windows))
        )

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
        return SegmentStream(self.context, bound, source)

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
        options = Options(language=language, hint=text, vad=False, guards=Guards(), beam_size=1)
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

    def __init__(self, context: DecodingContext, bound: BoundOptions, source: Input) -> None:
        timer = WordTimer(context, bound.options.task, 1)  # window by window
        self._recording = Submission(context, source, bound, None, timer=timer)
        self._segments = _streamed(self._recording)

    @property
    def transcript(self) -> Transcript | None:
        outcome = self._recording.outcome
        return None if outcome is None else outcome.transcript

    def __next__(self) -> Segment:
        return next(self._segments)

    def close(self) -> None:
        """Drop the rest."""
        self._segments.close()


def _streamed(recording: Submission) -> Generator[Segment, None, None]:
    """The segments of a recording, numbered. Raises its error."""
    numbers = count()
    with closing(decoding(recording.context, iter((recording,)))) as events:
        for event in events:
            if isinstance(event, Progressed) and (part := recording.next_part()) is not None:
                yield from (replace(s, id=next(numbers)) for s in part.segments)
    if recording.outcome is not None and recording.outcome.error is not None:
        raise recording.outcome.error


def decoding(
    context: DecodingContext, coming: Iterator[Submission]
) -> Generator[Event | None, None, None]:
    """Decode recordings in the caller's thread, which reads them too: one after the other, when slots are
    free, so hours of audio are never in memory. Yields what happens, and None where outcomes may be handed
    out.

    A recording arrives where the one before it ends; that gives the order of the sources. Raises UsageError
    once another call has begun, which takes what the engine returns. What is left when it is closed is
    dropped.
    """
    reading = ReadAhead(limit=2 * context.engine.batch)
    driver = Driver(context, reading, behind=True)
    pulled, read_s = False, 0.0  # whether all were, and up to where they have been read
    context.caller = driver
    try:
        while driver.live or not pulled:
            if context.caller is not driver:
                raise UsageError("another call of this transcriber has begun: one runs at a time")
            while context.engine.free:
                while not pulled and driver.wants:
                    if not reading.readings:
                        recording = next(coming, None)
                        if recording is None:
                            pulled = True
                            break
                        recording.arrived_s = read_s
                        driver.add(recording)
                    context.watch.start()
                    read_s = reading.read_window()
                    context.watch.mark("audio")
                if not driver.can_fill:
                    break
                yield from driver.fill()
            for result in context.ended(context.engine.step()):
                yield from driver.answered(result)
                yield None
            yield from driver.notes()
            yield None
    finally:  # the caller may stop at any event
        in_engine = any(recording.in_engine for recording in driver.live)
        for _ in driver.end_all(None):
            pass
        if in_engine:
            context.settle()


class Call:
    """One call: its recordings share a timer of words, and its hook and search of speakers."""

    def __init__(
        self,
        context: DecodingContext,
        bound: BoundOptions,
        hook: Hook | None,
        speakers: FindsSpeakers | None,
    ) -> None:
        self.context, self.bound, self.hook, self.speakers = context, bound, hook, speakers
        self._searches = dict[Submission, SpeakerSearch]()  # of recordings without an outcome
        self._found: list[_Searched] = []  # their outcomes are not yielded yet
        self._kept = dict[Submission, tuple[Resumable, set[int]]]()  # with the windows that are

    def transcribe(
        self, sources: Iterable[Input], pool: ReaderPool | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes as recordings end. Sources are pulled as slots become free; the words of all are
        timed together. `pool` reads them ahead, and is closed at the end. Errors of a recording are in its
        outcome; what the engine or the hook raises ends the call."""
        context, ended = self.context, list[Submission]()
        self._stats_before = context.engine.stats if self.hook is not None else Stats()
        with ExitStack() as ends:
            ends.enter_context(nullcontext() if pool is None else pool)
            begin = None
            if self.speakers is not None:
                begin = ends.enter_context(self.speakers.begin())
                ends.callback(self._cancel_searches)
            coming = self._submissions(
                sources if pool is None else pool.ahead(sources), pool, begin
            )
            events = ends.enter_context(closing(decoding(context, coming)))
            for event in events:
                if isinstance(event, Progressed) and event.window is not None:
                    self._keep(event.recording)
                    self._tell(event.recording, event.window)
                elif isinstance(event, RecordingEnded):
                    ended.append(event.recording)
                elif event is None:
                    yield from self._outcomes(ended)
                    ended = []
            while self._found:
                yield self._found.pop(0).with_speakers()

    def _submissions(
        self,
        sources: Iterable[Input],
        pool: ReaderPool | None,
        begin: Callable[[], SpeakerSearch] | None,
    ) -> Iterator[Submission]:
        context = self.context
        timer = WordTimer(context, self.bound.options.task, context.engine.batch)
        for source in sources:
            search, windows = None if begin is None else begin(), None
            if isinstance(source, Resumable):
                known = restored(source.windows())
                windows = resumed_source(context, self.bound.options, known)
            recording = Submission(
                context,
                source,
                self.bound,
                None,
                tap=None if search is None else search.feed,
                open=open_audio if pool is None else pool.open,
                windows=windows,
                timer=timer,
            )
            if isinstance(source, Resumable):
                self._kept[recording] = source, {decoded.index for decoded in known.decoded}
            if search is not None:
                self._searches[recording] = search
            yield recording

    def _outcomes(self, ended: Sequence[Submission]) -> Iterator[Outcome]:
        """Those that are ready: failures, then the others in the order of their sources; then those whose
        speakers have been found."""
        for recording in sorted(ended, key=_turn):
            outcome, search = recording.outcome, self._searches.pop(recording, None)
            self._kept.pop(recording, None)
            if search is not None and (outcome is None or outcome.transcript is None):
                search.cancel()
            elif search is not None and outcome is not None and outcome.transcript is not None:
                began_s = time.perf_counter() - outcome.wall_s
                found = search.finish(outcome.transcript, outcome.name)
                self._found.append(_Searched(outcome, search, found, began_s))
                continue
            if outcome is not None:
                yield outcome
        for searched in [searched for searched in self._found if searched.found.done()]:
            self._found.remove(searched)
            yield searched.with_speakers()

    def _keep(self, recording: Submission) -> None:
        """Keep what has ended of a recording that can be resumed."""
        if recording not in self._kept or recording.complete:
            return
        source, known = self._kept[recording]
        for index in recording.kept_windows() - known:
            known.add(index)
            source.keep(Group(**vars(recording.kept((index,))), k=index).to_dict())

    def _cancel_searches(self) -> None:
        for search in (*self._searches.values(), *(searched.search for searched in self._found)):
            search.cancel()

    def _tell(self, recording: Submission, window: PendingWindow) -> None:
        """Tell the hook of a window, and of the segments that are complete in order now; without words."""
        if self.hook is None:
            return
        assert recording.audio is not None
        spoken, error = recording.next_windows() or (), window.ended.result.draft_error
        progress = Progress(
            recording.source,
            seconds(recording.done),
            recording.audio.declared_s,
            tuple(recording.timed_segments(window)),
            self.context.engine.stats - self._stats_before,
            tuple(s for pending in spoken for s in recording.segments(pending)),
            error and error.__cause__,
        )
        self.hook(progress)


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


def _turn(recording: Submission) -> tuple[bool, float]:
    outcome = recording.outcome
    return outcome is None or outcome.error is None, recording.arrived_s
