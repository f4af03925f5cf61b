"""A checked form to what the transcriber is told. What this server cannot do is refused by name.

Knows nothing of HTTP; asks the serving for the model's languages.
"""

from __future__ import annotations

from forescribe.asr.decode.guards import Guards
from forescribe.asr.decode.options import Options
from forescribe.asr.segment.windows import WindowOptions

from ..errors import ApiError
from ..settings import Settings
from .forms import TranscriptionForm, TranslationForm, VadConfig
from .serving import Serving

HYSTERESIS = 0.15
"""Speech ends this far below the threshold that it begins at (silero-vad's own choice)."""


def transcription(form: TranscriptionForm, serving: Serving, settings: Settings) -> Options:
    """Raises ApiError `invalid_value` with the field that cannot be served."""
    _check(form)
    return Options(
        language=_language(form, serving, settings),
        initial_prompt=", ".join(part for part in (form.prompt, *form.keywords) if part) or None,
        windows=_windows(form.chunking_strategy),
        words=form.diarized or "word" in (form.timestamp_granularities or ()),
        guards=guards(form.temperature),
    )


def translation(form: TranslationForm, serving: Serving) -> Options:
    """Raises ApiError `invalid_value` where the model cannot translate."""
    if not serving.transcriber.whisper.tokens.multilingual:
        raise _no("model", "an English-only model cannot translate")
    return Options(task="translate", initial_prompt=form.prompt, guards=guards(form.temperature))


def guards(temperature: float) -> Guards:
    """Temperature 0 rises by itself where an answer is doubtful, as the contract has it; another is
    the only one that is tried."""
    return Guards(temperatures=(temperature,)) if temperature else Guards()


def _check(form: TranscriptionForm) -> None:
    """Combinations that the contract excludes."""
    for param in ("known_speaker_names", "known_speaker_references"):
        if getattr(form, param) and not form.diarized:
            raise _no(param, "needs response_format=diarized_json")
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise _no("timestamp_granularities", "needs response_format=verbose_json")
    if form.include and form.response_format != "json":
        raise _no("include", "logprobs come with response_format=json only")
    if form.stream and form.response_format not in ("json", "text", "diarized_json"):
        raise _no("stream", "events carry text: take response_format json, text or diarized_json")
    if form.languages is not None and (form.language or len(form.languages) > 1):
        raise _no("languages", "give one language, or none to have it detected")


def _language(form: TranscriptionForm, serving: Serving, settings: Settings) -> str | None:
    """The code; None to detect it."""
    name = form.language or (form.languages or (None,))[0] or settings.language
    if name is None or name.strip().lower() == "auto":
        return None
    return serving.language(name)


def _windows(strategy: object) -> WindowOptions:
    """Where to cut. Audio longer than a window is always cut, so `auto` and nothing are the same."""
    if not isinstance(strategy, VadConfig):
        return WindowOptions()
    pad_s, pause_s = strategy.prefix_padding_ms / 1000, strategy.silence_duration_ms / 1000
    # Silence that is longer is left out, but for the padding on both sides: it must have room.
    silence_s = max(WindowOptions.max_silence_s, pause_s, 2 * pad_s + 0.1)
    return WindowOptions(
        onset=strategy.threshold,
        offset=max(strategy.threshold - HYSTERESIS, strategy.threshold / 2),
        min_pause_s=pause_s,
        max_silence_s=silence_s,
        pad_s=pad_s,
    )


def _no(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)
