"""Groups of speakers: disjoint, complete, and independent of the other speakers."""

from __future__ import annotations

import pytest

from training.speakers.folds import split


def test_every_speaker_is_in_exactly_one_group_and_the_groups_have_their_shares() -> None:
    groups = split(range(2000))
    assert len(groups.training) + len(groups.tuning) + len(groups.test) == 2000
    assert groups.training | groups.tuning | groups.test == set(range(2000))
    assert len(groups.tuning) == pytest.approx(200, abs=50)
    assert len(groups.test) == pytest.approx(300, abs=50)


def test_a_speaker_keeps_the_group_when_others_are_left_out() -> None:
    assert split(range(50)).test == split(range(2000)).test & set(range(50))
