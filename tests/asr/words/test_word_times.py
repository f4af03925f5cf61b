"""Word times of the bundled pair against the truth: speech whose synthesiser told when each word is said.

`python -m benchmarks.quality.word_times` measures the same on any recordings.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.quality.word_times import TimedWord, WordErrors, compare, quantile
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.speculative import choose

DATA = Path(__file__).parent / "data"


def near(errors: WordErrors) -> bool:
    """faster-whisper times the words that the same weights write with errors of 94 ms in the median and
    259 ms in the 95th percentile, this engine with 83 and 234 ms."""
    return quantile(errors.both, 0.5) <= 0.09 and quantile(errors.both, 0.95) <= 0.25


def test_words_are_timed_as_closely_as_the_model_allows() -> None:
    spoken = [TimedWord(**record) for record in json.loads((DATA / "words.json").read_text())]
    transcriber = Transcriber(load(resolve("tiny.en", None), choose("cpu"), network=False), batch=1)
    options = Options(language="en", words=True)
    (outcome,) = transcriber.transcribe([str(DATA / "words.ogg")], options)
    assert outcome.transcript is not None
    errors = compare(spoken, outcome.transcript.words)
    assert errors.matched >= 0.7 * len(spoken)
    assert near(errors)
