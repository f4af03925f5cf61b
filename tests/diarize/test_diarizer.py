"""Bounds, and the record that every engine gives back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from forescribe.asr.errors import UsageError
from forescribe.diarize.diarizer import Bounds, Diarization, Engine, Voice
from forescribe.diarize.turns import Turns, anonymous
from tests.diarize.test_turns import turns


@pytest.mark.parametrize(
    "wrong",
    [
        {"exactly": 0},
        {"exactly": 101},
        {"exactly": 1.5},
        {"at_least": "2"},
        {"at_least": -1},
        {"at_most": 0},
        {"exactly": 2, "at_most": 3},
        {"at_least": 3, "at_most": 2},
    ],
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="speakers"):
        Bounds(**wrong)


def test_a_count_outside_of_the_bounds_is_said_and_silence_breaks_none() -> None:
    assert Bounds(at_least=2, at_most=3).notices(2) == ()
    assert Bounds(exactly=4).notices(0) == ()
    (notice,) = Bounds(at_least=2, at_most=3).notices(1)
    assert notice.code == "speaker_count" and "2 to 3" in notice.message
    assert "where 4 were" in Bounds(exactly=4).notices(2)[0].message


@given(turns())
def test_a_diarization_names_by_first_appearance_and_ends_with_the_recording(given: Turns) -> None:
    length = 3000 * 16
    voices = tuple(Voice(who, np.array([1, 0], np.float32), 1) for who in "ABCD")
    found = Diarization.of(given, given, voices, length, Engine("test"))
    assert found.speakers == tuple(map(anonymous, range(len(found.speakers))))
    assert [voice.speaker for voice in found.voices] == list(found.speakers)
    assert all(turn.end_sample <= length for turn in found.regular)
