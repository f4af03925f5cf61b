"""How many voices by eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

from forescribe.diarize.engines.clustering import MOST_VECTORS, spectral_labels


def clouds(*sizes: int, spread: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around as many directions, and whose each is."""
    rng = np.random.default_rng(0)
    centres = np.eye(len(sizes), 16)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    rows = centres[truth] + spread * rng.standard_normal((len(truth), 16)) / 4
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), truth


def same(found: np.ndarray, truth: np.ndarray) -> bool:
    return bool(((found[:, None] == found) == (truth[:, None] == truth)).all())


@pytest.mark.parametrize("sizes", [(40, 40), (60, 25), (30, 30, 30), (400, 700)])
def test_clouds_that_lie_apart_are_found(sizes: tuple[int, ...]) -> None:
    rows, truth = clouds(*sizes)
    assert len(rows) < MOST_VECTORS or sizes == (400, 700)
    assert same(spectral_labels(rows), truth)


def test_bounds_hold() -> None:
    rows, truth = clouds(30, 30, 30)
    assert spectral_labels(rows, least=4).max() >= 3
    assert spectral_labels(rows, most=2).max() <= 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_vectors_have_an_answer(count: int) -> None:
    rows, _ = clouds(count)
    assert spectral_labels(rows).shape == (count,)
