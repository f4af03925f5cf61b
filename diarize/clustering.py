"""VBx, as pyannote has it, and a second opinion where it hears one voice only.

Two similar voices over one telephone merge in VBx. Spectral clustering parts them, but parts single
voices too; it is believed only where both its voices speak for seconds and differ clearly.
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
    """When a second opinion is believed: every voice has `least_s` seconds, and no two centres are
    more alike than `alike` (cosine). Calibrated on held-out speakers, see docs/diarize.md."""

    least_s: float = 2.0
    alike: float = 0.35


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
        centres = self._second(heard, segmentations.sliding_window.step, max_clusters)
        if centres is None:
            return found
        rows = embeddings / np.maximum(np.linalg.norm(embeddings, axis=2, keepdims=True), 1e-9)
        scores = 1 + rows @ _unit(centres).T  # [C, S, K], as pyannote's 2 - distance
        return scores.argmax(2).astype(np.int8), scores, centres

    def _second(
        self, heard: NDArray[np.float32], step_s: float, most: int
    ) -> NDArray[np.float64] | None:
        """[N, D] vectors, one every `step_s` -> [K, D] centres of several voices; None for one."""
        labels = spectral_labels(_unit(heard), most=most)
        centres = np.stack([heard[labels == k].mean(0) for k in range(labels.max() + 1)])
        alike = _unit(centres) @ _unit(centres).T - 2 * np.eye(len(centres))
        short = np.bincount(labels).min() * step_s < self.doubt.least_s
        if len(centres) < 2 or short or alike.max() > self.doubt.alike:
            return None
        return np.asarray(centres, np.float64)


def _unit(rows: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9))
