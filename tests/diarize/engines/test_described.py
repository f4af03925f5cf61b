"""What the clustering is told of pieces: links, pauses, and who speaks at once."""

from __future__ import annotations

import numpy as np
import pytest

from forescribe.diarize.engines.clustering import Pieces
from forescribe.diarize.engines.embedded import AT_ONCE, LINKED, OTHERS, described
from forescribe.diarize.engines.pieces import MEMORY, Activity, Piece, Run

Place = tuple[int, int]


def told(runs: dict[tuple[int, int, int], list[Place]]) -> Pieces:
    """Runs as (slot, start, end), in order, with the places of their pieces."""
    pieces = [Piece(n, *place) for n, own in enumerate(runs.values()) for place in own]
    pieces.sort(key=lambda piece: (piece.start, piece.end))
    none = np.zeros((0, 3))
    activity = Activity(
        none.astype(np.float32),
        none > 0,
        none[:, 0] > 0,
        tuple(Run(*run) for run in runs),
        tuple(pieces),
    )
    found = described(activity, np.eye(len(pieces)))
    assert np.array_equal(found.links, found.links.T) and not np.diag(found.links).any()
    assert np.array_equal(found.apart, found.apart.T) and not np.diag(found.apart).any()
    assert found.gaps.shape == (len(pieces) - 1,)
    return found


def test_adjacent_pieces_of_a_run_are_linked_the_less_the_longer_the_pause() -> None:
    found = told({(0, 0, 500): [(0, 150), (150, 300), (310, 400), (430, 500)]})
    links = np.diag(found.links, 1)
    assert links[0] == LINKED and (np.diff(links) < 0).all()
    assert links[2] == pytest.approx(LINKED / 3, rel=0.15)
    assert np.count_nonzero(found.links) == 6  # none but adjacent ones
    assert found.gaps == pytest.approx([0, 0.1, 0.3])
    assert found.seconds == pytest.approx([1.5, 1.5, 0.9, 0.7])
    assert not found.apart.any()


def test_consecutive_pieces_of_two_slots_are_probably_two_people_while_slots_are_remembered() -> (
    None
):
    for pause, link in ((0, -OTHERS), (MEMORY, -OTHERS), (MEMORY + 1, 0.0)):
        start = 100 + pause
        found = told({(0, 0, 100): [(0, 100)], (2, start, start + 100): [(start, start + 100)]})
        assert found.links[0, 1] == link and np.isinf(found.gaps).all()


@pytest.mark.parametrize("shared", [0, AT_ONCE - 1, AT_ONCE, 3 * AT_ONCE])
def test_all_pieces_of_runs_that_share_half_a_second_are_apart(shared: int) -> None:
    """Slot 1 falls in before slot 0 has ended."""
    start = 400 - shared
    found = told(
        {
            (0, 0, 400): [(0, 100), (110, start)],
            (1, start, 700): [(400, 500), (500, 700)],
            (0, 800, 900): [(800, 900)],
        }
    )
    one, other = np.array([1, 1, 0, 0, 0]), np.array([0, 0, 1, 1, 0])
    expected = np.outer(one, other) + np.outer(other, one) > 0
    assert np.array_equal(found.apart, expected & (shared >= AT_ONCE))
