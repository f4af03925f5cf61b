"""Notices of a transcript: equal ones are one, and nothing about them is unbounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.errors import AudioError, clipped
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Notice, merged

notices = st.builds(
    Notice,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["x", "y", "z" * 5000, "x (2 times)"]),
    st.integers(1, 3),
    st.lists(st.floats(0, 1e6), max_size=3).map(tuple),
)


def transcript(*warnings: Notice) -> Transcript:
    return Transcript((), 0, Coverage(), warnings=warnings)


def test_equal_notices_are_one_with_a_count_and_the_first_places() -> None:
    given = [Notice("gap", "lost", places=(float(n),)) for n in range(5)]
    other = Notice("gap", "lost twice")
    assert merged([*given, other]) == (Notice("gap", "lost (5 times)", 5, (0.0, 1.0, 2.0)), other)


@given(st.lists(notices, max_size=8))
def test_merging_twice_changes_nothing_and_loses_no_count(given) -> None:
    once = merged(given)
    assert merged(once) == once
    assert sum(n.count for n in once) == sum(n.count for n in given)
    assert all(len(n.places) <= 3 for n in once)


def test_the_json_of_one_is_as_before_and_of_several_has_count_and_places() -> None:
    several = Notice("audio_gap", "3 gaps", 3, (0.5, 1.5, 2.5))
    made = transcript(Notice("short_audio", "short"), several)
    assert made.to_dict()["warnings"] == [
        {"code": "short_audio", "message": "short"},
        {"code": "audio_gap", "message": "3 gaps", "count": 3, "places": [0.5, 1.5, 2.5]},
    ]
    assert Transcript.from_dict(made.to_dict()).warnings == made.warnings


@given(st.text(max_size=60), st.integers(8, 40))
def test_a_clipped_text_keeps_both_ends(text, length) -> None:
    short = clipped(text, length)
    assert len(short) <= length
    assert short == text or (len(text) > length and short[0] == text[0] and short[-1] == text[-1])


def test_the_message_of_an_error_is_bounded() -> None:
    error = AudioError("head " + "x" * 1_000_000 + " advice")
    assert len(error.message) <= 4000
    assert error.message.startswith("head ") and error.message.endswith(" advice")
