"""Boundaries of turns from the level: which move, which stay, and which turns are kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forescribe.diarize.engines.embedded import BOUNDARY_FRAME, refine_boundaries
from forescribe.diarize.turns import Turns

RATE = 16_000


def sound(*parts: tuple[float, float], noise: float = 1e-4) -> np.ndarray:
    """(seconds, level) one after the other, over the noise of a room."""
    rng = np.random.default_rng(0)
    levels = np.concatenate([np.full(round(s * RATE), level) for s, level in parts])
    return (np.hypot(levels, noise) * rng.standard_normal(len(levels))).astype(np.float32)


def turns(*given: tuple[float, float, str]) -> Turns:
    return Turns.of((round(a * RATE), round(b * RATE), who) for a, b, who in given)


def seconds(found: Turns) -> list[tuple[float, float, str]]:
    return [(round(t.start, 2), round(t.end, 2), t.speaker) for t in found]


def test_a_boundary_moves_to_the_start_and_end_of_the_sound() -> None:
    heard = sound((1, 0), (2, 0.1), (1, 0))
    assert seconds(refine_boundaries(turns((1.1, 3.12, "A")), heard)) == [(1.0, 3.0, "A")]


def test_a_pause_ends_a_turn_and_a_short_one_does_not() -> None:
    heard = sound((1, 0.1), (0.2, 0), (1, 0.1), (0.5, 0), (1, 0.1))
    assert seconds(refine_boundaries(turns((0, 3.7, "A")), heard)) == [
        (0, 2.2, "A"),
        (2.7, 3.7, "A"),
    ]


def test_between_two_speakers_the_nearer_one_speaks_and_none_bridges_the_other() -> None:
    heard = sound((3, 0.1), noise=0)
    found = refine_boundaries(turns((0, 1, "A"), (1.1, 1.3, "B"), (1.3, 3, "A")), heard)
    assert found == refine_boundaries(found, heard)  # settled
    same_level = turns((0, 1, "A"), (1.1, 1.3, "B"), (1.3, 3, "A"))
    quiet = sound((1, 0.1), (0.1, 0), (0.2, 0.1), (0.1, 0), (1, 0.1), (2, 0))
    assert seconds(refine_boundaries(same_level, quiet)) == [
        (0, 1.0, "A"),
        (1.1, 1.3, "B"),
        (1.4, 2.4, "A"),
    ]


def test_in_noise_turns_stay_where_they_were() -> None:
    heard = sound((1, 0), (2, 0.1), (1, 0), noise=0.02)
    assert seconds(refine_boundaries(turns((1.1, 3.2, "A")), heard)) == [(1.1, 3.2, "A")]


def test_sound_far_from_every_turn_is_not_speech() -> None:
    heard = sound((1, 0.1), (1, 0), (1, 0.1), (1, 0))
    assert seconds(refine_boundaries(turns((0, 1, "A")), heard)) == [(0, 1.0, "A")]


def test_an_empty_recording_has_no_turns() -> None:
    assert refine_boundaries(Turns(), sound((1, 0.1))) == Turns()
    assert not refine_boundaries(turns((0, 1, "A")), np.zeros(2 * RATE, np.float32))
    assert len(refine_boundaries(turns((0, 1, "A")), np.zeros(0, np.float32))) <= 1


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.integers(0, 4000), st.sampled_from("AB")), max_size=6
    ),
    st.lists(st.sampled_from([0.0, 1e-4, 0.01, 0.3]), min_size=1, max_size=12),
)
def test_turns_stay_apart_within_the_recording_and_with_their_speakers(
    lengths: list[tuple[int, int, str]], levels: list[float]
) -> None:
    place, spans = 0, []
    for length, gap, who in lengths:
        spans.append((place + gap, place + gap + length, who))
        place += gap + length
    heard = np.repeat(np.array(levels, np.float32), 37 * BOUNDARY_FRAME)
    found = list(refine_boundaries(Turns.of(spans).clipped(len(heard)), heard))
    assert all(a.end_sample <= b.start_sample for a, b in zip(found, found[1:], strict=False))
    assert all(turn.end_sample <= len(heard) for turn in found)
    assert {turn.speaker for turn in found} <= {who for _, _, who in spans}
