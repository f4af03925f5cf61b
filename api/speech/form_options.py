"""From a checked form to the transcriber's options. What this server cannot do is refused by name.

Does not know HTTP; asks the serving for the model's languages.
"""

from __future__ import annotations

from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.segment.windows import WindowOptions

from ..errors import ApiError
from ..settings import Settings
from .forms import TranscriptionForm, TranslationForm, VadConfig
from .serving import Serving

HYSTERESIS = 0.15
"""How far below the onset threshold speech ends (silero-vad's default)."""

MAX_NAME = 255
"""Characters of a speaker's name, which labels every line of a result."""


def transcription(form: TranscriptionForm, serving: Serving, settings: Settings) -> Options:
    """The options of a transcription. Raises ApiError `invalid_value` with the field that cannot be
    served."""
    _check(form)
    return Options(
        language=_language(form, serving, settings),
        initial_prompt=", ".join(part for part in (form.prompt, *form.keywords) if part) or None,
        hint=form.hint,
        windows=_windows(form.chunking_strategy),
        words=form.diarized or "word" in (form.timestamp_granularities or ()),
        guards=guards(form.temperature),
    )


def translation(form: TranslationForm, serving: Serving) -> Options:
    """The options of a translation. Raises ApiError `invalid_value` if the model cannot translate."""
    if not serving.multilingual:
        raise _invalid("model", "an English-only model cannot translate")
    return Options(task="translate", initial_prompt=form.prompt, guards=guards(form.temperature))


def guards(temperature: float) -> Guards:
    """Temperature 0 is raised automatically for doubtful windows, as the contract says; any other
    temperature is the only one that is tried."""
    return Guards(temperatures=(temperature,)) if temperature else Guards()


def _check(form: TranscriptionForm) -> None:
    """Refuse combinations that the contract excludes."""
    for param in ("known_speaker_names", "known_speaker_references"):
        if getattr(form, param) and not form.diarized:
            raise _invalid(param, "needs response_format=diarized_json")
    for name in form.known_speaker_names:
        if not name.isprintable() or len(name) > MAX_NAME:
            text = (
                f"a name has at most {MAX_NAME} characters and no line breaks or control characters"
            )
            raise _invalid("known_speaker_names", text)
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise _invalid("timestamp_granularities", "needs response_format=verbose_json")
    if form.include and form.response_format != "json":
        raise _invalid("include", "logprobs come with response_format=json only")
    if form.stream and form.response_format not in ("json", "text", "diarized_json"):
        raise _invalid(
            "stream", "events carry text: use response_format json, text or diarized_json"
        )
    if form.languages is not None and (form.language or len(form.languages) > 1):
        raise _invalid("languages", "give one language, or none for detection")


def _language(form: TranscriptionForm, serving: Serving, settings: Settings) -> str | None:
    """The language code; None for detection."""
    name = form.language or (form.languages or (None,))[0] or settings.language
    if name is None or name.strip().lower() == "auto":
        return None
    return serving.language(name)


def _windows(strategy: object) -> WindowOptions:
    """Options for cutting windows. Long audio is always cut, so `auto` equals the default."""
    if not isinstance(strategy, VadConfig):
        return WindowOptions()
    pad_s, pause_s = strategy.prefix_padding_ms / 1000, strategy.silence_duration_ms / 1000
    # Longer silence is skipped except for the padding on both sides, which must fit into it.
    silence_s = max(WindowOptions.max_silence_s, pause_s, 2 * pad_s + 0.1)
    return WindowOptions(
        onset=strategy.threshold,
        offset=max(strategy.threshold - HYSTERESIS, strategy.threshold / 2),
        min_pause_s=pause_s,
        max_silence_s=silence_s,
        pad_s=pad_s,
    )


def _invalid(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)
