"""Clustering of pieces of speech: who is the same person, and how many there are.

Vectors are in the space of a PLDA (Ioffe 2006; Landini et al. 2022, arXiv 2012.14952): a piece of speaker y
is y plus noise, y has variances psi and the noise has variance 1, or more in short pieces. Three steps:

1. Agglomeration by evidence. Two clusters are joined while that raises the marginal likelihood of the
   vectors, which weighs how far they are apart against how much speech they have; no distance has to be
   chosen. Pieces of one recording share its room and its mood, so their evidence counts only in part
   (`evidence`).
2. What the segmentation heard is evidence too: adjacent pieces of one local speaker are probably one
   person, those of two probably not, and clusters of people who speak at once are never joined.
3. Pieces move to the speaker who explains them best, in order of time, where a change within what the
   segmentation heard as one speaker has a cost. Speakers whose mean vectors point in nearly the same
   direction are joined.

Knows vectors only. Shapes: N pieces, K speakers, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.errors import ModelError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Flags = NDArray[np.bool_]

NAME = "plda.npz"
"""The file of a PLDA in a folder."""


@dataclass(frozen=True)
class ClusterSettings:
    """Chosen on mixtures of readers that trained nothing (docs/development/diarization-measurements.md)."""

    evidence: float = 0.5  # share of a piece's evidence that counts
    repeated: float = 0.85  # cosine from which two pieces are the same sound, played again
    shortest_s: float = 0.5  # of a piece that founds clusters; shorter ones are assigned only
    smallest_s: float = 1.0  # of speech of a cluster
    alike: float = 0.5  # cosine of means from which two speakers are one
    change: float = 7.5  # nats, of a change of speaker between adjacent pieces of one local speaker
    change_s: float = 0.25  # over which that falls to a third
    rounds: int = 5  # of moving pieces, at most
    sharpness: float = 0.35  # of probabilities: a piece's dimensions are not independent


SETTINGS = ClusterSettings()


class Plda:
    """A PLDA with 128 dimensions, and the noise of pieces by their length."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for a missing or damaged file."""
        names = ("mean1", "lda", "mean2", "mu", "tr")
        try:
            with np.load(folder / NAME) as arrays:
                self._mean1, self._lda, self._mean2, self._mu, self._axes = (
                    arrays[name].astype(np.float64) for name in names
                )
                self.psi: Floats = arrays["psi"].astype(np.float64)
                self._constant, self._by_length = arrays["noise"].astype(float).tolist()
        except Exception as error:  # numpy, zipfile and zlib raise different ones
            raise ModelError(f"no PLDA in {str(folder / NAME)!r}: {error}") from error

    def __call__(self, vectors: NDArray[np.floating]) -> Floats:
        """[N, 192] vectors of the encoder -> [N, 128]."""
        wide, narrow = np.sqrt(self._lda.shape)
        whitened = unit(unit(vectors.astype(np.float64)) - self._mean1) * wide @ self._lda
        return np.asarray((unit(whitened - self._mean2) * narrow - self._mu) @ self._axes.T)

    def precision(self, seconds: Floats) -> Floats:
        """[N] lengths of pieces -> [N], the inverse of their noise."""
        return np.asarray(1 / (self._constant + self._by_length / np.maximum(seconds, 0.1)))


@dataclass(frozen=True, eq=False)
class Pieces:
    """What is known of N pieces, in order of time."""

    vectors: Floats  # [N, D], in the space of the PLDA
    seconds: Floats  # [N]
    links: Floats  # [N, N] nats for being one speaker, symmetric
    apart: Flags  # [N, N] who speak at once, symmetric
    gaps: Floats  # [N - 1] seconds between a piece and the next; infinite between local speakers


@dataclass(frozen=True, eq=False)
class Clusters:
    """Speakers of pieces."""

    labels: Labels  # [N], from 0 to K - 1
    chances: Floats  # [N, K], how probable each speaker is by the piece alone
    means: Floats  # [K, D] unit vectors


def cluster(pieces: Pieces, plda: Plda, least: int, most: int) -> Clusters:
    """Find the speakers of N >= 1 pieces: `least` to `most` of them, if the pieces allow."""
    precision = plda.precision(pieces.seconds)
    founding = np.flatnonzero(pieces.seconds >= SETTINGS.shortest_s)
    if len(founding) < max(2, least):
        founding = np.arange(len(pieces.seconds))
    # Sound that is played again (announcements, jingles) says nothing new about a voice, and would make a
    # speaker of its own.
    directions = unit(pieces.vectors)
    heard = (directions @ directions.T > SETTINGS.repeated).sum(1).clip(min=1)
    weights = SETTINGS.evidence * precision / heard
    labels = agglomerate(
        pieces.vectors[founding],
        weights[founding],
        plda.psi,
        pieces.links[np.ix_(founding, founding)],
        pieces.apart[np.ix_(founding, founding)],
        least,
        most,
    )
    amounts = np.bincount(labels, pieces.seconds[founding])
    order = np.argsort(-amounts)
    kept = [k for n, k in enumerate(order) if n < least or amounts[k] >= SETTINGS.smallest_s]
    members = np.zeros((len(pieces.seconds), len(kept)), bool)  # [N, K] of founding pieces
    members[founding] = labels[:, None] == np.array(kept)
    if _apart(members, pieces.apart).any():  # two people who speak at once
        least = max(least, 2)
    placing = _Placing(pieces, plda.psi, precision, weights, founding, change_costs(pieces))
    members, labels, scores = placing.settle(members, least)
    while members.shape[1] > least:
        means = unit(_sums(members, weights, pieces.vectors))
        cosines = np.where(
            _apart(members, pieces.apart), -2, means @ means.T - 2 * np.eye(len(means))
        )
        one, other = divmod(int(cosines.argmax()), len(means))
        if cosines[one, other] < SETTINGS.alike:
            break
        members[:, one] |= members[:, other]
        members, labels, scores = placing.settle(np.delete(members, other, 1), least)
    chances = np.exp(SETTINGS.sharpness * (scores - scores.max(1, keepdims=True)))
    return Clusters(
        labels,
        chances / chances.sum(1, keepdims=True),
        unit(_sums(members, weights, pieces.vectors)),
    )


def agglomerate(
    vectors: Floats,
    weights: Floats,
    psi: Floats,
    links: Floats,
    apart: Flags,
    least: int = 1,
    most: int | None = None,
    evidence: Evidence | None = None,
) -> Labels:
    """[N, D] vectors whose evidence counts `weights` [N] times -> [N] clusters, numbered from 0.

    Joins the two clusters whose joint likelihood gains most, until none gains, then while there are more than
    `most`; never those that are `apart`, and never below `least`. `evidence` saves making it, which takes
    as long as some dozen pieces.
    """
    count = len(vectors)
    most = count if most is None else most
    amounts, sums = weights.astype(np.float64).copy(), vectors * weights[:, None]
    links, apart = links.copy(), apart.copy()
    alive = np.ones(count, bool)
    evidence = evidence or Evidence(psi, float(weights.sum()))
    own = evidence(amounts, sums)
    clusters = [[n] for n in range(count)]

    def gains(n: int, joint: Floats) -> Floats:
        """Of joining `n` with each cluster, whose joint evidence with it is given."""
        found = joint - own[n] - own + links[n]
        found[~alive | apart[n]] = -np.inf
        found[n] = -np.inf
        return np.asarray(found)

    table = np.zeros((count, count))
    for n in range(count - 1):
        rest = slice(n + 1, None)
        table[n, rest] = evidence(amounts[n] + amounts[rest], sums[n] + sums[rest])
        table[rest, n] = table[n, rest]
    for n in range(count):
        table[n] = gains(n, table[n])
    best = table.argmax(1) if count else np.zeros(0, np.int64)
    values = table[np.arange(count), best]
    left = count
    while left > max(1, least):
        one = int(values.argmax())
        other, gain = int(best[one]), float(values[one])
        if gain == -np.inf or (gain < 0 and left <= most):
            break
        clusters[one] += clusters[other]
        clusters[other] = []
        amounts[one] += amounts[other]
        sums[one] += sums[other]
        links[one] += links[other]
        links[:, one] = links[one]
        apart[one] |= apart[other]
        apart[:, one] = apart[one]
        alive[other] = False
        own[one] = evidence(amounts[one : one + 1], sums[one : one + 1])[0]
        table[other], table[:, other], values[other] = -np.inf, -np.inf, -np.inf
        living = np.flatnonzero(alive)
        joint = np.zeros(count)
        joint[living] = evidence(amounts[one] + amounts[living], sums[one] + sums[living])
        table[one] = gains(one, joint)
        table[:, one] = table[one]
        stale = alive & ((best == one) | (best == other))
        stale[one] = True
        for n in np.flatnonzero(stale).tolist():
            best[n] = table[n].argmax()
            values[n] = table[n, best[n]]
        better = alive & (table[:, one] > values)
        best[better], values[better] = one, table[better, one]
        left -= 1
    labels = np.zeros(count, np.int64)
    for number, members in enumerate(filter(None, clusters)):
        labels[members] = number
    return labels


def _apart(members: Flags, apart: Flags) -> Flags:
    """[N, K] members and [N, N] pieces of people who speak at once -> [K, K] speakers who do."""
    own = members.astype(np.float32)
    found = np.asarray(own.T @ apart.astype(np.float32) @ own > 0)
    np.fill_diagonal(found, False)
    return found


class Evidence:
    """The logarithm of the marginal likelihood of clusters, but for what does not depend on clustering.
    `largest` is the most evidence that a cluster may have."""

    def __init__(self, psi: Floats, largest: float) -> None:
        self._psi = psi
        # The determinant depends on the amount alone: a table saves most of the time.
        self._amounts = np.linspace(0, np.sqrt(largest) + 1e-6, 4096) ** 2
        self._determinants = np.log1p(self._amounts[:, None] * psi).sum(1)

    def __call__(self, amounts: Floats, sums: Floats) -> Floats:
        """Amounts [K] and weighted sums [K, D] -> [K]"""
        shares = amounts[:, None] * self._psi
        shares += 1
        np.divide(self._psi, shares, out=shares)
        explained = np.einsum("kd,kd->k", sums * sums, shares)
        return np.asarray(0.5 * (explained - np.interp(amounts, self._amounts, self._determinants)))


@dataclass(frozen=True, eq=False)
class _Placing:
    """Moves pieces to the speakers who explain them best."""

    pieces: Pieces
    psi: Floats  # [D]
    precision: Floats  # [N]
    weights: Floats  # [N]
    founding: Labels  # the pieces that found clusters
    costs: Floats  # [N - 1] of a change of speaker

    def settle(self, members: Flags, least: int) -> tuple[Flags, Labels, Floats]:
        """[N, K] founding pieces of each speaker -> the same after moving, and [N] speakers and [N, K] scores
        of all pieces."""
        rounds = SETTINGS.rounds
        while True:
            amounts = (members * self.weights[:, None]).sum(0)  # [K]
            sums = _sums(members, self.weights, self.pieces.vectors)
            scores = densities(self.pieces.vectors, self.precision, amounts, sums, self.psi)
            labels = cheapest_path(scores, self.costs)
            moved = np.zeros_like(members)
            moved[self.founding] = labels[self.founding, None] == np.arange(members.shape[1])
            if not rounds or (moved == members).all():
                return members, labels, scores
            occupied = moved.any(0)
            if occupied.sum() < least:  # their pieces stay where agglomeration put them
                labels[self.founding] = members[self.founding].argmax(1)
                return members, labels, scores
            members, rounds = moved[:, occupied], rounds - 1


def change_costs(pieces: Pieces) -> Floats:
    """[N - 1] nats for a change of speaker between adjacent pieces."""
    return np.asarray(SETTINGS.change * np.exp(-np.maximum(pieces.gaps, 0) / SETTINGS.change_s))


def densities(
    vectors: Floats, precision: Floats, amounts: Floats, sums: Floats, psi: Floats
) -> Floats:
    """[N, D] vectors with precision [N], and K speakers known from weighted sums [K, D] of so much evidence
    [K] -> [N, K] log densities. The posterior of a speaker is normal, and so is the density of a piece
    under it."""
    variances = 1 / (1 / psi + amounts[:, None])  # [K, D]
    noise = 1 / precision[:, None]  # [N, 1]
    found = [
        -0.5 * (np.log(v + noise) + (vectors - mean) ** 2 / (v + noise)).sum(1)
        for mean, v in zip(variances * sums, variances, strict=True)
    ]
    return np.stack(found, 1) if found else np.zeros((len(vectors), 0))


def cheapest_path(scores: Floats, costs: Floats) -> Labels:
    """[N, K] scores and [N - 1] costs of a change -> [N], by Viterbi's algorithm."""
    count, speakers = scores.shape
    total = scores[0].copy()
    came = np.zeros((count, speakers), np.int64)
    stay = np.arange(speakers)
    for n in range(1, count):
        best = int(total.argmax())
        change = total[best] - costs[n - 1]
        came[n] = np.where(total >= change, stay, best)
        total = np.maximum(total, change) + scores[n]
    path = np.zeros(count, np.int64)
    path[-1] = total.argmax()
    for n in range(count - 1, 0, -1):
        path[n - 1] = came[n, path[n]]
    return path


def _sums(members: Flags, weights: Floats, vectors: Floats) -> Floats:
    """[N, K], [N], [N, D] -> [K, D]"""
    return np.asarray((members * weights[:, None]).T @ vectors)


def unit(rows: NDArray[np.floating]) -> Floats:
    """Scale rows to length 1; zeros stay zeros."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))
