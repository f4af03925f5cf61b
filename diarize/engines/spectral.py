"""Spectral clustering with the number of voices from the eigengap: NME-SC, which tunes itself.

Park et al. 2020 (arXiv 2003.02405). It separates similar voices that a threshold merges, but at times
splits one voice, so that its result has to be checked. Knows vectors only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]

MOST_VECTORS = 400
"""Eigenvalues take cubic time, twelve times per voice. Other vectors go to the nearest cluster."""

MOST_CLUSTERS = 8
SEED = 42


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
