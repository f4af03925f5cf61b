"""Words and turns: properties of every conversation, and known problems of other tools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.formats.transcript_parts import Word
from forescribe.diarize.attribution import assign_speakers
from forescribe.diarize.turns import Turns
from tests.diarize.conversations import converse

RATE = 16_000


def said(text: str, start: float, end: float) -> Word:
    return Word(text, round(start * RATE), round(end * RATE))


def heard(*turns: tuple[float, float, str]) -> Turns:
    return Turns.of((round(a * RATE), round(b * RATE), who) for a, b, who in turns)


def speakers(words: list[Word], turns: Turns) -> list[str | None]:
    return [a.speaker for a in assign_speakers(words, turns, turns)]


def even(count: int, start: float = 0.0, step: float = 0.4, sign: str = "") -> list[Word]:
    """Words of 0.3 s, the last one with `sign`."""
    texts = [f" word{n}" for n in range(count - 1)] + [f" word{count}{sign}"]
    return [said(t, start + n * step, start + n * step + 0.3) for n, t in enumerate(texts)]


names = st.sampled_from(["A", "B", "C"])


@st.composite
def words_and_turns(draw: st.DrawFn) -> tuple[list[Word], Turns]:
    at, words = 0, list[Word]()
    for gap, length in draw(
        st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 30_000)), max_size=20)
    ):
        at += gap
        text = draw(st.sampled_from([" so", " yes.", " mm-hm,", "", " 你好。", ' "stop!"']))
        words.append(Word(text, at, at + length))
        at += length
    turns = draw(
        st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 90_000), names), max_size=12)
    )
    return words, Turns.of((start, start + length, who) for start, length, who in turns)


@given(words_and_turns())
def test_every_word_has_one_attribution_with_a_confidence_from_0_to_1(
    case: tuple[list[Word], Turns],
) -> None:
    words, turns = case
    found = assign_speakers(words, turns, turns)
    assert len(found) == len(words)
    for one in found:
        assert one.speaker is None or one.speaker in turns.speakers
        assert (one.speaker is None) == (one.speaker_confidence is None)
        assert one.speaker_confidence is None or 0 <= one.speaker_confidence <= 1


@given(words_and_turns())
def test_renaming_speakers_renames_the_answer_and_nothing_else(
    case: tuple[list[Word], Turns],
) -> None:
    words, turns = case
    other = {"A": "Zoë", "B": "A", "C": "Bob"}
    renamed = turns.renamed(other)
    found = [
        replace(
            a,
            speaker=a.speaker and other[a.speaker],
            others=tuple(other[name] for name in a.others),
        )
        for a in assign_speakers(words, turns, turns)
    ]
    assert assign_speakers(words, renamed, renamed) == found


@given(words_and_turns())
def test_without_turns_no_word_has_a_speaker_and_a_single_speaker_gets_all_near_words(
    case: tuple[list[Word], Turns],
) -> None:
    words, turns = case
    assert {(w.speaker, w.overlap) for w in assign_speakers(words, Turns(), Turns())} <= {
        (None, False)
    }
    alone = turns.renamed(dict.fromkeys("ABC", "A"))
    assert set(speakers(words, alone)) <= {"A", None}


@pytest.mark.parametrize(("following", "speaker"), [(11, "long"), (10.6, "short")])
def test_a_word_in_a_gap_goes_to_the_nearest_edge_not_the_nearest_middle(
    following: float, speaker: str
) -> None:
    words = [said(" well.", 10.3, 10.5)]
    turns = heard((0, 10, "long"), (following, 11.4, "short"))
    assert speakers(words, turns) == [speaker]


def test_a_boundary_that_is_slightly_off_does_not_split_a_sentence() -> None:
    words = even(8, sign=".") + even(6, 3.3, sign=".")
    turns = heard((0, 2.9, "A"), (2.9, 6, "B"))  # truly 3.2
    assert speakers(words, turns) == ["A"] * 8 + ["B"] * 6


@pytest.mark.parametrize(("count", "stays"), [(1, False), (2, True)])
def test_one_word_within_a_sentence_is_absorbed_and_two_are_a_turn(count: int, stays: bool) -> None:
    words, end = even(12), 2 + 0.4 * count
    turns = heard((0, 2, "A"), (2, end, "B"), (end, 5, "A"))
    who = "B" if stays else "A"
    assert speakers(words, turns) == ["A"] * 5 + [who] * count + ["A"] * (7 - count)


def test_quick_turns_stay_where_plain_overlap_puts_them() -> None:
    """Two speakers in turns of two or three words, without punctuation and pauses."""
    rng = np.random.default_rng(3)
    words, turns, at, truth = [], [], 0.0, []
    for n in range(60):
        count, who = int(rng.integers(2, 4)), "AB"[n % 2]
        turns.append((at, at + 0.4 * count, who))
        words += even(count, at)
        truth += [who] * count
        at += 0.4 * count
    assert speakers(words, heard(*turns)) == truth


def test_a_short_answer_between_two_sentences_stays() -> None:
    words = [*even(6, sign="?"), said(" No.", 2.5, 2.8), *even(6, 3.0, sign=".")]
    turns = heard((0, 2.4, "A"), (2.45, 2.85, "B"), (2.95, 6, "A"))
    assert speakers(words, turns) == ["A"] * 6 + ["B"] + ["A"] * 6


def test_words_of_a_listener_in_overlap_keep_their_speaker() -> None:
    words = even(12)
    words[5:7] = [said(" Mm-hm,", 2.0, 2.3), said(" yeah.", 2.4, 2.7)]
    regular = heard((0, 5, "A"), (1.95, 2.75, "B"))
    exclusive = heard((0, 1.95, "A"), (1.95, 2.75, "B"), (2.75, 5, "A"))
    found = assign_speakers(words, exclusive, regular)
    assert [a.speaker for a in found] == ["A"] * 5 + ["B"] * 2 + ["A"] * 5
    assert found[5].overlap and found[6].overlap and not found[1].overlap


@pytest.mark.parametrize(("start", "others"), [(0.5, ("B",)), (0.6, ())])
def test_who_speaks_during_half_of_a_word_is_heard_in_it(
    start: float, others: tuple[str, ...]
) -> None:
    regular = heard((0, 2, "A"), (start, 2, "B"))
    (found,) = assign_speakers([said(" well.", 0, 1)], heard((0, 2, "A")), regular)
    assert found.others == others and found.overlap == bool(others)


def test_a_word_stretched_over_a_pause_does_not_swallow_the_next_turn() -> None:
    words = [*even(3), said(" end.", 1.2, 9.0), *even(4, 9.1, sign=".")]
    turns = heard((0, 1.6, "A"), (4, 12, "B"))
    assert speakers(words, turns) == ["A"] * 4 + ["B"] * 4


def test_words_far_from_turns_have_no_speaker_unless_their_sentence_has_one() -> None:
    words = [*even(3, sign="."), said(" Thank you.", 20, 20.5)]
    assert speakers(words, heard((0, 1.2, "A"))) == ["A"] * 3 + [None]
    trailing = [*even(3), said(" then", 2.9, 3.1), said(" so", 4.0, 4.2)]
    assert speakers(trailing, heard((0, 1.2, "A"))) == ["A"] * 5
    paused = [*even(3), said(" so", 20, 20.2)]
    assert speakers(paused, heard((0, 1.2, "A"))) == ["A"] * 3 + [None]


def test_a_ghost_speaker_of_a_few_milliseconds_gets_no_word() -> None:
    words = even(5, sign=".")
    assert speakers(words, heard((0, 2, "A"), (2.0, 2.02, "ghost"))) == ["A"] * 5


def wrong(conversations: int, **options: float) -> float:
    """The share of words with the wrong speaker."""
    rng = np.random.default_rng(7)
    errors = total = 0
    for _ in range(conversations):
        case = converse(rng, **options)  # type: ignore[arg-type]
        found = assign_speakers(case.unnamed, case.turns, case.turns)
        errors += sum(a.speaker != w.speaker for a, w in zip(found, case.words, strict=True))
        total += len(case.words)
    return errors / total


def test_simulated_conversations_have_few_wrong_words_and_exact_turns_hardly_one() -> None:
    assert wrong(10, jitter=0.35, islands=0.5) < 0.025
    assert wrong(5, jitter=0.0, missed=0.0, islands=0.0) < 0.005
