"""A transcript with speakers: its text and times are the recogniser's own."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Notice, Word
from forescribe.diarize.attribution import attribute_speakers, without_speakers
from forescribe.diarize.turns import Turns
from tests.diarize.attribution.test_word_speakers import even, heard, said, words_and_turns
from tests.diarize.conversations import transcript


@given(words_and_turns(), st.integers(1, 7), st.booleans())
def test_no_word_is_dropped_changed_or_moved_and_every_one_has_the_key(
    case: tuple[list[Word], Turns], size: int, timed: bool
) -> None:
    words, turns = case
    given = transcript([words[n : n + size] for n in range(0, len(words), size)], words=timed)
    found = attribute_speakers(given, turns, turns)
    assert found.text == given.text
    assert "".join(s.text for s in found.segments) == "".join(s.text for s in given.segments)
    if timed:
        kept = [word for segment in found.segments for word in segment.words or ()]
        assert [(w.text, w.start_sample, w.end_sample) for w in kept] == [
            (w.text, w.start_sample, w.end_sample) for w in words
        ]
    assert [s.id for s in found.segments] == list(range(len(found.segments)))
    for one in found.segments:
        assert {word.speaker for word in one.words or ()} <= {one.speaker}
        assert one.start_sample <= one.end_sample
    data = found.to_dict()
    assert Transcript.from_dict(json.loads(json.dumps(data))) == found
    for segment in data["segments"]:  # type: ignore[union-attr]
        assert "speaker" in segment  # type: ignore[operator]
        assert all("speaker" in word for word in segment.get("words", []))  # type: ignore


@given(words_and_turns(), words_and_turns())
def test_speakers_that_are_replaced_leave_no_trace(
    case: tuple[list[Word], Turns], other: tuple[list[Word], Turns]
) -> None:
    (words, turns), (_, before) = case, other
    given = transcript([words[n : n + 4] for n in range(0, len(words), 4)])  # of one window
    given = replace(given, warnings=(Notice("vad", "kept"),))
    old = attribute_speakers(given, before, before)
    old = replace(old, warnings=(*old.warnings, Notice("speaker_count", "gone")))
    found, expected = (
        attribute_speakers(one, turns, turns) for one in (without_speakers(old), given)
    )
    assert [s.continues for s in without_speakers(old).segments] == [False] * len(given.segments)
    lost = [replace(s, tokens=()) for s in found.segments]
    assert lost == [replace(s, tokens=()) for s in expected.segments]
    assert found.turns == expected.turns and found.warnings == expected.warnings


def test_a_segment_is_cut_where_the_speaker_changes_and_loses_its_tokens() -> None:
    given = transcript([even(5, sign=".") + even(5, 2.2, sign="."), even(4, 5.0)])
    turns = heard((0, 2.1, "A"), (2.1, 7, "B"))
    found = attribute_speakers(given, turns, turns)
    assert [(s.speaker, len(s.words or ()), s.tokens) for s in found.segments] == [
        ("A", 5, ()),
        ("B", 5, ()),
        ("B", 4, (1, 2)),
    ]
    assert [(s.start, s.end) for s in found.segments[:2]] == [(0, 1.9), (2.2, 4.1)]
    assert found.segments[2].start == 5.0


def test_a_segment_without_word_times_gets_the_speaker_of_most_of_its_time() -> None:
    given = transcript([even(10)], words=False)
    turns = heard((0, 1.2, "A"), (1.2, 5, "B"))
    found = attribute_speakers(given, turns, turns)
    assert [s.speaker for s in found.segments] == ["B"] and found.segments[0].words is None
    early = attribute_speakers(given, *[heard((0, 2.6, "A"), (2.6, 5, "B"))] * 2)
    assert [s.speaker for s in early.segments] == ["A"]  # later times weigh no more
    assert found.turns == tuple(turns) and found.diarized
    (last,) = attribute_speakers(transcript([even(1)], words=False), turns, turns).segments
    assert last.speaker == "A"  # also the only word of a segment has a time
    given, turns = (
        transcript([[said(" so", 0, 1)]], words=False),
        heard((0, 0.55, "A"), (0.55, 1, "B")),
    )
    (whole,) = attribute_speakers(given, turns, turns).segments
    assert whole.speaker == "A"  # all of it


def test_a_listeners_word_that_was_left_out_counts_in_the_coverage() -> None:
    """B says something during A's sentence, and no word was written for it."""
    regular = heard((0, 5, "A"), (2, 2.8, "B"), (6, 6.1, "B"))
    exclusive = heard((0, 5, "A"), (6, 6.1, "B"))
    found = attribute_speakers(transcript([even(12, sign=".")]), regular, exclusive)
    assert {word.speaker for segment in found.segments for word in segment.words or ()} == {"A"}
    coverage = found.to_dict()["coverage"]
    assert coverage["turns_without_words_s"] == 0.8  # type: ignore[index, call-overload]
    (segment,) = found.to_dict()["segments"]  # type: ignore[misc]
    others = [word.get("other_speakers") for word in segment["words"]]  # type: ignore
    assert others == [None] * 5 + [["B"]] * 2 + [None] * 5
    told = attribute_speakers(transcript([even(12)], words=False), regular, exclusive)
    assert told.coverage.unwritten_turn_samples is None  # no word times, so nobody knows
