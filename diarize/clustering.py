"""How many voices there are: VBx over average linkage, and a second opinion where it hears one only.

pyannote's VBx starts from centroid linkage, whose distances shrink as clusters grow, so that one
threshold splits long speakers and merges short ones. Average linkage goes nearly the whole way by
itself; VBx then moves windows between clusters and drops the small ones.

Linkage measures in the PLDA's whole space: noise moves all voices of a recording in one direction,
which the PLDA knows to be no voice, so that one threshold fits more kinds of recording. Windows
at a change of speakers or mostly in a pause found clusters of their own there, so that speech must
fill half of a window that is to be clustered; the others go to the nearest voice.

Two similar voices over one telephone may merge all the same. Asked for two clusters, spectral
clustering parts them, but parts a single voice too: it is believed only where both speak for seconds
and differ in what the PLDA knows to be the voice and not the moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

from diarize.pipeline import Compare
from diarize.spectral import SEED, spectral_labels
from diarize.upstream import PLDA, SlidingWindowFeature, VBxClustering, cluster_vbx

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
class Doubt:
    """When a second opinion is believed: each voice has `least_s` seconds, and their means in the
    PLDA's space are no more alike than `alike` (cosine).

    Measured on voices that trained nothing, by vectors from which noise had been subtracted: 0.70 to
    0.90 for the halves of one voice, in twelve recordings without and with noise. The bound is below
    that, and was placed so that the two voices of pyannote's sample are told apart.
    """

    least_s: float = 2.0
    alike: float = 0.65


class DoubtfulVBx(VBxClustering):  # type: ignore[misc]  # pyannote is untyped to us
    """For one local speaker. `threshold` is a distance of unit vectors in the space of `compare`."""

    def __init__(self, plda: PLDA, compare: Compare, doubt: Doubt | None = None) -> None:
        super().__init__(plda, metric="cosine")
        self.compare = compare
        self.doubt = doubt or Doubt()

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
        if len(centres) == 1 < most:
            second = self._second(heard, step_s)
            centres = centres if second is None else second
        wanted = min(max(len(centres), least), most, len(heard))
        return centres if wanted == len(centres) else _parted(heard, wanted)

    def _found(self, heard: NDArray[np.float32]) -> Floats:
        """[N, D] -> [K, D]"""
        voices = unit(self.compare(heard))
        tree = linkage(voices, method="average", metric="euclidean")
        first = np.unique(
            fcluster(tree, self.threshold, criterion="distance"), return_inverse=True
        )[1]
        shares, priors = cluster_vbx(
            first, self.plda(heard), self.plda.phi, Fa=self.Fa, Fb=self.Fb, maxIters=ROUNDS
        )
        shares = shares[:, priors > LEAST_SHARE]  # [N, K]
        return np.asarray(shares.T @ heard / shares.sum(0)[:, None])

    def _second(self, heard: NDArray[np.float32], step_s: float) -> Floats | None:
        """[N, D] vectors, one every `step_s` -> [2, D] centres of two voices; None for one."""
        labels = spectral_labels(unit(heard), least=2, most=2)
        if np.bincount(labels, minlength=2).min() * step_s < self.doubt.least_s:
            return None
        voices = self.compare(heard)
        one, other = (unit(voices[labels == k].mean(0)) for k in (0, 1))
        if float(one @ other) > self.doubt.alike:
            return None
        return np.stack([heard[labels == k].mean(0, dtype=np.float64) for k in (0, 1)])


def _parted(heard: NDArray[np.float32], count: int) -> Floats:
    """[N, D] -> [count, D], for a number that was asked for."""
    from sklearn.cluster import KMeans

    labels = KMeans(count, n_init=3, random_state=SEED).fit_predict(unit(heard))
    kept = np.unique(labels)
    return np.stack([heard[labels == k].mean(0, dtype=np.float64) for k in kept])


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of length 1; zeros stay zeros."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))
