"""Transcriber: one object for many recordings; the windows of all of them share the engine's slots.

    transcriber = Transcriber.load("tiny.en")
    for outcome in transcriber.transcribe(["samples/memo.flac"]):
        print(outcome.transcript.text)

Decode audio -> windows -> log-mel -> encoder -> engine -> tokens -> segments: what a call does is
`Session.transcribe` (`asr.decode.session`). A recording that fails does not affect the others.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from forescribe.speculative.device import choose
from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.drafters.script import Breaks, ScriptDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.model_engines import ModelEngine, draft_device
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.protocols import Drafter
from forescribe.speculative.stats import Stats
from forescribe.speculative.transfers import Stopwatch

from ..audio.fork_server import Cutting
from ..audio.inputs import Input, Sound
from ..audio.reader_pool import ReaderPool
from ..audio.reading import read_audio
from ..errors import UsageError
from ..formats.transcript import Transcript
from ..formats.transcript_parts import SAMPLE_RATE, Json, Segment, Word
from ..model.loading import load
from ..model.presets import resolve
from ..model.tokens import language_codes, only_language
from ..model.vocabulary import alphabetic
from ..model.whisper import LogMel, Whisper
from ..segment.vad import Detector
from ..segment.windows import MAX_SAMPLES
from .analysis import DetectedLanguage, align, align_window, detect_language
from .context import DecodingContext, IsolatedEngine
from .options import Decoded, Guards, Hook, Options, Outcome, Progress
from .outcome import settings_of
from .rules import NoSpeech, whisper_rules
from .sequential import SequentialWindows
from .session import Session
from .submission import CutWindows, FindsSpeakers
from .window_requests import SCRIPT_SLOTS, bind

__all__ = ["Decoded", "Hook", "Options", "Outcome", "Progress", "Transcriber"]

ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Marks at the end of a sentence, of Chinese and Japanese too."""


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
        whisper: Whisper,
        *,
        batch: int = 8,
        gamma: int | None = None,
        detector: Detector | None = None,
    ) -> None:
        self._before = Stats()
        self.context = _context(whisper, batch, gamma, detector)

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
        pair = resolve(model, "none" if gamma == 0 else draft, only_language(language))
        place, forward = choose(device, dtype, quantize), ModelEngine.of(engine)
        drafts = draft_device(place, draft_dtype, forward)
        whisper = load(
            pair, place, network=network, engine=forward, draft_device=drafts, modules=modules
        )
        for code in language_codes(language):
            whisper.tokens.language(code)
        return cls(whisper, batch=batch, gamma=gamma)

    @property
    def whisper(self) -> Whisper:
        return self.context.whisper

    @property
    def engine(self) -> Engine:
        return self.context.engine

    @property
    def batch(self) -> int:
        """Windows that are decoded at a time."""
        return self.context.batch

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
        if "context" not in vars(self):  # there was no memory for it
            return self._before
        return self._before + self.context.stats()

    def set_batch(self, size: int) -> None:
        """Decode `size` windows at a time from now on; all options stay. No call may be running."""
        old = self.context
        self._before, whisper, gamma, detector = self.stats(), old.whisper, old.gamma, old.detector
        del self.context, old  # its slots must be freed before new ones are made
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.context = _context(whisper, size, gamma, detector)

    def settings(self, options: Options) -> dict[str, Json]:
        """Models, options and versions, for reproducing a transcript."""
        return settings_of(self.context, options)

    def with_readers(self, readers: int) -> Transcriber:
        """The same model, whose calls read recordings ahead in so many processes. The transcripts are the
        same."""
        return self._with(readers=readers)

    def with_speakers(self, speakers: FindsSpeakers) -> Transcriber:
        """The same model, whose transcripts say who speaks:
        `forescribe.diarize.speaker_finder.SpeakerFinder`."""
        return self._with(speakers=speakers)

    def _with(self, **settings: Any) -> Transcriber:
        other = copy(self)
        vars(other).update(settings)
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
        windows, pool = _windows(options), None
        if self.readers:
            cut = Cutting(options.vad, options.windows) if windows.independent else None
            pool = ReaderPool(self.readers, cut)
        session = Session(self.context, readers=0)
        return session.transcribe(
            sources, bound, hook, windows=windows, pool=pool, speakers=self.speakers
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
        session = Session(self.context, readers=0)
        return SegmentStream(session.stream(source, bound, _windows(bound.options)))

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


def _windows(options: Options) -> type[CutWindows]:
    return SequentialWindows if options.long_form == "sequential" else CutWindows


def _context(
    whisper: Whisper, batch: int, gamma: int | None, detector: Detector | None
) -> DecodingContext:
    """What the windows of all calls share. Where shapes are compiled, every one is now, before there is work
    that would wait for it."""
    engine = _engine(whisper, batch, gamma)
    context = DecodingContext(
        whisper=whisper,
        engine=engine,
        slots=IsolatedEngine(engine),
        mels=tuple(LogMel(each, whisper.device.torch) for each in whisper.extractors),
        no_speech=NoSpeech.of(whisper.target.generation_config),
        watch=Stopwatch(whisper.device),
        gamma=gamma,
        detector=detector,
    )
    if whisper.device.static_shapes:
        engine.warm_up()
    return context


def _engine(whisper: Whisper, batch: int, gamma: int | None) -> Engine:
    """The engine that decodes a pair."""
    generation, config = whisper.target.generation_config, whisper.target.config
    drafter = None if gamma == 0 else _drafter(whisper, gamma)
    engine = Engine(
        whisper.decoder(),
        drafter,
        batch=batch,
        eos=whisper.tokens.ends,
        schedule=schedule_for(gamma, drafter),
        processors=whisper_rules(generation, config, whisper.device.torch),
        device=whisper.device,
    )
    engine.choose_threads()
    return engine


def _drafter(whisper: Whisper, gamma: int | None) -> Drafter:
    """The drafter of a pair: its draft models, or without any copies from the text that a request brings.

    Joined in one round they gain little: n-grams of the text so far write 1.00 to 1.12 tokens per round of
    speech, and a text that is right in every word takes the 4.81 of a draft model to 5.25
    (docs/methods/free-drafts.md).
    """
    return _models(whisper, gamma) or ScriptDrafter(
        slots=SCRIPT_SLOTS,
        special_from=whisper.tokens.end,
        breaks=_breaks(whisper),
        early=whisper.device.synchronous,
    )


def _models(whisper: Whisper, gamma: int | None) -> Drafter | None:
    if not whisper.drafts:
        return None
    # The token rules are not applied to drafts: they cost as much as a small draft model's forward
    # pass, and a distilled draft model has learnt what the rules allow.
    confidence = confidence_for(gamma, whisper.device)
    drafters = [
        ModelDrafter(draft.decoder(index), confidence=confidence)
        for index, draft in enumerate(whisper.drafts)
    ]
    if len(drafters) == 1:
        return drafters[0]
    return RoutingDrafter(
        drafters,
        lambda request: request.encoder_states.chosen,
        skips=whisper.device.synchronous,
    )


def _breaks(whisper: Whisper) -> Breaks:
    """Where Whisper writes timestamps that a text lacks: behind the ends of sentences."""
    vocabulary = whisper.tokenizer.get_vocab()
    ends = tuple(map(alphabetic, ENDS))
    after = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
    after[[number for name, number in vocabulary.items() if name.endswith(ends)]] = True
    return Breaks(after, none=whisper.tokens.no_timestamps)
