"""Linking voices of several blocks to persons."""

from __future__ import annotations

import numpy as np

from forescribe.diarize.blocks import link_voices
from forescribe.diarize.diarizer import Voice


def voice(angle: float, samples: int = 1000) -> Voice:
    radians = np.radians(angle)
    return Voice("x", np.array([np.cos(radians), np.sin(radians)], np.float32), samples)


def test_like_voices_of_two_places_are_one_person_unlike_ones_two() -> None:
    voices = [(0, voice(0)), (0, voice(80)), (1, voice(85)), (1, voice(5))]
    assert link_voices(voices, 0.9) == [0, 1, 1, 0]


def test_two_voices_of_one_place_stay_two_however_alike() -> None:
    assert link_voices([(0, voice(0)), (0, voice(1)), (1, voice(0))], 0.5) == [0, 1, 0]


def test_bounds_override_the_similarity() -> None:
    voices = [(0, voice(0)), (1, voice(40)), (2, voice(90))]
    assert link_voices(voices, 0.99) == [0, 1, 2]
    assert link_voices(voices, 0.99, most=2) == [0, 0, 1]
    assert link_voices(voices, 0.1, least=2) == [0, 0, 1]


def test_a_voice_without_a_vector_stays_alone() -> None:
    nobody = Voice("x", None, 10)
    assert link_voices([(0, voice(0)), (1, nobody), (2, voice(0)), (3, nobody)], 0.5) == [
        0,
        1,
        0,
        2,
    ]
