"""Forms: the fields of a request, in every spelling that clients use, as one checked record.

    timestamp_granularities[]=word      the Python SDK, curl in OpenAI's documentation
    timestamp_granularities=word        curl by hand, once or repeated
    timestamp_granularities=["word"]    gateways and form builders
    chunking_strategy[type]=server_vad  likewise {"type": "server_vad"} and auto

An unknown field is an error: no option is accepted and then ignored. Does not know HTTP or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ApiError
from ..http.validation import loads, text

Value = str | list[str] | dict[str, Any]
Format = Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"]

MAX_HINT = 1_000_000
"""Characters of a hint: more than a day of speech."""

MAX_PROMPT = 100_000
"""Characters of a prompt, of which a model reads the last 223 tokens."""

MAX_LISTED, MAX_NAME = 1000, 1000
"""Entries of a list, and characters of one."""

Entry = Annotated[str, Field(max_length=MAX_NAME)]

_NAME = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")


class VadConfig(BaseModel):
    """OpenAI's `server_vad`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["server_vad"]
    prefix_padding_ms: int = Field(300, ge=0, le=5000)
    silence_duration_ms: int = Field(200, ge=1, le=15000)
    threshold: float = Field(0.5, gt=0, le=1)


class TranslationForm(BaseModel):
    """`/v1/audio/translations`, without the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    prompt: str | None = Field(None, max_length=MAX_PROMPT)
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float = Field(0.0, ge=0, le=1)


class TranscriptionForm(BaseModel):
    """`/v1/audio/transcriptions`, without the file. `hint` is not OpenAI's: text that is probably spoken,
    which drafts are copied from and no word depends on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    language: str | None = None
    languages: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MAX_LISTED)] | None = (
        None
    )
    keywords: Annotated[tuple[Entry, ...], Field(max_length=MAX_LISTED)] = ()
    prompt: str | None = Field(None, max_length=MAX_PROMPT)
    hint: str | None = Field(None, max_length=MAX_HINT)
    response_format: Format = "json"
    temperature: float = Field(0.0, ge=0, le=1)
    include: tuple[Literal["logprobs"], ...] = ()
    timestamp_granularities: tuple[Literal["word", "segment"], ...] | None = None
    stream: bool = False
    chunking_strategy: Literal["auto"] | VadConfig | None = None
    known_speaker_names: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    known_speaker_references: Annotated[tuple[str, ...], Field(max_length=4)] = ()

    @property
    def diarized(self) -> bool:
        return self.response_format == "diarized_json"


ARRAYS = frozenset(
    {
        "languages",
        "keywords",
        "include",
        "timestamp_granularities",
        "known_speaker_names",
        "known_speaker_references",
    }
)
OBJECTS = frozenset({"chunking_strategy", "expires_after"})

FormT = TypeVar("FormT", bound=BaseModel)


def parse(kind: type[FormT], fields: Iterable[tuple[str, str]]) -> FormT:
    """Check the fields. Raises ApiError `invalid_value` with the name of the field."""
    values = normalised(fields, kind.model_fields)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0])
        message = "is missing" if first["type"] == "missing" else first["msg"]
        raise ApiError("invalid_value", f"{param}: {message}", param=param) from error


def normalised(fields: Iterable[tuple[str, str]], known: Mapping[str, object]) -> dict[str, Value]:
    """Each field as a string, a list or an object. Empty fields count as absent.

    Raises ApiError `invalid_value` for an unknown name, a scalar that is given twice, and invalid JSON.
    """
    values: dict[str, Value] = {}
    for field, value in fields:
        match = _NAME.fullmatch(field)
        name, key = match.groups() if match else (field, None)
        if name not in known:
            message = f"unknown field {name[:100]!r}; known: file, {', '.join(known)}"
            raise ApiError("invalid_value", message, param=name[:100])
        text(value, name)
        if value.strip() in ("", "null"):
            continue
        if name in ARRAYS:
            items = values.setdefault(name, [])
            assert isinstance(items, list)
            items += _elements(name, value)
        elif key and name in OBJECTS:
            members = values.setdefault(name, {})
            if not isinstance(members, dict):
                raise ApiError("invalid_value", f"{name} is given in two spellings", param=name)
            members[key] = value
        elif key is not None:
            raise ApiError("invalid_value", f"{name} is neither a list nor an object", param=name)
        elif name in values:
            raise ApiError("invalid_value", f"{name} is given twice", param=name)
        else:
            values[name] = _object(name, value) if name in OBJECTS else value
    return values


def _elements(name: str, value: str) -> list[str]:
    """One element, or the JSON list in the field."""
    if not value.lstrip().startswith("["):
        return [value]
    items = loads(value, name)
    if len(items) > MAX_LISTED:  # before each is checked
        raise ApiError("invalid_value", f"{name}: more than {MAX_LISTED} entries", param=name)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ApiError("invalid_value", f"{name}: not a list of strings", param=name)
    return items


def _object(name: str, value: str) -> Value:
    if not value.lstrip().startswith("{"):
        return value
    members = loads(value, name)
    assert isinstance(members, dict)
    return members
