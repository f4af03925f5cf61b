"""Words: a text cut at its spaces, its signs attached, in order and out of the pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.words.assembly import Pause, assemble_words, split_words
from forescribe.asr.words.timing import TokenTimes
from tests.asr.model import folders

TOKENIZER = folders.tokenizer()  # one token for each byte
STEP = 320  # samples of 20 ms
OFFSET = 7 * 480_000
LENGTH = 480_000


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def cut(text: str, language: str = "en") -> list[str]:
    return [span.text for span in split_words(TOKENIZER, language, tokens(text))]


def timed(
    text: str, borders: list[int], pauses: list[Pause] | None = None, voiced: list[tuple] = ()
) -> list[tuple]:
    """(text, start, end) of the words of one segment, in steps of 20 ms from the window's start;
    `borders` are those between the words. A sign behind a word has its end as its time."""
    boundaries: list[int] = []
    for word, start, end in zip(cut(text), borders, borders[1:], strict=False):
        signs = len(word) - len(word.rstrip(",."))
        boundaries += [start * STEP] * (len(tokens(word)) - signs) + [end * STEP] * signs
    times = TokenTimes((*boundaries, borders[-1] * STEP), (1.0,) * len(boundaries))
    ((*result,),) = assemble_words(
        TOKENIZER,
        "en",
        [(tokens(text), text)],
        times,
        pauses or [],
        OFFSET,
        length=LENGTH,
        voiced=[(OFFSET + a * STEP, OFFSET + b * STEP) for a, b in voiced],
    )
    return [
        (w.text, (w.start_sample - OFFSET) / STEP, (w.end_sample - OFFSET) / STEP) for w in result
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" At 10:30, pay $1,250.50.", [" At", " 10:30,", " pay", " $1,250.50."]),
        (" a well-known 12% of 3.5", [" a", " well-known", " 12%", " of", " 3.5"]),
        (' "Hello," she said. "Yes!"', [' "Hello,"', " she", " said.", ' "Yes!"']),
        (" he said - and left ...", [" he", " said", " - and", " left ..."]),
        (' he said " yes "', [" he", " said", ' " yes "']),
        (" a  b ", [" a ", " b "]),
        (" - No", [" - No"]),
        ("...", ["..."]),
        ("", []),
    ],
)
def test_words_stand_between_spaces_with_their_signs(text, expected):
    assert cut(text) == expected


def test_a_character_broken_in_two_leaves_one_word_with_all_of_the_text():
    broken = tokens(" caf\u00e9")[:-1]
    whole = TOKENIZER.decode(broken, clean_up_tokenization_spaces=False)
    times = TokenTimes(tuple(range(0, 320 * (len(broken) + 1), 320)), (0.5,) * len(broken))
    ((*result,),) = assemble_words(TOKENIZER, "en", [(broken, whole)], times, [], 0, length=LENGTH)
    assert "".join(word.text for word in result) == whole
    assert result[-1].end_sample == times.boundaries[-1]


def test_a_sign_takes_no_time_from_its_neighbours():
    text = " ab, cd"
    ids = tokens(text)  # " ", a, b, ",", " ", c, d
    boundaries = tuple(STEP * at for at in (0, 2, 4, 10, 30, 32, 34, 40))
    chances = (0.5, 0.5, 0.5, 0.001, 1.0, 1.0, 1.0)
    ((first, second),) = assemble_words(
        TOKENIZER, "en", [(ids, text)], TokenTimes(boundaries, chances), [], 0, length=LENGTH
    )
    assert (first.start_sample, first.end_sample) == (0, 10 * STEP)
    assert (second.start_sample, second.end_sample) == (30 * STEP, 40 * STEP)
    assert (first.probability, second.probability) == (0.5, 1.0)


def test_a_pause_pushes_the_words_on_both_sides_out_of_itself():
    # The path puts the border of " two" and " three" into the middle of the pause from 52 to 68.
    found = timed(" one two three four", [0, 25, 60, 85, 110], [Pause(52 * STEP, 68 * STEP)])
    assert found == [(" one", 0, 25), (" two", 25, 52), (" three", 68, 85), (" four", 85, 110)]


@pytest.mark.parametrize(
    ("borders", "voiced", "expected"),
    [
        # The path takes a breath from 20 to 40 for " one", and the voice begins at 60.
        ([20, 40, 80, 100], [(60, 100)], [(60, 70), (70, 80), (80, 100)]),
        ([20, 30, 60, 100], [(60, 100)], [(20, 30), (30, 60), (60, 100)]),  # several: not moved
        ([20, 40, 80, 100], [(220, 300)], [(20, 40), (40, 80), (80, 100)]),  # too far away
        ([20, 40, 80, 100], [], [(20, 40), (40, 80), (80, 100)]),  # nobody listened
        ([0, 40, 80, 100], [(0, 30), (70, 100)], [(0, 40), (40, 80), (80, 100)]),
        # " two" takes the whole pause behind a heading without a full stop.
        ([0, 40, 170, 190], [(0, 30), (180, 190)], [(0, 40), (180, 185), (185, 190)]),
    ],
)
def test_a_word_begins_where_its_voice_does_and_not_in_the_breath_before(borders, voiced, expected):
    found = timed(" one two three", borders, voiced=voiced)
    assert [span[1:] for span in found] == expected


def test_every_word_lasts_at_least_a_step_of_the_encoder():
    """The path may put several tokens on one frame, also on the last one."""
    borders = [10, 10, 10, 40, 1500, 1500]
    found = timed(" a b c one two", borders)
    assert found == [(" a", 10, 11), (" b", 11, 12), (" c", 12, 40), (" one", 40, 1499),
                     (" two", 1499, 1500)]  # fmt: skip


PIECES = st.sampled_from(
    [" a", " the", " well-known", " 10:30", " $1,250", " 12%", ",", ".", "?", ' "', '"', " -", " ...",
     " (", ")", " caf\u00e9", "\u96e8", " \u2014", " "]
)  # fmt: skip


@st.composite
def windows(draw):
    """Segments with a time for every token, and pauses, of a window of up to 30 s."""
    texts = draw(st.lists(st.lists(PIECES, min_size=1, max_size=8).map("".join), max_size=4))
    count = sum(len(tokens(text)) for text in texts)
    length = draw(st.integers(1, 480_000))
    times = st.lists(st.integers(0, length), min_size=count + 1, max_size=count + 1)
    boundaries = tuple(sorted(draw(times)))
    chances = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    edges = sorted(draw(st.sets(st.integers(0, length), max_size=10)))
    pauses = [Pause(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    return texts, TokenTimes(boundaries, tuple(chances)), pauses, length


@given(windows(), st.sampled_from(["en", "ja", None]))
def test_words_are_the_text_in_order_and_inside_their_window(window, language):
    texts, times, pauses, length = window
    segments = [(tokens(text), text) for text in texts]
    found = assemble_words(TOKENIZER, language, segments, times, pauses, OFFSET, length=length)
    assert ["".join(w.text for w in each) for each in found] == texts
    every = [word for each in found for word in each]
    edges = [at for word in every for at in (word.start_sample, word.end_sample)]
    assert edges == sorted(edges)
    assert not edges or OFFSET <= edges[0] and edges[-1] <= OFFSET + length
    assert all(0 <= word.probability <= 1 for word in every)
    least = min(STEP, length // max(1, len(every)))
    assert all(word.end_sample - word.start_sample >= least for word in every)


@given(windows())
def test_a_text_with_words_has_no_word_of_signs_alone(window):
    texts, times, pauses, length = window
    for text, found in zip(
        texts,
        assemble_words(
            TOKENIZER, "en", [(tokens(t), t) for t in texts], times, pauses, 0, length=length
        ),
        strict=True,
    ):
        spoken = [w for w in found if any(c.isalnum() for c in w.text)]
        if any(c.isalnum() for c in text):
            assert len(spoken) == len(found)
