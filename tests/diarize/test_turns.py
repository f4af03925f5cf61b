"""Turns: order, views, names, and RTTM that gives them back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.diarization import read_rttm
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage
from forescribe.diarize.turns import Turn, Turns

MS = 16

speakers = st.sampled_from(["A", "B", "C", "D"])


@st.composite
def turns(draw: st.DrawFn) -> Turns:
    """Whole milliseconds, as RTTM has them."""
    starts = draw(st.lists(st.integers(0, 5000), max_size=12))
    return Turns.of(
        (start * MS, (start + draw(st.integers(1, 900))) * MS, draw(speakers)) for start in starts
    )


def at(given: Turns, sample: int) -> set[str]:
    return {t.speaker for t in given if t.start_sample <= sample < t.end_sample}


@given(turns())
def test_rttm_gives_back_what_it_was_given(given: Turns) -> None:
    told = Transcript((), 0, Coverage(), turns=tuple(given), settings={"recording": "a"})
    assert read_rttm(told.to_rttm()).get("a", Turns()) == given


@given(turns())
def test_joined_turns_have_gaps_between_turns_of_one_speaker(given: Turns) -> None:
    joined = given.joined()
    for speaker in joined.speakers:
        own = [turn for turn in joined if turn.speaker == speaker]
        assert all(a.end_sample < b.start_sample for a, b in zip(own, own[1:], strict=False))
    for sample in range(0, 6000 * MS, 50 * MS):
        assert at(joined, sample) == at(given, sample)


def test_turns_keep_their_confidence_and_joined_ones_have_the_lower_one() -> None:
    given = Turns.of([(0, 4, "A", 0.9), (2, 6, "B"), (4, 9, "A", 0.7), (20, 30, "A", 0.8)])
    for same in (given.clipped(30), given.shifted(5), given.renamed({"A": "C"})):
        assert [turn.confidence for turn in same] == [0.9, None, 0.7, 0.8]
    assert given.joined() == Turns.of([(0, 9, "A", 0.7), (2, 6, "B"), (20, 30, "A", 0.8)])
    assert Turns.of([(0, 4, "A"), (4, 5, "A", 0.6)]).joined() == Turns.of([(0, 5, "A", 0.6)])


def test_reading_ignores_other_lines_and_names_an_invalid_one() -> None:
    text = ";; a comment\nSPKR-INFO a 1 <NA> <NA> <NA> unknown A <NA> <NA>\n\n"
    assert read_rttm(text) == {}
    with pytest.raises(UsageError, match="line 5.*0.5 x"):
        read_rttm(text + "SPEAKER a 1 0 1 <NA> <NA> A\nSPEAKER a 1 0.5 x <NA> <NA> A <NA> <NA>\n")


def test_a_turn_needs_a_length_and_a_speaker() -> None:
    with pytest.raises(ValueError, match="empty or reversed"):
        Turn(5, 5, "A")
    with pytest.raises(ValueError, match="no name"):
        Turn(0, 5, " ")
