"""The measures of diarization: cases that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.quality.diarization import attributed_errors, wrong_written_words
from forescribe.asr.formats.transcript_parts import Word
from forescribe.diarize.turns import Turns
from training.speakers.mixtures import mixtures
from training.speakers.turn_errors import (
    turn_errors,
    wrong_words,
)

pytest.importorskip("pyannote.metrics")

RATE = 16_000


def turns(*given: tuple[float, float, str]) -> Turns:
    return Turns.of((round(a * RATE), round(b * RATE), who) for a, b, who in given)


def test_missed_false_and_confused_speech_are_counted_and_pooled() -> None:
    truth = turns((0, 10, "A"), (8, 12, "B"))  # 14 s of speech, 2 of them together
    exact = turn_errors(truth, truth.renamed({"A": "x", "B": "y"}), 20 * RATE)
    assert exact.der == exact.fair == exact.jer == 0 and exact.right == 1
    one = turn_errors(truth, turns((0, 12, "x")), 20 * RATE)
    assert one.missed_s == pytest.approx(2) and one.confused_s == pytest.approx(2)
    assert one.counted == [-1] and one.der == pytest.approx(4 / 14)
    loud = turn_errors(truth, turns((0, 10, "x"), (8, 12, "y"), (15, 16, "y")), 20 * RATE)
    assert loud.false_s == pytest.approx(1) and loud.right == 1
    both = one + loud
    assert both.der == pytest.approx(5 / 28) and both.right == 0.5 and both.off_by == 0.5


def test_the_fair_measure_forgives_borders_that_are_a_quarter_second_off() -> None:
    found = turn_errors(turns((1, 5, "A")), turns((1.2, 5.2, "x")), 10 * RATE)
    assert found.der == pytest.approx(0.1) and found.fair == 0


def words(*who: str | None) -> list[Word]:
    return [Word(f" w{n}", n * 100, n * 100 + 50, None, name) for n, name in enumerate(who)]


def test_names_are_mapped_and_a_word_without_a_speaker_is_wrong() -> None:
    truth = words("A", "A", "B", "B")
    assert wrong_words(truth, ["x", "x", "y", "y"]) == 0
    assert wrong_words(truth, ["x", "y", "y", "y"]) == 1
    assert wrong_words(truth, ["x", "x", "x", "x"]) == 2
    assert wrong_words(truth, [None, "x", "y", "y"]) == 1
    assert wrong_words(truth, [None] * 4) == 4


def test_cpwer_charges_a_word_with_another_speaker_twice() -> None:
    pytest.importorskip("meeteval")
    truth = words("A", "A", "A", "B", "B")
    exact = attributed_errors({"one": (truth, words("x", "x", "x", "y", "y"))})
    assert exact == {"cpwer": 0, "tcpwer": 0, "orcwer": 0}
    wrong = attributed_errors({"one": (truth, words("x", "x", "y", "y", "y"))})
    assert wrong["cpwer"] == pytest.approx(2 / 5) and wrong["orcwer"] <= wrong["cpwer"]


def test_written_words_are_compared_where_they_stand_for_a_word_of_the_reference() -> None:
    truth = words("A", "A", "B", "B", "B")
    assert wrong_written_words(truth, words("x", "x", "y", "y", "y")) == (0, 5)
    assert wrong_written_words(truth, words("x", "y", "y", "y", "y")) == (1, 5)
    left_out = [word for word in words("x", "x", "y", "y", "x") if word.text != " w2"]
    assert wrong_written_words(truth, left_out) == (1, 4)
    other = words("x", "y", "y", "y", "y")
    other[1] = replace(other[1], text=" else")
    inserted = [*words("x", "x"), *words("z"), *words("x", "x", "y", "y", "y")[2:]]
    assert wrong_written_words(truth, other) == (1, 5)
    assert wrong_written_words(truth, inserted) == (0, 5)
    assert wrong_written_words(truth, []) == (0, 0)


def voice(frequency: float) -> np.ndarray:
    """Bursts of a tone: 1.5 s, 0.6 s of silence, 2 s, 0.1 s of silence, 1 s."""
    time = np.arange(round(5.2 * RATE)) / RATE
    on = (time < 1.5) | ((time >= 2.1) & (time < 4.1)) | (time >= 4.2)
    return (0.3 * on * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


def test_mixtures_have_two_to_five_speakers_overlap_and_a_reference_that_fits() -> None:
    clips = {f"s{n}": voice(150 + 100 * n) for n in range(6)}
    made = mixtures(clips, count=4, seconds=40)
    assert [len(m.turns.speakers) for m in made] == [2, 3, 4, 5]
    again = mixtures(clips, count=4, seconds=40)
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(made, again, strict=True))
    single = sum(t.samples for m in made for t in m.turns.exclusive())
    assert single < sum(t.samples for m in made for t in m.turns)  # some turns overlap
    for mixture in made:
        silent = np.ones(len(mixture.samples), bool)
        for turn in mixture.turns:
            assert turn.end_sample <= len(mixture.samples)
            silent[turn.start_sample : turn.end_sample] = False
        assert np.abs(mixture.samples[silent]).max() < 1e-3
