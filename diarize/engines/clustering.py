"""How many voices there are: VBx over average linkage, and a second opinion where it hears one only.

pyannote's VBx starts from centroid linkage, whose distances shrink as clusters grow, so that one
threshold splits long speakers and merges short ones. Average linkage goes nearly the whole way by
itself; VBx then moves windows between clusters and drops the small ones.

Windows at a change of speakers or mostly in a pause find clusters of their own, so that speech must
fill half of a window that is to be clustered; the others go to the nearest voice.

Two similar voices may merge all the same. Asked for two clusters, spectral clustering parts what was
found as one voice, but parts a single voice too: it is believed only where both speak for seconds and
differ in what the PLDA knows to be the voice and not the moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

from .spectral import SEED, spectral_labels
from .upstream import PLDA, SlidingWindowFeature, VBxClustering, cluster_vbx

Floats = NDArray[np.float64]

ROUNDS = 20
"""Of VBx, as in pyannote."""

LEAST_SPEECH = 0.5
"""Of a window, for it to have a say in how many voices there are."""

ENOUGH = 8
"""Windows: with fewer of them full of speech, those with a fifth count too."""

LEAST_SHARE = 1e-7
"""Of the windows: a cluster with less is one that VBx has dropped."""


@dataclass(frozen=True)
class SplitCriterion:
    """When a second opinion is believed: each voice has `least_s` seconds, and their means in the
    PLDA's space are no more alike than `alike` (cosine)."""

    least_s: float
    alike: float


SINGLE_VOICE = SplitCriterion(least_s=2.0, alike=0.66)
"""Where VBx hears one voice only. Measured on voices that trained nothing: up to 0.54 for two over one
telephone that VBx had merged, 0.63 to 0.92 for the halves of one voice in four kinds of recording (two
of 24 below 0.7). The bound between was placed so that pyannote's sample, at 0.65, is told apart."""

SEVERAL_VOICES = SplitCriterion(least_s=6.0, alike=0.65)
"""For each of several voices. Measured on voices that trained nothing, without noise and over it: of 439
that were one, 5 are parted (3 of these from one clip); of 26 that VBx had merged from two, 25 are. With 4 s
or 0.68 three to six conversations in 24 would get a voice too many."""


class SplittingVBx(VBxClustering):  # type: ignore[misc]  # pyannote is untyped to us
    """For one local speaker. `threshold` is a distance of unit vectors, as in pyannote."""

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
        heard = self._heard(embeddings, segmentations)
        least, most = num_clusters or min_clusters, num_clusters or max_clusters
        if len(heard) < 2 or most < 2:  # nothing to cluster
            some = heard if len(heard) else embeddings.reshape(-1, embeddings.shape[-1])
            centres = some.mean(0, keepdims=True, dtype=np.float64)
        else:
            centres = self._centres(heard, least, most, segmentations.sliding_window.step)
        scores = 1 + unit(embeddings) @ unit(centres).T  # [C, S, K], as pyannote's 2 - distance
        return scores.argmax(2).astype(np.int8), scores, centres

    def _heard(
        self, embeddings: NDArray[np.float32], segmentations: SlidingWindowFeature
    ) -> NDArray[np.float32]:
        """[C, S, D] -> [N, D] of the windows that speech fills; of all with some where those are too
        few to be clustered."""
        for share in (LEAST_SPEECH, 0.2):
            heard, _, _ = self.filter_embeddings(embeddings, segmentations, share)
            if len(heard) >= ENOUGH:
                break
        return np.asarray(heard)

    def _centres(self, heard: NDArray[np.float32], least: int, most: int, step_s: float) -> Floats:
        """[N, D] vectors, one every `step_s` -> [K, D], `least` to `most` where N allows."""
        centres = self._found(heard)
        if len(centres) < most:
            centres = self._parted(heard, centres, most, step_s)
        wanted = min(max(len(centres), least), most, len(heard))
        return centres if wanted == len(centres) else _forced(heard, wanted)

    def _parted(
        self, heard: NDArray[np.float32], centres: Floats, most: int, step_s: float
    ) -> Floats:
        """[N, D] and [K, D] -> [L, D], K <= L <= most: voices that were two are parted."""
        nearest = (unit(heard) @ unit(centres).T).argmax(1)
        criterion = SINGLE_VOICE if len(centres) == 1 else SEVERAL_VOICES
        waiting = [(heard[nearest == k], centre) for k, centre in enumerate(centres)]
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

    def _found(self, heard: NDArray[np.float32]) -> Floats:
        """[N, D] -> [K, D]"""
        tree = linkage(unit(heard), method="average", metric="euclidean")
        first = np.unique(
            fcluster(tree, self.threshold, criterion="distance"), return_inverse=True
        )[1]
        shares, priors = cluster_vbx(
            first, self.plda(heard), self.plda.phi, Fa=self.Fa, Fb=self.Fb, maxIters=ROUNDS
        )
        shares = shares[:, priors > LEAST_SHARE]  # [N, K]
        return np.asarray(shares.T @ heard / shares.sum(0)[:, None])

    def _halves(
        self, own: NDArray[np.float32], criterion: SplitCriterion, step_s: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """[N, D] vectors of what was found as one voice -> those of two voices; None for one."""
        labels = spectral_labels(unit(own), least=2, most=2)
        if np.bincount(labels, minlength=2).min() * step_s < criterion.least_s:
            return None
        voices = self.plda(own)
        one, other = (unit(voices[labels == k].mean(0)) for k in (0, 1))
        if float(one @ other) > criterion.alike:
            return None
        return own[labels == 0], own[labels == 1]


def _forced(heard: NDArray[np.float32], count: int) -> Floats:
    """[N, D] -> [count, D], for a number that was asked for."""
    from sklearn.cluster import KMeans

    labels = KMeans(count, n_init=3, random_state=SEED).fit_predict(unit(heard))
    kept = np.unique(labels)
    return np.stack([heard[labels == k].mean(0, dtype=np.float64) for k in kept])


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of length 1; zeros stay zeros."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))
