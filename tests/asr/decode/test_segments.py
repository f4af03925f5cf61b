"""A window's tokens become stretches in order, inside the window, and no text is lost."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.decode.outcome import coverage
from forescribe.asr.decode.text import compression_ratio, stretches
from forescribe.asr.model.tokens import SpecialTokens
from forescribe.asr.segment.windows import Window

SPECIAL = SpecialTokens(
    start=101,
    end=100,
    no_timestamps=109,
    no_speech=108,
    languages={"en": 102},
    tasks={"transcribe": 104, "translate": 103},
    previous=107,
)
WINDOW = 30 * 16_000


def at(time_s: float) -> int:
    """The token of a time."""
    return SPECIAL.timestamp_begin + round(time_s * 50)


def heard(*tokens: int, length: int = WINDOW) -> list[tuple[float, float, tuple[int, ...]]]:
    """Stretches in seconds."""
    found = stretches(tokens, SPECIAL, length)
    return [(s.start / 16_000, s.end / 16_000, s.tokens) for s in found]


SHAPES = {
    "pairs": ((at(0), 1, 2, at(2), at(2.5), 3, at(4)), [(0, 2, (1, 2)), (2.5, 4, (3,))]),
    "touching pairs": ((at(0), 1, at(2), at(2), 3, at(4)), [(0, 2, (1,)), (2, 4, (3,))]),
    "missing end": ((at(0), 1, at(2), at(3), 4, 5), [(0, 2, (1,)), (3, 30, (4, 5))]),
    "missing start": ((1, 2, at(2), at(3), 4, at(5)), [(0, 2, (1, 2)), (3, 5, (4,))]),
    "only timestamps": ((at(0), at(2), at(2), at(5)), []),
    "no timestamps": ((1, 2, 3), [(0, 30, (1, 2, 3))]),
    "nothing": ((), []),
    "only the end": ((100,), []),
    "single times between": ((at(1), 1, at(2), 2, at(3)), [(1, 2, (1,)), (2, 3, (2,))]),
    "no duration": ((at(2), 1, at(2)), [(2, 2, (1,))]),
    "reversed": ((at(5), 1, at(2), at(2), 2, at(6)), [(5, 5, (1,)), (5, 6, (2,))]),
    "other special tokens": ((101, 102, at(0), 1, 109, 2, at(2), 100), [(0, 2, (1, 2))]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_token_sequence_is_read(shape) -> None:
    tokens, expected = SHAPES[shape]
    assert heard(*tokens) == expected


def test_times_beyond_the_window_end_with_it() -> None:
    """A 4 s window is padded to 30 s, and the model may point into the padding."""
    tokens = (at(0), 1, at(6), at(7), 2, at(9), at(9), 3)
    assert heard(*tokens, length=64_000) == [(0, 4, (1,)), (4, 4, (2,)), (4, 4, (3,))]


@given(
    st.lists(st.one_of(st.integers(0, 99), st.integers(100, 109), st.integers(110, 1610))),
    st.integers(1, WINDOW),
)
def test_stretches_stay_in_the_window_in_order_and_keep_all_text(tokens, length) -> None:
    found = stretches(tokens, SPECIAL, length)
    assert [t for s in found for t in s.tokens] == [t for t in tokens if t < SPECIAL.end]
    borders = [border for s in found for border in (s.start, s.end)]
    assert borders == sorted(borders)
    assert all(0 <= border <= length for border in borders)
    assert all(s.tokens for s in found)


def test_the_compression_ratio_is_openais() -> None:
    text = "Grüße an alle, Grüße an alle."
    data = text.encode()
    assert compression_ratio(text) == len(data) / len(zlib.compress(data))
    assert compression_ratio("") == 0.0


def test_loud_silence_that_was_not_decoded_is_told_with_its_level() -> None:
    nothing = np.zeros(0, np.float32)
    quiet = Window(0, 0, WINDOW, False, nothing, ())
    loud = Window(1, WINDOW, WINDOW + 16_000, False, nothing, (), level_db=-30.0)
    found = coverage((), [quiet, loud])
    assert [span.reason for span in found.spans] == ["no voice activity", "no voice activity, loud"]
    assert (found.silent_samples, found.loud_samples) == (WINDOW + 16_000, 16_000)
    assert found.loud_db == pytest.approx(-30)
