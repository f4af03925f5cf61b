"""Clustering of synthetic vectors in pyannote's shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.diarize.engines.fake_engines import plda

pytest.importorskip("pyannote.audio")

WINDOWS, DIMENSIONS = 50, 256
PARAMETERS = {"threshold": 1.2, "Fa": 0.1, "Fb": 1.6}


@pytest.fixture(scope="module")
def clustering(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from forescribe.diarize.engines.clustering import SplittingVBx
    from forescribe.diarize.engines.upstream import PLDA

    folder = tmp_path_factory.mktemp("plda")
    plda(folder, DIMENSIONS, 128)
    return SplittingVBx(
        PLDA(folder / "xvec_transform.npz", folder / "plda.npz", lda_dimension=64)
    ).instantiate(PARAMETERS)


def heard(voices: int, *, spread: float = 0.04) -> np.ndarray:
    """[WINDOWS * voices, 1, D]: each voice in turn, around a direction of its own."""
    rng = np.random.default_rng(voices)
    centres = np.linalg.qr(rng.standard_normal((DIMENSIONS, voices)))[0].T
    rows = np.repeat(centres, WINDOWS, axis=0)
    return (rows + spread * rng.standard_normal(rows.shape)).astype(np.float32)[:, None]


def spoken(count: int) -> Any:
    """Speech in every frame of `count` windows."""
    from forescribe.diarize.engines.upstream import SlidingWindow, SlidingWindowFeature

    place = SlidingWindow(start=0, duration=1.6, step=0.256)
    return SlidingWindowFeature(np.ones((count, 50, 1)), place)


@pytest.mark.parametrize("voices", [2, 3, 5])
def test_voices_that_differ_are_told_apart_and_counted(clustering: Any, voices: int) -> None:
    vectors = heard(voices)
    labels, scores, centres = clustering(vectors, spoken(len(vectors)), max_clusters=100)
    assert len(centres) == voices and scores.shape == (len(vectors), 1, voices)
    rows = labels.reshape(voices, WINDOWS)
    assert (rows == rows[:, :1]).all() and len(set(rows[:, 0].tolist())) == voices


@pytest.mark.parametrize(
    ("bounds", "count"),
    [
        ({"num_clusters": 2, "min_clusters": 2, "max_clusters": 2}, 2),
        ({"num_clusters": 5, "min_clusters": 5, "max_clusters": 5}, 5),
        ({"min_clusters": 4, "max_clusters": 100}, 4),
        ({"min_clusters": 1, "max_clusters": 2}, 2),
        ({"min_clusters": 1, "max_clusters": 1}, 1),
    ],
)
def test_bounds_override_the_clustering(
    clustering: Any, bounds: dict[str, int], count: int
) -> None:
    vectors = heard(3)
    labels, _, centres = clustering(vectors, spoken(len(vectors)), **bounds)
    assert len(centres) == count and set(labels.ravel().tolist()) == set(range(count))


def test_one_voice_is_not_parted(clustering: Any) -> None:
    vectors = heard(1)
    labels, _, centres = clustering(vectors, spoken(len(vectors)), max_clusters=100)
    assert len(centres) == 1 and not labels.any()


def test_very_little_speech_is_one_voice(clustering: Any) -> None:
    vectors = heard(2)[:1]
    _, _, centres = clustering(vectors, spoken(1), max_clusters=100)
    assert np.allclose(centres, vectors[0])
    silent = spoken(1)
    silent.data[:] = 0
    labels, _, centres = clustering(vectors, silent, max_clusters=100)
    assert labels.tolist() == [[0]] and len(centres) == 1


def test_windows_with_little_speech_found_no_voice(clustering: Any) -> None:
    vectors = heard(3)
    activity = spoken(len(vectors))
    activity.data[2 * WINDOWS :, 20:] = 0  # 40 % of the third voice's windows
    labels, _, centres = clustering(vectors, activity, max_clusters=100)
    assert len(centres) == 2 and len(labels) == len(vectors)
    activity.data[4:, 20:] = 0  # too few are full of speech: all count
    _, _, centres = clustering(vectors, activity, max_clusters=100)
    assert len(centres) == 3


@pytest.mark.parametrize(("most", "count"), [(100, 3), (3, 3), (2, 2)])
def test_two_of_several_voices_that_were_merged_are_parted(
    clustering: Any, monkeypatch: pytest.MonkeyPatch, most: int, count: int
) -> None:
    vectors = heard(3)
    one, two = vectors[: 2 * WINDOWS, 0].mean(0), vectors[2 * WINDOWS :, 0].mean(0)
    monkeypatch.setattr(clustering, "_vbx", lambda heard: np.stack([one, two]).astype(float))
    labels, _, centres = clustering(vectors, spoken(len(vectors)), max_clusters=most)
    assert len(centres) == count
    merged = labels.reshape(3, WINDOWS)
    assert (merged == merged[:, :1]).all() and len(set(merged[:, 0].tolist())) == count


def test_a_voice_of_a_few_seconds_is_not_parted_from_several(
    clustering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = heard(3)[WINDOWS - 20 :]  # 5 s of the first voice
    one, two = vectors[: WINDOWS + 20, 0].mean(0), vectors[WINDOWS + 20 :, 0].mean(0)
    monkeypatch.setattr(clustering, "_vbx", lambda heard: np.stack([one, two]).astype(float))
    _, _, centres = clustering(vectors, spoken(len(vectors)), max_clusters=100)
    assert len(centres) == 2
