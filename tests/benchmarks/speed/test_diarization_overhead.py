"""The verdict over passes that are made up."""

from __future__ import annotations

import pytest

from benchmarks.speed.diarization_overhead import Pass, Verdict


def verdict(words: float, speakers: float, both: float, *, text: str = "so") -> Verdict:
    """Wall seconds of 100 s of audio, every pass on both of two cores all the time."""
    return Verdict(
        Pass(words, 2 * words, 100, {"a": "so"}),
        Pass(speakers, 2 * speakers, 100, {"a": ""}),
        Pass(both, 2 * both, 100, {"a": text}),
        cores=2,
    )


def test_both_together_are_held_against_the_slower_one() -> None:
    assert verdict(10, 8, 12).ratio == pytest.approx(1.2) and verdict(10, 8, 12).met
    assert verdict(8, 10, 12).met and not verdict(10, 8, 13).met


def test_other_words_or_slow_diarization_miss_the_target() -> None:
    assert not verdict(10, 8, 12, text="sew").met
    assert not verdict(20, 13, 20).met  # 7.7 times real time


def test_the_lower_bound_is_printed_if_the_cores_are_busy() -> None:
    full = verdict(10, 8, 18)
    assert full.least == pytest.approx(1.8)
    assert "lower bound with 2 cores: 1.80" in "\n".join(full.lines())
    assert Verdict(full.words, full.speakers, full.both, cores=8).least == 1
