"""Conversations under difficult conditions: their references, and that equal seeds make equal recordings."""

from __future__ import annotations

import numpy as np
import pytest

from forescribe.diarize.turns import Turns
from training.speakers.conditions import CROSSTALK, QUICK, SHORT_ANSWERS, with_noise
from training.speakers.mixtures import RATE, Manner, Mixture, mix, once
from training.speech.rooms import impulse_response, pink


@pytest.fixture(scope="module")
def clips() -> dict[str, np.ndarray]:
    """Bursts of tones with pauses of half a second, over faint noise; 12 s each."""
    rng = np.random.default_rng(0)
    time = np.arange(12 * RATE) / RATE
    found = {}
    for number, pitch in enumerate((110, 180, 260)):
        loud = (time + 0.3 * number) % 2.0 < 1.5
        tone = 0.2 * np.sin(2 * np.pi * pitch * time) * loud
        found[str(number)] = (tone + 1e-4 * rng.standard_normal(len(time))).astype(np.float32)
    return found


def overlapped(turns: Turns) -> float:
    """The share of speech in which several speak."""
    frames = np.zeros((130 * 100, len(turns.speakers)), bool)
    for turn in turns:
        speaker = turns.speakers.index(turn.speaker)
        frames[turn.start_sample // 160 : turn.end_sample // 160, speaker] = True
    return float((frames.sum(1) > 1).sum() / frames.any(1).sum())


def lengths(turns: Turns, speaker: str) -> list[float]:
    return [turn.samples / RATE for turn in turns if turn.speaker == speaker]


def made(clips: dict[str, np.ndarray], manner: Manner) -> Mixture:
    return mix("made", clips, np.random.default_rng(3), manner=manner)


def test_equal_seeds_make_equal_recordings(clips: dict[str, np.ndarray]) -> None:
    one, two = made(clips, Manner()), made(clips, Manner())
    assert np.array_equal(one.samples, two.samples) and one.turns == two.turns


def test_everybody_speaks_and_manners_differ(clips: dict[str, np.ndarray]) -> None:
    for manner in (Manner(), QUICK, CROSSTALK, SHORT_ANSWERS):
        assert sorted(made(clips, manner).turns.speakers) == sorted(clips)
    assert max(lengths(made(clips, QUICK).turns, "1")) <= 1.0
    assert overlapped(made(clips, CROSSTALK).turns) > 3 * overlapped(made(clips, Manner()).turns)
    answers = made(clips, SHORT_ANSWERS).turns
    assert max(lengths(answers, "1") + lengths(answers, "2")) <= 1.0
    assert sum(lengths(answers, "0")) > sum(lengths(answers, "1"))


def test_nothing_is_said_twice_where_everything_is_said_once(clips: dict[str, np.ndarray]) -> None:
    fresh = once("fresh", clips, np.random.default_rng(1))
    for speaker in clips:
        assert sum(lengths(fresh.turns, speaker)) <= 12.0
    assert fresh.turns.turns[-1].end_sample <= len(fresh.samples)


def test_noise_has_the_level_that_was_asked_for(clips: dict[str, np.ndarray]) -> None:
    clean = made(clips, Manner())
    noise = pink(len(clean.samples), np.random.default_rng(2))
    added = with_noise(clean, noise, 10).samples - clean.samples
    spoken = np.concatenate([clean.samples[t.start_sample : t.end_sample] for t in clean.turns])
    decibels = 10 * np.log10(np.mean(spoken**2) / np.mean(added**2))
    assert decibels == pytest.approx(10, abs=0.3)


@pytest.mark.parametrize("decay", [0.3, 0.6])
def test_the_sound_of_a_room_decays_as_asked(decay: float) -> None:
    response = impulse_response(np.random.default_rng(0), decay, np.array([6.0, 5.0, 2.8]))
    assert float((response**2).sum()) == pytest.approx(1, abs=1e-3)
    left = 10 * np.log10(np.cumsum(response[::-1] ** 2)[::-1] + 1e-12)
    first, last = (int(np.argmax(left < bound)) for bound in (-5, -25))
    assert 3 * (last - first) / RATE == pytest.approx(decay, rel=0.35)
