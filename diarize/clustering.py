"""VBx, as pyannote has it, and a second opinion where it hears one voice only.

Two similar voices over one telephone merge in VBx. Asked for two clusters, spectral clustering parts
them, but parts a single voice too: it is believed only where both speak for seconds and differ in
what the PLDA knows to be the voice and not the moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diarize.spectral import spectral_labels
from diarize.upstream import PLDA, SlidingWindowFeature, VBxClustering


@dataclass(frozen=True)
class Doubt:
    """When a second opinion is believed: each voice has `least_s` seconds, and their means in the
    PLDA's space are no more alike than `alike` (cosine).

    Measured on voices that trained nothing: 0.47 to 0.54 for two over one telephone that VBx had
    merged, 0.63 to 0.92 for the halves of one voice in four kinds of recording (two of 24 below
    0.7). The bound between was placed so that pyannote's sample, at 0.65, is told apart.
    """

    least_s: float = 2.0
    alike: float = 0.66


class DoubtfulVBx(VBxClustering):  # type: ignore[misc]  # pyannote is untyped to us
    """VBx that asks again when it finds one speaker and may find more."""

    def __init__(self, plda: PLDA, doubt: Doubt | None = None) -> None:
        super().__init__(plda, metric="cosine")
        self.doubt = doubt or Doubt()

    def __call__(
        self,
        embeddings: NDArray[np.float32],
        segmentations: SlidingWindowFeature,
        num_clusters: int | None = None,
        min_clusters: int = 1,
        max_clusters: int = 1,
        **others: Any,
    ) -> tuple[NDArray[np.int8], NDArray[np.float64], NDArray[np.float64]]:
        """[C, S, D] -> [C, S] clusters, [C, S, K] their scores, [K, D] centres."""
        heard, _, _ = self.filter_embeddings(embeddings, segmentations=segmentations)
        if len(heard) < 2:  # nothing to cluster, and of no vector pyannote would take the mean
            some = heard if len(heard) else embeddings.reshape(-1, embeddings.shape[-1])
            shape = embeddings.shape[:2]
            return np.zeros(shape, np.int8), np.ones((*shape, 1)), some.mean(0, keepdims=True)
        found: tuple[NDArray[np.int8], NDArray[np.float64], NDArray[np.float64]] = super().__call__(
            embeddings, segmentations, num_clusters, min_clusters, max_clusters, **others
        )
        if len(found[2]) > 1 or max_clusters < 2:
            return found
        centres = self._second(heard, segmentations.sliding_window.step)
        if centres is None:
            return found
        rows = embeddings / np.maximum(np.linalg.norm(embeddings, axis=2, keepdims=True), 1e-9)
        scores = 1 + rows @ _unit(centres).T  # [C, S, K], as pyannote's 2 - distance
        return scores.argmax(2).astype(np.int8), scores, centres

    def _second(self, heard: NDArray[np.float32], step_s: float) -> NDArray[np.float64] | None:
        """[N, D] vectors, one every `step_s` -> [2, D] centres of two voices; None for one."""
        labels = spectral_labels(_unit(heard), least=2, most=2)
        if np.bincount(labels, minlength=2).min() * step_s < self.doubt.least_s:
            return None
        voices = self.plda(heard)
        one, other = (_unit(voices[labels == k].mean(0)) for k in (0, 1))
        if float(one @ other) > self.doubt.alike:
            return None
        return np.stack([heard[labels == k].mean(0, dtype=np.float64) for k in (0, 1)])


def _unit(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))
