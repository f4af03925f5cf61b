"""Published models and human voices for the tests marked `weights`.

Where they are not there, tests are skipped with the reason; a model that is missing fails them where
TESTS_REQUIRE_REAL_MODELS is set, as in CI."""

from __future__ import annotations

import os
from pathlib import Path

import jiwer
import pytest

from forescribe.asr.decode.transcriber import Outcome
from forescribe.asr.model.conversion.converting import cache_folder

BASE, TINY = "whisper-base", "whisper-tiny.en"
READ = ("lj-1", "jfk", "librispeech-1089")
"""Recordings of people who read in English."""

MODELS = Path(os.environ.get("TESTS_REAL_MODELS") or cache_folder() / "real")
VOICES = Path(os.environ.get("FORESCRIBE_VOICES", "../shared/real/voices"))


def model(name: str) -> Path:
    """The folder of a published model."""
    if not (MODELS / name).is_dir():
        missing = pytest.fail if "TESTS_REQUIRE_REAL_MODELS" in os.environ else pytest.skip
        missing(f"{name} is not in {MODELS}: run scripts/setup real")
    return MODELS / name


def voice(name: str) -> Path:
    """A recording of a person."""
    path = VOICES / f"{name}.flac"
    if not path.is_file():
        pytest.skip(f"{path.name} is not in FORESCRIBE_VOICES ({VOICES})")
    return path


def normal(text: str) -> str:
    """English text as word errors are counted (openai/whisper's normaliser)."""
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return str(EnglishTextNormalizer({})(text))


def errors(outcomes: dict[str, Outcome]) -> jiwer.WordOutput:
    """Of transcripts by name, after Whisper's normaliser."""
    references = [normal(voice(name).with_suffix(".txt").read_text()) for name in outcomes]
    return jiwer.process_words(references, [normal(o.transcript.text) for o in outcomes.values()])
