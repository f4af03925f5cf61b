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
EVIDENCE = 0.4
LINK = 8.0
"""Nats between adjacent pieces of one local speaker."""

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


# The PLDA


def test_a_plda_turns_vectors_as_its_file_says_whatever_their_scale(plda: Plda) -> None:
    rows = np.random.default_rng(1).standard_normal((5, WIDE)).astype(np.float32)
    with np.errstate(all="raise"):
        found = plda(rows)
    assert found.shape == (5, NARROW)
    assert np.allclose(np.linalg.norm(found + 0.5, axis=1), np.sqrt(NARROW))
    assert np.allclose(found, plda(rows * 100), atol=1e-5)


# Speakers and their number


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


# Short pieces


def test_short_pieces_go_with_their_speaker_and_found_none(plda: Plda) -> None:
    given = talk(plda, 4)
    seconds = np.where(given.truth == 3, 0.4, given.pieces.seconds)
    seconds[np.flatnonzero(given.truth == 0)[:4]] = 0.3
    found = cluster(replace(given.pieces, seconds=seconds), plda, 1, MOST)
    assert valid(found, len(given.truth)) and len(found.means) == 3
    known = given.truth != 3
    assert same(found.labels[known], given.truth[known])


# What the segmentation heard


def line(*places: float) -> np.ndarray:
    """Vectors on one axis."""
    rows = np.zeros((len(places), NARROW))
    rows[:, 0] = places
    return rows


def merged(vectors: np.ndarray, links: np.ndarray, plda: Plda) -> bool:
    """Whether two vectors of one second each are one cluster."""
    weights = EVIDENCE * plda.precision(np.ones(2))
    apart = np.zeros((2, 2), bool)
    labels = agglomerate(vectors, weights, plda.psi, links, apart)
    return bool(labels[0] == labels[1])


def test_links_pull_together_what_vectors_leave_apart_and_push_apart_what_is_alike(
    plda: Plda,
) -> None:
    link = np.array([[0.0, 1.0], [1.0, 0.0]])
    far, near = line(6, -6), line(1, 1)
    assert not merged(far, 0 * link, plda) and merged(far, LINK * link, plda)
    assert merged(near, 0 * link, plda) and not merged(near, -LINK * link, plda)


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_who_speaks_at_once_is_never_merged_not_even_with_equal_vectors(
    plda: Plda, most: int
) -> None:
    vectors, apart = line(3, 3, 3, 3, -9), np.zeros((5, 5), bool)
    apart[0, 1] = apart[1, 0] = True
    weights = plda.precision(np.ones(5))
    labels = agglomerate(vectors, weights, plda.psi, np.zeros((5, 5)), apart, 1, most)
    assert labels[0] != labels[1] and labels.max() + 1 == max(2, min(most, 3))


def test_a_sound_that_is_played_again_and_again_is_no_speaker_of_its_own(
    plda: Plda, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = talk(plda, 1, 20)
    said = given.pieces.vectors
    away = np.random.default_rng(1).standard_normal(NARROW)
    sound = said.mean(0) + away * 11 / np.linalg.norm(away)
    pieces = unlinked(np.concatenate([said, np.tile(sound, (20, 1))]))
    joining = replace(SETTINGS, alike=2.0)  # by evidence alone
    monkeypatch.setattr(clustering, "SETTINGS", joining)
    assert len(cluster(pieces, plda, 1, MOST).means) == 1
    monkeypatch.setattr(clustering, "SETTINGS", replace(joining, repeated=2.0))
    assert same(cluster(pieces, plda, 1, MOST).labels, np.arange(40) < 20)


def test_a_change_within_a_run_needs_more_evidence_than_one_between_runs(plda: Plda) -> None:
    """A short piece of A in the middle sounds a little more like B."""
    vectors = np.concatenate([line(*[6] * 8), line(-1.2), line(*[6] * 8), line(*[-6] * 8)])
    vectors[np.arange(25) != 8] += np.random.default_rng(0).standard_normal((24, NARROW))
    seconds = np.full(25, 1.5)
    seconds[8] = 0.4
    between = unlinked(vectors, seconds)
    assert cluster(between, plda, 1, MOST).labels[8] == cluster(between, plda, 1, MOST).labels[-1]
    for gap, follows in ((0.0, True), (0.1, True), (2.0, False)):
        gaps = between.gaps.copy()
        gaps[7:9] = gap
        found = cluster(replace(between, gaps=gaps), plda, 1, MOST).labels
        assert (found[8] == found[7]) == follows, gap
    gaps = between.gaps.copy()
    gaps[7:9] = 0.0
    surely = between.vectors.copy()
    surely[8] = -20
    found = cluster(replace(between, vectors=surely, gaps=gaps), plda, 1, MOST).labels
    assert found[8] != found[7] and found[9] == found[7]


# Agglomeration against the definition
