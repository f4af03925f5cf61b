"""The PLDA: it separates speakers along the trained axes, and error rates have their extremes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forescribe.diarize.engines.clustering import Plda as StoredPlda
from training.speakers.plda import Data, Plda, equal_error_rate, learn, store, train, unit


@pytest.fixture(scope="module")
def voices() -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [N, 16] of 40 speakers, 20 each; the first 6 axes carry the speaker."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 20)
    centres = np.zeros((40, 16))
    centres[:, :6] = rng.normal(size=(40, 6))
    return unit(centres[labels] + 0.6 * rng.normal(size=(len(labels), 16))), labels


def test_features_separate_speakers_better_than_the_vectors(
    voices: tuple[np.ndarray, np.ndarray],
) -> None:
    vectors, labels = voices
    plda = train(vectors, labels, 6)
    before, _ = equal_error_rate(unit(vectors - vectors.mean(0)), labels)
    after, _ = equal_error_rate(unit(plda.features(vectors)), labels)
    assert after < before


def test_equal_error_is_0_for_separate_and_half_for_random_speakers() -> None:
    labels = np.repeat([0, 1], 50)
    assert equal_error_rate(np.eye(2)[labels], labels)[0] == pytest.approx(0, abs=0.02)
    rng = np.random.default_rng(1)
    assert equal_error_rate(unit(rng.normal(size=(100, 8))), labels)[0] == pytest.approx(
        0.5, abs=0.1
    )


def test_the_diarizer_computes_the_features_of_the_training(
    tmp_path: Path, voices: tuple[np.ndarray, np.ndarray]
) -> None:
    trained: Plda = train(*voices, 6)
    store(trained, tmp_path)
    stored = StoredPlda(tmp_path)
    assert stored.psi == pytest.approx(trained.psi, rel=1e-6)
    # Matrices are stored in float16.
    assert stored(voices[0]) == pytest.approx(trained.features(voices[0]), abs=0.02)


def test_the_noise_of_pieces_falls_with_their_length() -> None:
    rng = np.random.default_rng(0)
    speakers = np.repeat(np.arange(30), 60)
    seconds = np.tile([0.5, 1.0, 2.0], 600)
    centres = rng.normal(size=(30, 200))
    spread = 0.4 / np.sqrt(seconds)[:, None]
    vectors = centres[speakers] + spread * rng.normal(size=(len(speakers), 200))
    data = Data(
        vectors, speakers, np.full(len(speakers), "clean"), seconds, np.zeros(len(speakers))
    )
    constant, by_length = learn(data).noise
    assert by_length > 0 and constant + by_length / 0.5 > constant + by_length / 2.0 > 0
