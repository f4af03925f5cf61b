"""The bundled pairs as decoders: the same weights behind every engine, and the prompts to decode.

Knows how a decoder is made by an engine's name; nothing of measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import provenance
from benchmarks.speed.when_it_pays import QUESTIONS
from forescribe.speculative.device import choose
from forescribe.speculative.models import hub
from forescribe.speculative.models.engines import Form, ModelEngine
from forescribe.speculative.protocols import Model, Processor
from forescribe.speculative.requests import Request

SAMPLES = ("memo", "conversation", "noisy")
TOKENS = 96
"""Tokens of a text at most; a window of speech ends by itself."""


@dataclass(frozen=True)
class DecoderPair:
    """Target and draft, each made anew for an engine's name, and requests for them."""

    target: Callable[[ModelEngine], Model]
    draft: Callable[[ModelEngine], Model]
    engines: tuple[ModelEngine, ...]  # that run the target here, transformers' modules first
    requests: Sequence[Request]
    eos: tuple[int, ...]
    processors: tuple[Processor, ...]


def speech_pair() -> DecoderPair:
    """The bundled Whisper pair, on windows of the samples."""
    from benchmarks.systems.jobs import join, read_clips
    from forescribe.asr.audio.features import LogMel
    from forescribe.asr.decode.rules import whisper_rules
    from forescribe.asr.model.loading import load
    from forescribe.asr.model.presets import resolve
    from forescribe.speculative.models.engines import WHISPER_FORMS as FORMS
    from forescribe.speculative.models.engines import whisper_decoder

    whisper = load(resolve("tiny.en", None), choose("cpu"), modules=True)
    paths = [str(provenance.ROOT / "samples" / f"{name}.flac") for name in SAMPLES]
    windows = join(read_clips(paths, None), 0).windows
    (draft,) = whisper.drafts
    encoded = whisper.encode(LogMel(whisper.extractor)(windows))
    prompt = whisper.tokens.prompt("en", "transcribe", timestamps=True)
    return DecoderPair(
        target=lambda e: whisper_decoder(whisper.target, lambda s: s.target, engine=e),
        draft=lambda e: whisper_decoder(
            draft.model,
            lambda s: s.draft,
            engine=e,
            listed=draft.listed,
        ),
        engines=_able(FORMS, whisper.target),
        requests=[
            Request(prompt=prompt, encoder_states=states, tag=i) for i, states in enumerate(encoded)
        ],
        eos=tuple(whisper.tokens.ends),
        processors=whisper_rules(whisper.target.generation_config, whisper.target.config),
    )


def text_pair() -> DecoderPair:
    """The bundled text pair, on eight questions."""
    from forescribe.speculative.models.engines import CAUSAL_FORMS as FORMS
    from forescribe.speculative.models.engines import causal_decoder
    from forescribe.text.language_model import load

    device = choose("cpu")
    target, draft = (load(hub.path(name), device, network=False) for name in ("text", "text-draft"))
    prompts = [target.vocabulary.chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    return DecoderPair(
        target=lambda engine: causal_decoder(target.model, engine=engine),
        draft=lambda engine: causal_decoder(draft.model, engine=engine),
        engines=_able(FORMS, target.model),
        requests=[Request(p, max_new_tokens=TOKENS, tag=i) for i, p in enumerate(prompts)],
        eos=tuple(target.ends),
        processors=(),
    )


PAIRS: Mapping[str, Callable[[], DecoderPair]] = {"speech": speech_pair, "text": text_pair}


def _able(forms: Sequence[Form], model: Any) -> tuple[ModelEngine, ...]:
    able = [form.engine for form in forms if form.gap(model) is None]
    return tuple(sorted(able, key=lambda engine: engine is not ModelEngine.MODULES))
