"""Forms of transcriptions: the fields of a request as one checked record, and the options that it means.

    timestamp_granularities[]=word      the Python SDK, curl in OpenAI's documentation
    timestamp_granularities=word        curl by hand, once or repeated
    timestamp_granularities=["word"]    gateways and form builders
    chunking_strategy[type]=server_vad  likewise {"type": "server_vad"} and auto

Every spelling that clients use is read. An unknown field is an error, and what this server cannot do is
refused by name. Fields of faster-whisper's servers are read where they mean something here; the answer names
the others in a warning. Does not know HTTP; asks the serving for the model's languages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, create_model

from forescribe.asr.decode.declared import FormField
from forescribe.asr.decode.options import DECLARED, MAX_LISTED, MAX_NAME, Guards, Options
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript_parts import Notice
from forescribe.asr.segment.windows import WindowOptions
from forescribe.asr.words.terms import MOST_TERMS

from ..errors import ApiError, invalid, unknown
from ..http.bodies import loads, text
from ..settings import Settings
from ..wording import Frozen, field_of, told
from .answers import UNKNOWN, UNUSED
from .serving import Serving

Value = str | list[str] | dict[str, Any]
Format = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]

MAX_KNOWN = 4
"""Speakers who are recognised (OpenAI's contract)."""

MAX_SPEAKER_NAME = 255
"""Characters of a speaker's name, which labels every line of a result."""

HYSTERESIS = 0.15
"""How far below the onset threshold speech ends (silero-vad's default)."""

NEVER_USED = """
append_punctuations batch_size chunk_length clip_timestamps hallucination_silence_threshold
language_detection_segments language_detection_threshold max_initial_timestamp max_new_tokens prefix
prepend_punctuations prompt_reset_on_temperature suppress_blank suppress_tokens vad_parameters
"""

FASTER_WHISPER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "best_of": ("1", "1.0"),
        "condition_on_previous_text": ("true", "1"),
        "repetition_penalty": ("1", "1.0"),
        "no_repeat_ngram_size": ("0",),
        "without_timestamps": ("false", "0"),
        "multilingual": ("false", "0"),
        "log_progress": ("false", "0"),
        **dict.fromkeys(NEVER_USED.split(), ()),
    }
)
"""Its options that have no effect here, with the values for which that makes no difference."""

Entry = Annotated[str, Field(max_length=MAX_NAME)]
Languages = Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MAX_LISTED)] | None
Known = Annotated[tuple[str, ...], Field(max_length=MAX_KNOWN)]

OBJECTS = frozenset({"chunking_strategy", "expires_after"})

_NAME = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")

FormT = TypeVar("FormT", bound=BaseModel)


ARRAYS = frozenset(
    {
        *(field.name for own in DECLARED.values() for field in own.fields if field.entries),
        "languages",
        "include",
        "timestamp_granularities",
        "known_speaker_names",
        "known_speaker_references",
    }
)
LINES = frozenset(f.name for own in DECLARED.values() for f in own.fields if f.lines)
"""Lists of which a field may have more than one entry, each in a line of its own: a file."""


class VadConfig(Frozen):
    """OpenAI's `server_vad`."""

    type: Literal["server_vad"]
    prefix_padding_ms: int = Field(300, ge=0, le=5000)
    silence_duration_ms: int = Field(200, ge=1, le=15000)
    threshold: float = Field(0.5, gt=0, le=1)


def _declared(has: Callable[[FormField], bool] = lambda field: True) -> dict[str, Any]:
    """The fields of the options of decoding, as pydantic takes them."""
    declared = (field for own in DECLARED.values() for field in own.fields)
    return {field.name: (_kind(field), field.default) for field in declared if has(field)}


def _kind(field: FormField) -> Any:
    limits: dict[str, Any] = dict(field.limits)
    kind: Any = Annotated[field.kind, Field(**limits)] if limits else field.kind
    if field.entries:
        many: Any = tuple[kind, ...]
        return Annotated[many, Field(max_length=field.entries)]
    if field.words:
        kind = kind | Literal[field.words]
    return kind if field.default is not None else kind | None


class AudioForm(Frozen):
    """What transcriptions and translations share, besides the options of decoding."""

    model: str | None = None  # the loaded one
    response_format: Format = "json"
    word_timestamps: bool = False  # faster-whisper's


if TYPE_CHECKING:
    DecodingForm = AudioForm
    TranslatingForm = AudioForm

    class LiveForm(BaseModel):
        model: str

else:
    DecodingForm = create_model("DecodingForm", __base__=AudioForm, **_declared())
    TranslatingForm = create_model(
        "TranslatingForm", __base__=AudioForm, **_declared(lambda field: field.translations)
    )
    LiveForm = create_model(
        "LiveForm", __base__=Frozen, model=(str, ...), **_declared(lambda field: field.live)
    )


class TranscriptionForm(DecodingForm):
    """`/v1/audio/transcriptions`, without the file. `hint` is not OpenAI's: text that is probably spoken,
    which drafts are copied from and no word depends on."""

    languages: Languages = None
    include: tuple[Literal["logprobs"], ...] = ()
    timestamp_granularities: tuple[Literal["word", "segment"], ...] | None = None
    stream: bool = False
    chunking_strategy: Literal["auto"] | VadConfig | None = None
    known_speaker_names: Known = ()
    known_speaker_references: Known = ()

    @property
    def diarized(self) -> bool:
        return self.response_format == "diarized_json"


class TranslationForm(TranslatingForm):
    """`/v1/audio/translations`, without the file."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"


def parse(kind: type[FormT], fields: Iterable[tuple[str, str]]) -> FormT:
    """Check the fields. Raises ApiError `invalid_value` with the name of the field."""
    values = normalised(fields, kind)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        place, message = told(error.errors())
        raise ApiError("invalid_value", f"{place}: {message}", param=field_of(place)) from error


def set_aside(
    fields: Iterable[tuple[str, str]],
) -> tuple[list[tuple[str, str]], tuple[Notice, ...]]:
    """The fields without those of faster-whisper that have no effect here, and the warning that names them,
    if there is any."""
    kept, unused = list[tuple[str, str]](), dict[str, None]()
    for name, value in fields:
        plain = name.partition("[")[0]
        if plain not in FASTER_WHISPER:
            kept.append((name, value))
        elif value.strip().lower() not in ("", *FASTER_WHISPER[plain]):
            unused[plain] = None
    text = f"these fields have no effect on this server: {', '.join(unused)}"
    return kept, (Notice(UNUSED, text),) if unused else ()


def check_model(name: str | None, settings: Settings) -> str:
    """The name, if it is one of the speech model's; None is the loaded one. Raises ApiError
    `model_not_found`."""
    if name is None:
        return settings.model_name
    if name not in (settings.model_name, *settings.aliases, settings.model):
        text = f"there is no model {name!r}; there is {settings.model_name!r}"
        raise ApiError("model_not_found", text, param="model")
    return name


def transcription(form: TranscriptionForm, serving: Serving, settings: Settings) -> Options:
    """The options of a transcription. Raises ApiError `invalid_value` with the field that cannot be
    served."""
    asked = dict(form)
    _check(form, asked, serving)
    # One language, or several among which it is detected; None for all.
    language = asked["language"] or ",".join(form.languages or ()) or settings.language
    if language is not None and language.strip().lower() == "auto":
        language = None
    if language is not None:
        serving.check_language(language, "languages" if form.languages else "language")
    # Long audio is always cut, so `auto` equals the default.
    strategy, windows = form.chunking_strategy, WindowOptions()
    if isinstance(strategy, VadConfig):
        windows = _windows(strategy)
    one = language if language is not None and "," not in language else None
    return Options(
        **meant(form, one)
        | {
            "language": language,
            "windows": windows,
            "words": form.diarized or "word" in granularities(form),
        }
    )


def meant(form: BaseModel, language: str | None = None) -> dict[str, Any]:
    """The options of decoding that were sent, besides guards, which are on here. `language` is that of all
    windows, if there is one. Raises ApiError `invalid_value`."""
    asked, found = dict(form), dict[str, Any](guards=Guards())
    for name, own in DECLARED.items():
        if form.model_fields_set.isdisjoint(field.name for field in own.fields):
            continue
        try:
            found[name] = asked[own.fields[0].name] if own.asked is None else own.asked(asked)
            if own.served is not None and language is not None:
                own.served(found[name], language)
        except UsageError as error:
            raise invalid(own.fields[0].name, str(error)) from error
    return found


def granularities(form: AudioForm) -> set[str]:
    """What a `verbose_json` is to have: segments, words, or both."""
    asked = form.timestamp_granularities if isinstance(form, TranscriptionForm) else None
    words = form.word_timestamps and form.response_format == "verbose_json"
    return {*(asked or ("segment",)), *(("word",) if words else ())}


def translation(form: TranslationForm, serving: Serving) -> Options:
    """The options of a translation. Raises ApiError `invalid_value` if the model cannot translate."""
    if not serving.translates:
        raise invalid("model", "this model cannot translate")
    words = "word" in granularities(form)
    return Options(**meant(form, "en") | {"task": "translate", "words": words})


def normalised(fields: Iterable[tuple[str, str]], kind: type[BaseModel]) -> dict[str, Value]:
    """Each field as a string, a list or an object. Empty fields count as absent.

    Raises ApiError `invalid_value` for an unknown name, a scalar that is given twice, and invalid JSON.
    """
    values: dict[str, Value] = {}
    for field, value in fields:
        match = _NAME.fullmatch(field)
        name, key = match.groups() if match else (field, None)
        if name not in kind.model_fields:
            if kind is TranscriptionForm and re.match(
                "diari[sz]|speaker|(num|min|max)_speakers", name
            ):
                there = "response_format=diarized_json says who speaks, POST /v1/jobs takes num_speakers too"
                raise ApiError("invalid_value", f"unknown field {name!r}; {there}", param=name)
            raise unknown(name, ("file", *kind.model_fields))
        text(value, name)
        if value.strip() in ("", "null"):
            continue
        earlier = values.get(name)
        if name in ARRAYS:
            values[name] = [*(earlier or ()), *_elements(name, value)]
        elif key and name in OBJECTS and (earlier is None or isinstance(earlier, dict)):
            values[name] = {**(earlier or {}), key: value}
        elif key is not None or earlier is not None:
            raise invalid(name, "given twice, or with a key that it does not have")
        elif name in OBJECTS and value.lstrip().startswith("{"):
            values[name] = loads(value, name)
        else:
            values[name] = value
    return values


def _elements(name: str, value: str) -> list[str]:
    """One element, lines, or the JSON list in the field."""
    if not value.lstrip().startswith("["):
        return value.splitlines() if name in LINES else [value]
    items: list[str] = loads(value, name)
    if len(items) > MOST_TERMS:  # before each is checked
        raise invalid(name, f"more than {MOST_TERMS} entries")
    return items


def _check(form: TranscriptionForm, asked: Mapping[str, Any], serving: Serving) -> None:
    """Refuse combinations that the contract excludes."""
    if form.diarized:
        check_speaker_names(form.known_speaker_names)
    elif form.known_speaker_names or form.known_speaker_references:
        param = "known_speaker_" + ("names" if form.known_speaker_names else "references")
        raise invalid(param, "needs response_format=diarized_json")
    if asked["task"] == "translate" and not serving.translates:
        raise invalid("task", "this model cannot translate")
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise invalid("timestamp_granularities", "needs response_format=verbose_json")
    if form.include and form.response_format != "json":
        raise invalid("include", "logprobs come with response_format=json only")
    if form.stream and form.response_format not in ("json", "text", "diarized_json"):
        raise invalid(
            "stream", "events carry text: use response_format json, text or diarized_json"
        )
    if form.languages is not None and asked["language"]:
        raise invalid("languages", "give language or languages, not both")


def check_speaker_names(names: Sequence[str]) -> None:
    """Raises ApiError `invalid_value`."""
    for name in names:
        fits = name.strip() and name.isprintable() and len(name) <= MAX_SPEAKER_NAME
        if not fits or name == UNKNOWN:
            text = (
                f"a name has 1 to {MAX_SPEAKER_NAME} printable characters, and is not {UNKNOWN!r}"
            )
            raise invalid("known_speaker_names", text)
    if len(set(names)) < len(names):
        raise invalid("known_speaker_names", "a name is given twice: each person has one reference")


def _windows(strategy: VadConfig) -> WindowOptions:
    """Options for cutting windows."""
    pad_s, pause_s = strategy.prefix_padding_ms / 1000, strategy.silence_duration_ms / 1000
    # Longer silence is skipped except for the padding on both sides, which must fit into it.
    silence_s = max(WindowOptions.max_silence_s, pause_s, 2 * pad_s + 0.1)
    return WindowOptions(
        onset=strategy.threshold,
        offset=max(strategy.threshold - HYSTERESIS, strategy.threshold / 2) or strategy.threshold,
        min_pause_s=pause_s,
        max_silence_s=silence_s,
        pad_s=pad_s,
    )
