"""Transcriber: one object, many recordings; the windows of all of them share the engine's slots.

    transcriber = Transcriber.load("demo")
    for outcome in transcriber.transcribe(["samples/memo.flac"]):
        print(outcome.transcript.text)

Decode audio -> windows -> log-mel -> encoder -> engine -> tokens -> segments. What one call does is in
`asr.decode.call`; a recording that fails takes no other with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from forescribe.speculative.device import choose
from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.engine.stats import Stats
from forescribe.speculative.models.load_lock import loading
from forescribe.speculative.models.whisper_decoder import WhisperDecoder
from forescribe.speculative.protocols import Drafter

from ..audio.features import LogMel
from ..audio.reading import Input, Open, open_audio
from ..errors import UsageError
from ..formats.transcript import Json
from ..model.loading import Whisper, load
from ..model.presets import bundled_folder, resolve
from ..model.special_tokens import AUTO, language_code
from ..segment.vad import Detector
from .call import Call
from .isolation import Isolated
from .options import Options
from .outcome import Decoded, Hook, Outcome, Progress
from .rules import NoSpeech, whisper_rules
from .sequential import SequentialCall

__all__ = ["Decoded", "Hook", "Options", "Outcome", "Progress", "Transcriber"]


class Transcriber:
    """Whisper with speculation, on one device.

    Several calls may follow each other; one runs at a time, and what a call that is broken off has
    in the engine is dropped. `batch` windows at once, `gamma` drafts per round: 0 is plain decoding,
    None chooses by measured speed. The words are the same. Without a draft model the text so far and
    the prompt are searched for what may repeat.
    """

    def __init__(
        self,
        whisper: Whisper,
        *,
        batch: int = 8,
        gamma: int | None = None,
        detector: Detector | None = None,
    ) -> None:
        self.whisper, self.gamma = whisper, gamma
        self.detector = detector
        device = whisper.device
        self.mel = LogMel(whisper.extractor, device.torch)
        generation, config = whisper.target.generation_config, whisper.target.config
        self.no_speech = NoSpeech.of(generation)
        drafter = None if gamma == 0 else self._drafter()
        self.engine = Engine(
            WhisperDecoder(whisper.target, lambda encoder_states: encoder_states.target),
            drafter,
            batch=batch,
            eos=whisper.tokens.ends,
            schedule=schedule_for(gamma, drafter),
            processors=whisper_rules(generation, config, device.torch),
            device=device,
        )
        self.slots = Isolated(self.engine)
        if device.static_shapes:
            self.engine.warm_up()  # every shape once, before there is work to wait for it
        self.watch = device.stopwatch()

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
    ) -> Transcriber:
        """By names: presets, hub ids or local folders, as in `asr.model.presets.resolve`.

        Raises ModelError for weights that cannot be had, DeviceError for a device that is not there.
        """
        code = None if language is None else language_code(language)
        pair = resolve(model, "none" if gamma == 0 else draft, None if code == AUTO else code)
        return cls(load(pair, choose(device, dtype), network=network), batch=batch, gamma=gamma)

    @property
    def batch(self) -> int:
        return self.engine.batch

    @property
    def is_demo(self) -> bool:
        """Whether the target is the bundled one, which is for trying."""
        return self.whisper.pair.target == bundled_folder("demo")

    def stats(self) -> Stats:
        """What the engine did since the transcriber was made, with the seconds before it: audio
        (decoding and voice activity) and encode."""
        return self.engine.stats + Stats(seconds=self.watch.seconds)

    def _drafter(self) -> Drafter:
        if self.whisper.draft is None:
            return NgramDrafter()
        # The rules are not applied to drafts: they cost as much as a small draft's forward, and a
        # draft made by distillation has learnt what the rules allow.
        return ModelDrafter(
            WhisperDecoder(self.whisper.draft, lambda encoder_states: encoder_states.draft),
            confidence=confidence_for(self.gamma, self.whisper.device),
        )

    # -- a call -----------------------------------------------------------------------------------

    def transcribe(
        self,
        sources: Iterable[Input],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = open_audio,
    ) -> Iterator[Outcome]:
        """Outcomes as they end, which need not be the order of `sources`. `open` opens them, for
        whoever wants to hear them too.

        Raises UsageError, at once, for one recording in place of a list and for options that this model
        cannot serve; what is wrong with a recording is in its outcome.
        """
        if isinstance(sources, str | bytes | os.PathLike):
            raise UsageError("the sources are one recording; give a list of them")
        options = options or Options()
        kind = SequentialCall if options.long_form == "sequential" else Call
        return kind(self, options, hook, open).run(sources)

    def settings(self, options: Options) -> dict[str, Json]:
        """What explains a result: models, options, versions."""
        pair, device = self.whisper.pair, self.whisper.device
        gamma = self.gamma if options.gamma is None else options.gamma
        sequential = options.long_form == "sequential"
        vad = options.vad and not sequential
        return {
            "model": str(getattr(pair.target, "name", pair.target)),
            "draft": None if pair.draft is None else str(getattr(pair.draft, "name", pair.draft)),
            "shared_encoder": self.whisper.shared_encoder,
            "gamma": "auto" if gamma is None else gamma,
            "batch_size": self.batch,
            "device": device.name,
            "dtype": str(device.dtype).removeprefix("torch."),
            "task": options.task,
            "timestamps": options.timestamps,
            "initial_prompt": options.initial_prompt,
            "long_form": options.long_form,
            # Windows that are decoded in parallel have no text before them.
            "condition_on_previous_text": sequential and options.condition_on_previous_text,
            "vad": vad,
            "windows": asdict(options.windows) if vad else None,
            "guards": None if options.guards is None else _plain(asdict(options.guards)),
            "word_timestamps": options.words,
            "versions": {name: version(name) for name in ("forescribe", "torch", "transformers")},
        }


def _plain(record: dict[str, Any]) -> dict[str, Json]:
    """For JSON, which has no tuples."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in record.items()}
