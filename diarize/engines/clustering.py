"""Clustering of voices: VBx after average linkage, then a test of every voice for a second one.

pyannote's VBx starts from centroid linkage, whose distances shrink as clusters grow, so that one
threshold splits speakers with much speech and merges those with little. Average linkage alone gives
nearly correct clusters; VBx then moves windows between clusters and drops small clusters.

Windows at a change of speaker or with long pauses form clusters of their own. Therefore only windows
at least half filled with speech are clustered; the others are assigned to the nearest voice.

Two similar voices may still be merged. Spectral clustering into two separates them (`spectral_labels`:
NME-SC, which finds the number of clusters by the eigengap and tunes itself; Park et al. 2020, arXiv
2003.02405), but it splits a single voice as well: the split is kept only if both halves have seconds of
speech and differ in the PLDA's space, where the distance depends on the voice and less on the recording
conditions.

Knows vectors only. Shapes: N vectors of D numbers, K clusters, C windows of S local speakers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh

from .upstream import PLDA, SlidingWindowFeature, VBxClustering, cluster_vbx

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]

Floats = NDArray[np.float64]

ROUNDS = 20
"""Iterations of VBx, as in pyannote."""

LEAST_SPEECH = 0.5
"""Share of a window that must be speech for the window to be clustered."""

ENOUGH = 8
"""Windows. If fewer are filled with speech, those with a fifth are clustered too."""

LEAST_SHARE = 1e-7
"""Share of the windows below which VBx has dropped a cluster."""

MOST_VECTORS = 400
"""Eigenvalues take cubic time, twelve times per voice. Other vectors go to the nearest cluster."""

MOST_CLUSTERS = 8
"""Clusters of one spectral clustering, at most."""

SEED = 42
"""Of k-means, so that equal recordings have equal speakers."""


@dataclass(frozen=True)
class SplitCriterion:
    """When a voice is split in two: each half has `least_s` seconds of speech, and the cosine of their
    means in the PLDA's space is at most `alike`."""

    least_s: float
    alike: float


SINGLE_VOICE = SplitCriterion(least_s=2.0, alike=0.66)
"""Where VBx finds one voice only. Measured on voices that were not used in training: at most 0.54 for two
voices over one telephone that VBx had merged, 0.63 to 0.92 for the halves of one voice in four kinds of
recording (two of 24 below 0.7). With this bound pyannote's sample, at 0.65, is split correctly."""

SEVERAL_VOICES = SplitCriterion(least_s=6.0, alike=0.65)
"""Where VBx finds several voices. Measured on voices that were not used in training, with and without
noise: 5 of 439 single voices are split (3 of them from one clip), and 25 of 26 merged pairs. With 4 s or
0.68, three to six conversations in 24 would get one voice too many."""


class SplittingVBx(VBxClustering):  # type: ignore[misc]  # pyannote has no type annotations
    """VBx for segmentations with one local speaker. `threshold` is a distance of unit vectors, as in
    pyannote."""

    def __init__(self, plda: PLDA) -> None:
        super().__init__(plda, metric="cosine")

    def __call__(
        self,
        embeddings: NDArray[np.float32],
        segmentations: SlidingWindowFeature,
        num_clusters: int | None = None,
        min_clusters: int = 1,
        max_clusters: int = 1,
        **others: Any,
    ) -> tuple[NDArray[np.int8], Floats, Floats]:
        """[C, S, D] -> [C, S] clusters, [C, S, K] their scores, [K, D] centres."""
        vectors = self._speech_windows(embeddings, segmentations)
        least, most = num_clusters or min_clusters, num_clusters or max_clusters
        if len(vectors) < 2 or most < 2:  # nothing to cluster
            some = vectors if len(vectors) else embeddings.reshape(-1, embeddings.shape[-1])
            centres = some.mean(0, keepdims=True, dtype=np.float64)
        else:
            centres = self._centres(vectors, least, most, segmentations.sliding_window.step)
        scores = 1 + unit(embeddings) @ unit(centres).T  # [C, S, K], as pyannote's 2 - distance
        return scores.argmax(2).astype(np.int8), scores, centres

    def _speech_windows(
        self, embeddings: NDArray[np.float32], segmentations: SlidingWindowFeature
    ) -> NDArray[np.float32]:
        """[C, S, D] -> [N, D] of the windows filled with speech; if those are too few to cluster, of
        all with at least a fifth."""
        for share in (LEAST_SPEECH, 0.2):
            vectors, _, _ = self.filter_embeddings(embeddings, segmentations, share)
            if len(vectors) >= ENOUGH:
                break
        return np.asarray(vectors)

    def _centres(
        self, vectors: NDArray[np.float32], least: int, most: int, step_s: float
    ) -> Floats:
        """[N, D] vectors, one per `step_s` -> [K, D] centres; K is from `least` to `most` if N allows."""
        centres = self._vbx(vectors)
        if len(centres) < most:
            centres = self._split(vectors, centres, most, step_s)
        count = min(max(len(centres), least), most, len(vectors))
        return centres if count == len(centres) else _fixed_count(vectors, count)

    def _split(
        self, vectors: NDArray[np.float32], centres: Floats, most: int, step_s: float
    ) -> Floats:
        """[N, D] vectors and [K, D] centres -> [L, D] centres, K <= L <= most, after splitting."""
        nearest = (unit(vectors) @ unit(centres).T).argmax(1)
        criterion = SINGLE_VOICE if len(centres) == 1 else SEVERAL_VOICES
        waiting = [(vectors[nearest == k], centre) for k, centre in enumerate(centres)]
        kept = list[Floats]()
        while waiting:
            own, centre = waiting.pop(0)
            full = len(kept) + len(waiting) + 2 > most
            halves = None if full else self._halves(own, criterion, step_s)
            if halves is None:
                kept.append(centre)
            else:
                waiting += [(half, half.mean(0, dtype=np.float64)) for half in halves]
                criterion = SEVERAL_VOICES
        return np.stack(kept)

    def _vbx(self, vectors: NDArray[np.float32]) -> Floats:
        """[N, D] vectors -> [K, D] centres"""
        tree = linkage(unit(vectors), method="average", metric="euclidean")
        first = np.unique(
            fcluster(tree, self.threshold, criterion="distance"), return_inverse=True
        )[1]
        shares, priors = cluster_vbx(
            first, self.plda(vectors), self.plda.phi, Fa=self.Fa, Fb=self.Fb, maxIters=ROUNDS
        )
        shares = shares[:, priors > LEAST_SHARE]  # [N, K]
        return np.asarray(shares.T @ vectors / shares.sum(0)[:, None])

    def _halves(
        self, own: NDArray[np.float32], criterion: SplitCriterion, step_s: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Split the vectors [N, D] of a cluster into those of two voices; None if it is one voice."""
        labels = spectral_labels(unit(own), least=2, most=2)
        if np.bincount(labels, minlength=2).min() * step_s < criterion.least_s:
            return None
        voices = self.plda(own)
        one, other = (unit(voices[labels == k].mean(0)) for k in (0, 1))
        if float(one @ other) > criterion.alike:
            return None
        return own[labels == 0], own[labels == 1]


def spectral_labels(vectors: Vectors, *, least: int = 1, most: int = MOST_CLUSTERS) -> Labels:
    """[N, D] unit vectors -> [N] clusters, `least` to `most` of them if N allows."""
    count = len(vectors)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_VECTORS)).round().astype(int))
    some = vectors[chosen]
    least, most = min(least, len(some)), min(most, MOST_CLUSTERS, len(some) - 1)
    if most < 2:
        return np.zeros(count, np.int64)
    found = _clusters(some, max(1, least), max(most, least))
    if len(chosen) == count:
        return found
    centres = np.stack([some[found == k].mean(0) for k in range(found.max() + 1)])
    return np.asarray(
        (vectors @ (centres / np.linalg.norm(centres, axis=1, keepdims=True)).T).argmax(1)
    )


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Scale rows to length 1; zeros stay zeros."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))


def _fixed_count(vectors: NDArray[np.float32], count: int) -> Floats:
    """[N, D] vectors -> [count, D] centres, for a requested number of speakers."""
    from sklearn.cluster import KMeans

    labels = KMeans(count, n_init=3, random_state=SEED).fit_predict(unit(vectors))
    kept = np.unique(labels)
    return np.stack([vectors[labels == k].mean(0, dtype=np.float64) for k in kept])


def _clusters(vectors: Vectors, least: int, most: int) -> Labels:
    from sklearn.cluster import KMeans

    count = len(vectors)
    alike = (vectors @ vectors.T + 1) / 2  # [N, N]
    order = np.argsort(-alike, axis=1)
    best: tuple[float, int, NDArray[np.float64]] | None = None
    for kept in np.unique(np.linspace(0.02 * count, 0.3 * count, 12).astype(int).clip(2, count)):
        near = np.zeros((count, count))
        np.put_along_axis(near, order[:, :kept], 1.0, axis=1)
        near = (near + near.T) / 2
        laplacian = np.diag(near.sum(1)) - near
        values, places = eigh(laplacian, subset_by_index=[0, most])
        largest = eigh(laplacian, eigvals_only=True, subset_by_index=[count - 1, count - 1])[0]
        gaps = np.diff(values)[least - 1 :]
        ratio = float((kept / count) / max(float(gaps.max()) / largest, 1e-12))
        if best is None or ratio < best[0]:
            best = ratio, int(gaps.argmax()) + least, places
    assert best is not None
    _, clusters, places = best
    rows = places[:, :clusters]
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    labels = KMeans(clusters, n_init=3, random_state=SEED).fit_predict(rows)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
