"""Clustering of synthetic vectors under a small PLDA, and agglomeration against a plain one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from forescribe.diarize.engines import clustering
from forescribe.diarize.engines.clustering import (
    NAME,
    Clusters,
    ClusterSettings,
    Pieces,
    Plda,
    agglomerate,
    cluster,
)

WIDE, NARROW = 64, 48
LENGTH = 1.5

MOST = 100
SETTINGS = ClusterSettings()


@pytest.fixture(scope="module")
def plda(tmp_path_factory: pytest.TempPathFactory) -> Plda:
    """One that only turns and shortens vectors, with the noise of the bundled one."""
    folder = tmp_path_factory.mktemp("plda")
    turned, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((WIDE, NARROW)))
    np.savez(
        folder / NAME,
        mean1=np.zeros(WIDE),
        lda=turned,
        mean2=np.zeros(NARROW),
        mu=np.full(NARROW, 0.5),
        tr=np.roll(np.eye(NARROW), 1, axis=0),
        psi=np.linspace(4, 0.2, NARROW),
        noise=np.array([0.4, 0.9]),
    )
    return Plda(folder)


@dataclass(frozen=True)
class Talk:
    """Pieces, and whose each is."""

    pieces: Pieces
    truth: np.ndarray


def unlinked(vectors: np.ndarray, seconds: np.ndarray | float = LENGTH) -> Pieces:
    """Pieces of which nothing but vectors and lengths is known."""
    count = len(vectors)
    return Pieces(
        vectors,
        np.broadcast_to(np.asarray(seconds, float), (count,)).copy(),
        np.zeros((count, count)),
        np.zeros((count, count), bool),
        np.full(max(0, count - 1), np.inf),
    )


def talk(plda: Plda, speakers: int, each: int = 12, *, seed: int = 0) -> Talk:
    """Pieces of 0.6 to 2 s, in random order, as the PLDA expects them."""
    rng = np.random.default_rng([speakers, seed])
    truth = rng.permutation(np.repeat(np.arange(speakers), each))
    seconds = rng.uniform(0.6, 2.0, len(truth))
    # At right angles, as two of random voices in so few dimensions would often be alike.
    turned, _ = np.linalg.qr(rng.standard_normal((NARROW, NARROW)))
    voices = turned[:speakers] * np.sqrt(plda.psi.sum())
    noise = rng.standard_normal((len(truth), NARROW)) / np.sqrt(plda.precision(seconds))[:, None]
    return Talk(unlinked(voices[truth] + noise, seconds), truth)


def same(found: np.ndarray, truth: np.ndarray) -> bool:
    """Whether both divide alike."""
    return bool(((found[:, None] == found) == (truth[:, None] == truth)).all())


def valid(found: Clusters, count: int) -> bool:
    speakers = len(found.means)
    return (
        found.labels.shape == (count,)
        and found.chances.shape == (count, speakers)
        and bool((found.labels >= 0).all() and (found.labels < speakers).all())
        and bool((found.chances >= 0).all())
        and np.allclose(found.chances.sum(1), 1)
        and np.allclose(np.linalg.norm(found.means, axis=1), 1)
    )


@pytest.mark.parametrize("speakers", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_voices_are_told_apart_and_counted(plda: Plda, speakers: int, seed: int) -> None:
    given = talk(plda, speakers, seed=seed)
    found = cluster(given.pieces, plda, 1, MOST)
    assert valid(found, len(given.truth)) and len(found.means) == speakers
    assert same(found.labels, given.truth)
    assert (found.chances.argmax(1) == found.labels).all()  # no change costs anything here


@pytest.mark.parametrize(
    ("least", "most", "count"),
    [(1, 1, 1), (1, 2, 2), (2, 2, 2), (3, 3, 3), (4, MOST, 4), (5, 5, 5), (36, 36, 36)],
)
def test_bounds_override_the_evidence(plda: Plda, least: int, most: int, count: int) -> None:
    given = talk(plda, 3)
    found = cluster(given.pieces, plda, least, most)
    assert valid(found, len(given.truth)) and len(found.means) == count
    assert len(set(found.labels.tolist())) == count


def test_the_same_pieces_have_the_same_answer_and_their_order_does_not_matter(plda: Plda) -> None:
    given = talk(plda, 4)
    twice = np.tile(np.arange(len(given.truth)), 2)  # every gain has equals
    pieces = unlinked(given.pieces.vectors[twice], given.pieces.seconds[twice])
    one, two = cluster(pieces, plda, 1, MOST), cluster(pieces, plda, 1, MOST)
    assert np.array_equal(one.labels, two.labels) and np.array_equal(one.chances, two.chances)
    assert same(one.labels, given.truth[twice])
    order = np.random.default_rng(0).permutation(len(twice))
    moved = cluster(unlinked(pieces.vectors[order], pieces.seconds[order]), plda, 1, MOST)
    assert same(moved.labels, one.labels[order])


def test_speakers_who_sound_nearly_alike_are_one(
    plda: Plda, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = talk(plda, 2, 30)
    voices = np.zeros((2, NARROW))
    voices[:, 0], voices[:, 1] = 8, [4, -4]  # far apart, but with a cosine of 0.6
    noise = np.random.default_rng(0).standard_normal((60, NARROW))
    pieces = unlinked(voices[given.truth] + noise, 2.0)
    assert len(cluster(pieces, plda, 1, MOST).means) == 1
    assert same(cluster(pieces, plda, 2, MOST).labels, given.truth)
    monkeypatch.setattr(clustering, "SETTINGS", replace(SETTINGS, alike=0.9))
    apart = cluster(pieces, plda, 1, MOST)
    assert same(apart.labels, given.truth)


def test_short_pieces_go_with_their_speaker_and_found_none(plda: Plda) -> None:
    given = talk(plda, 4)
    seconds = np.where(given.truth == 3, 0.4, given.pieces.seconds)
    seconds[np.flatnonzero(given.truth == 0)[:4]] = 0.3
    found = cluster(replace(given.pieces, seconds=seconds), plda, 1, MOST)
    assert valid(found, len(given.truth)) and len(found.means) == 3
    known = given.truth != 3
    assert same(found.labels[known], given.truth[known])


def line(*places: float) -> np.ndarray:
    """Vectors on one axis."""
    rows = np.zeros((len(places), NARROW))
    rows[:, 0] = places
    return rows


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_who_speaks_at_once_is_never_merged_not_even_with_equal_vectors(
    plda: Plda, most: int
) -> None:
    vectors, apart = line(3, 3, 3, 3, -9), np.zeros((5, 5), bool)
    apart[0, 1] = apart[1, 0] = True
    weights = plda.precision(np.ones(5))
    labels = agglomerate(vectors, weights, plda.psi, np.zeros((5, 5)), apart, 1, most)
    assert labels[0] != labels[1] and labels.max() + 1 == max(2, min(most, 3))
