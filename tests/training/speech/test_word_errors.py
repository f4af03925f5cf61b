"""Only correct words are compared, each with its spoken word."""

from __future__ import annotations

import math

import pytest

from forescribe.asr.formats.transcript_parts import Word
from training.speech.timed_speech import TimedWord
from training.speech.word_errors import WordErrors, compare, quantile


def test_errors_are_those_of_the_words_that_match():
    spoken = [
        TimedWord("The", 0, 1600),
        TimedWord("cat", 1600, None),
        TimedWord("sat", None, 4800),
        TimedWord("down.", 4800, 6400),
    ]
    written = [
        Word(" the", 160, 1600),
        Word(" bat", 1600, 3200),
        Word(" sat", 3200, 4640),
        Word(" down", 4960, 6400),
    ]
    errors = compare(spoken, written)
    assert (errors.spoken, errors.matched) == (4, 3)
    assert errors.starts == pytest.approx([0.01, 0.01])
    assert errors.ends == pytest.approx([0.0, -0.01, 0.0])
    assert quantile(errors.both, 0.5) == pytest.approx(0.01)


def test_without_common_words_the_targets_are_missed():
    errors = compare([TimedWord("a", 0, 10)], [Word(" b", 0, 10)])
    assert errors.matched == 0 and math.isinf(quantile(errors.both, 0.5))
    assert not errors.within_aims


def test_a_few_large_errors_are_allowed_and_many_are_not():
    def of(late: int) -> WordErrors:
        return WordErrors(100, 100, [0.01] * (100 - late) + [1.0] * late, [])

    assert of(4).within_aims and not of(6).within_aims
    total = of(4) + of(6)
    assert (total.spoken, len(total.starts)) == (200, 200)
