"""Published Whisper weights: the languages that they were made for, and where they are.

Knows the names of Whisper models; nothing of presets, devices or decoding. Import is light: neither torch
nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from forescribe.speculative.models import hub
from forescribe.speculative.models.hub import HubError, Role, find

from ..errors import ModelError
from .conversion import caches, ctranslate2, openai_formats

__all__ = [
    "ENGLISH",
    "FRENCH",
    "JAPANESE",
    "MADE_FOR",
    "as_ids",
    "as_model_error",
    "find",
    "locate",
]

ENGLISH = frozenset({"en"})
FRENCH, JAPANESE = frozenset({"fr"}), frozenset({"ja"})

MADE_FOR: Mapping[str, frozenset[str]] = {
    "tiny.en": ENGLISH,  # bundled
    "openai/whisper-tiny.en": ENGLISH,
    "openai/whisper-base.en": ENGLISH,
    "openai/whisper-small.en": ENGLISH,
    "openai/whisper-medium.en": ENGLISH,
    "distil-whisper/distil-small.en": ENGLISH,
    "distil-whisper/distil-medium.en": ENGLISH,
    "distil-whisper/distil-large-v2": ENGLISH,
    "distil-whisper/distil-large-v3": ENGLISH,
    "distil-whisper/distil-large-v3.5": ENGLISH,
    "bofenghuang/whisper-large-v3-distil-fr-v0.2": FRENCH,
    "kotoba-tech/kotoba-whisper-v1.0": JAPANESE,
    "kotoba-tech/kotoba-whisper-v2.0": JAPANESE,
}
"""The languages (ISO 639-1) that published weights were made for; others were made for all of Whisper's."""

FILES = {
    ".bin": "a ggml-*.bin of whisper.cpp",
    ".pt": "a .pt of openai-whisper",
}
"""Single files that hold a Whisper model, by suffix."""

WHISPER = hub.Family(
    # Of the many copies that repositories hold (other precisions, Flax, TensorFlow), the one we load.
    patterns=(
        ("*.json", "*.txt", "model.safetensors", "model-*-of-*.safetensors"),
        ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
        ("model.bin",),  # CTranslate2's, as faster-whisper's repositories hold them
    ),
    contents="a Whisper model has config.json, its weights and its tokenizer",
    missing=ctranslate2.lacks,
    files=tuple(FILES),
    presets="`forescribe models` lists the presets",
    alternatives={
        "model": "or try `--model tiny.en` (bundled; English only)",
        "draft": "or decode without it: `--draft none`",
    },
)


def locate(name: str | Path, *, role: Role = "model", network: bool = True) -> Path:
    """The folder of a Whisper model, downloaded or converted if necessary; see `hub.locate` and
    `conversion`. Raises ModelError."""
    try:
        found = hub.locate(name, WHISPER, role=role, network=network)
    except HubError as error:
        copies = caches.other_copies(str(name))
        here = f"; on this machine as --{role} {copies[0]}" if copies else ""
        raise ModelError(f"{error}{here}") from error.__cause__
    if found.is_file():
        return openai_formats.converted(found, network=network)
    return ctranslate2.usable(found)


@contextmanager
def as_model_error() -> Iterator[None]:
    """Raises HubError as ModelError (`model_not_found`), with the same cause."""
    try:
        yield
    except HubError as error:
        raise ModelError(str(error)) from error.__cause__


def as_ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    """Token ids of a configuration, which may give one, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
