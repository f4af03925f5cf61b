"""Word times of the bundled pair against the truth: speech whose synthesiser told when each word is said.

`python -m benchmarks.quality.word_times` measures the same on any recordings.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

from benchmarks.quality.word_times import TimedWord, WordErrors, compare, quantile
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.asr.model.whisper import LogMel
from forescribe.asr.words.assembly import assemble_words, pauses
from forescribe.asr.words.timing import Utterance, token_times
from forescribe.speculative import choose

DATA = Path(__file__).parent / "data"


def near(errors: WordErrors) -> bool:
    """faster-whisper times the words that the same weights write with errors of 94 ms in the median and
    259 ms in the 95th percentile, this engine with 83 and 234 ms."""
    return quantile(errors.both, 0.5) <= 0.09 and quantile(errors.both, 0.95) <= 0.25


@pytest.fixture(scope="module")
def whisper():
    return load(resolve("tiny.en", None), choose("cpu"), network=False)


@pytest.fixture(scope="module")
def spoken() -> list[TimedWord]:
    return [TimedWord(**record) for record in json.loads((DATA / "words.json").read_text())]


def test_words_that_the_target_reads_are_timed_as_closely_as_the_model_allows(whisper, spoken):
    """The right text is given, so that only the alignment is measured."""
    samples, _ = soundfile.read(DATA / "words.ogg", dtype="float32")
    features = LogMel(whisper.extractors[0])([samples])
    text = "".join(f" {word.text}" for word in spoken)
    tokens = tuple(whisper.tokenizer.encode(text, add_special_tokens=False))
    prompt = whisper.tokens.prompt("en", "transcribe", timestamps=False)
    work = Utterance(whisper.encode(features)[0], prompt, tokens, len(samples))
    (times,) = token_times(whisper, [work])
    quiet = pauses(features[0], len(samples))
    parts = [(tokens, text)]
    (found,) = assemble_words(whisper.tokenizer, "en", parts, times, quiet, 0, length=len(samples))
    errors = compare(spoken, found)
    assert errors.matched == len(spoken)
    assert near(errors)


def test_words_that_it_writes_itself_are_timed_as_closely_as_the_model_allows(whisper, spoken):
    options = Options(language="en", words=True)
    transcriber = Transcriber(whisper, batch=1)
    (outcome,) = transcriber.transcribe([str(DATA / "words.ogg")], options)
    written = [word for segment in outcome.transcript.segments for word in segment.words]
    errors = compare(spoken, written)
    assert errors.matched >= 0.7 * len(spoken)
    assert near(errors)
