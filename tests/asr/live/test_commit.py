"""Words are released in order and never taken back; what the final text contradicts is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.decode.results import Token
from forescribe.asr.live.commit import Committer, Delay, LiveWord, Place, aligned

DELAYS: tuple[Delay, ...] = ("minimal", "low", "medium", "high", "xhigh")


def words(text: str) -> list[LiveWord]:
    return [LiveWord(" " + word) for word in text.split()]


def text(released: list[LiveWord]) -> str:
    return "".join(word.text for word in released).strip()


@pytest.mark.parametrize(
    ("released", "heard", "place"),
    [
        ("a b c", "a b c d", Place(3, 3, 0)),
        ("a b c", "a b", Place(2, 2, 0)),
        ("a b c", "a x c d", Place(3, 3, 1)),
        ("a b c", "a c d", Place(3, 2, 1)),
        ("a b c", "a b new c d", Place(3, 4, 0)),
        ("a b", "x y z", Place(2, 2, 2)),
        ("", "a b", Place(0, 0, 0)),
        ("a b", "", Place(0, 0, 0)),
    ],
)
def test_two_texts_are_matched_up_to_the_end_of_one(released: str, heard: str, place: Place):
    assert aligned(released.split(), heard.split()) == place


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ("minimal", ["the cat", "sat", "on", ""]),
        ("low", ["the cat", "sat", "on", ""]),
        ("medium", ["", "The cat sat", "on", "the"]),
        ("high", ["", "The cat", "sat", ""]),
        ("xhigh", ["", "", "the cat sat", "on"]),
    ],
)
def test_each_delay_has_its_rule(delay: Delay, expected: list[str]):
    committer = Committer(delay)
    heard = ["the cat sat", "The cat sat on", "the cat sat on the", "the cat sat on the"]
    assert [text(committer.update(words(one))) for one in heard] == expected


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ("low", ["the", "cat sat on", "the", ""]),
        ("medium", ["", "the", "cat sat on the", "mat"]),
        ("high", ["", "the", "cat sat on", ""]),
    ],
)
def test_a_doubtful_word_waits_for_another_hypothesis(delay: Delay, expected: list[str]):
    def sure(word: str) -> LiveWord:
        logprob = -1.0 if word == "cat," else -0.1
        return LiveWord(f" {word}", (Token(f" {word}", logprob, b""), Token(",", -9.0, b"")))

    committer = Committer(delay)
    heard = [
        "the cat, sat on",
        "the cat, sat on the",
        "the cat, sat on the mat",
        "the cat, sat on the mat",
    ]
    told = [text(committer.update([sure(w) for w in one.split()])) for one in heard]
    assert told == [one.replace("cat", "cat,") for one in expected]


def test_contradicted_words_are_counted_once_each():
    committer = Committer("minimal")
    committer.update(words("and so am I fellow Americans ask"))
    committer.close(words("and so my fellow Americans"))
    committer.close(words("ask not"))
    committer.end()
    assert committer.contradicted == 2  # "am I" for "my"


@given(
    delay=st.sampled_from(DELAYS),
    heard=st.lists(st.lists(st.sampled_from("abc"), max_size=9), max_size=6),
    final=st.lists(st.sampled_from("abc"), max_size=9),
    cut=st.integers(0, 9),
)
def test_releases_follow_the_hypotheses_and_end_with_the_final_text(
    delay: Delay, heard: list[list[str]], final: list[str], cut: int
):
    committer, released = Committer(delay), list[str]()
    for one in heard:
        new = [word.text.strip() for word in committer.update(words(" ".join(one)))]
        assert " ".join(new) in " ".join(one)
        released += new
    for part in (final[:cut], final[cut:]):
        released += [word.text.strip() for word in committer.close(words(" ".join(part)))]
    committer.end()
    assert committer.released == len(released)
    assert committer.contradicted <= len(released)
    if not any(heard):
        assert released == final and committer.contradicted == 0
