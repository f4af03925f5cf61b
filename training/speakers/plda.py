"""Train the PLDA of diarize/, which separates differences of voices from those of moments.

    python -m training.speakers.vectors DATA/speakers
    python -m training.speakers.plda

Reads training/made/speakers/vectors.npz, trains on the training speakers only, and writes plda.npz,
evaluation.json and likeness.json (similarity of voices, for known speakers) in bundled/speakers/. Features
are those of pyannote.audio (VBx, Landini et al. 2022): whitened, length-normalised, within-class covariance
I, between-class diagonal. `noise` is the variance of a piece around its speaker by its length: `a + b /
seconds`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import eigh

from forescribe.diarize.engines.clustering import NAME
from forescribe.diarize.engines.embedded import THRESHOLDS
from training.speakers import vectors
from training.speakers.folds import FOLDS, fold_of, split
from training.speakers.networks import FOLDER

DIMENSIONS = 128
"""Dimensions of the space, in order of importance."""

LEAST_S = 1.0
"""Seconds of the pieces that determine the space."""

STORED_S = 1.6
"""Seconds of the pieces of a stored voice."""

RIDGE = 1e-4


@dataclass(frozen=True)
class Plda:
    """The space, and the noise of pieces."""

    mean1: np.ndarray  # [D]
    mean2: np.ndarray  # [L]
    lda: np.ndarray  # [D, L]
    mu: np.ndarray  # [L]
    tr: np.ndarray  # [L, L]
    psi: np.ndarray  # [L] between-class variances, falling
    noise: tuple[float, float] = (1.0, 0.0)

    def features(self, x: np.ndarray) -> np.ndarray:
        """[N, D] -> [N, L], as pyannote computes them."""
        first = unit(x - self.mean1) * np.sqrt(len(self.mean1))
        second = unit(first @ self.lda - self.mean2) * np.sqrt(len(self.mean2))
        return (second - self.mu) @ self.tr.T


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def scatter(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, within-class and between-class covariance, per row."""
    mean = rows.mean(0)
    within = np.zeros((rows.shape[1],) * 2)
    between = np.zeros_like(within)
    for label in np.unique(labels):
        own = rows[labels == label]
        centre = own.mean(0)
        within += (own - centre).T @ (own - centre)
        between += len(own) * np.outer(centre - mean, centre - mean)
    return mean, within / len(rows), between / len(rows)


def ridged(matrix: np.ndarray) -> np.ndarray:
    size = len(matrix)
    return matrix + RIDGE * np.trace(matrix) / size * np.eye(size)


def train(x: np.ndarray, y: np.ndarray, dimensions: int) -> Plda:
    """Train on unit vectors [N, D] of speakers [N]."""
    mean1 = x.mean(0)
    first = unit(x - mean1) * np.sqrt(x.shape[1])
    _, within, between = scatter(first, y)
    lda = eigh(between, ridged(within))[1][:, ::-1][:, :dimensions]
    mean2 = (first @ lda).mean(0)
    second = unit(first @ lda - mean2) * np.sqrt(dimensions)
    mu, within, between = scatter(second, y)
    within = ridged(within)
    # The scatter of means over a few windows contains a share of the within-class covariance.
    between = between - within * len(np.unique(y)) / len(y)
    values, places = eigh((between + between.T) / 2, within)
    psi = np.clip(values[::-1], 1e-4, None)
    return Plda(mean1, mean2, lda, mu, places[:, ::-1].T, psi)


def equal_error_rate(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the equal error rate of the cosine over all pairs, and its threshold."""
    same = y[:, None] == y[None]
    upper = np.triu_indices(len(y), 1)
    scores, truth = (x @ x.T)[upper], same[upper]
    order = np.argsort(scores)
    missed = np.cumsum(truth[order]) / truth.sum()
    false = 1 - np.cumsum(~truth[order]) / (~truth).sum()
    at = int(np.argmin(np.abs(missed - false)))
    return float((missed[at] + false[at]) / 2), float(scores[order][at])


@dataclass(frozen=True, eq=False)
class Data:
    """Pieces of clips."""

    vectors: np.ndarray  # [N, 192]
    speakers: np.ndarray  # [N]
    channels: np.ndarray  # [N]
    seconds: np.ndarray  # [N]
    places: np.ndarray  # [N]

    @classmethod
    def load(cls) -> Data:
        with np.load(vectors.WORK / vectors.NAME) as arrays:
            return cls(*(arrays[name] for name in cls.__dataclass_fields__))

    def where(self, chosen: np.ndarray) -> Data:
        return Data(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def of(self, speakers: Sequence[int] | frozenset[int]) -> Data:
        return self.where(np.isin(self.speakers, sorted(speakers)))


def learn(data: Data) -> Plda:
    """The PLDA of some speakers."""
    long = data.where(data.seconds >= LEAST_S)
    plda = train(unit(long.vectors), long.speakers, DIMENSIONS)
    found = plda.features(unit(data.vectors))
    centres = {}
    for speaker in np.unique(data.speakers):
        own = (data.speakers == speaker) & (data.seconds >= STORED_S)
        if own.sum() > 10:
            centres[speaker] = found[own].mean(0)
    lengths = np.unique(data.seconds)
    variances = []
    for length in lengths:
        own = np.flatnonzero((data.seconds == length) & np.isin(data.speakers, list(centres)))
        off = found[own] - np.stack([centres[data.speakers[n]] for n in own])
        variances.append(np.mean(off**2))
    terms = np.stack([np.ones_like(lengths), 1 / lengths], 1)
    constant, by_length = np.linalg.lstsq(terms, np.array(variances), rcond=None)[0]
    noise = float(constant), float(by_length)
    return Plda(plda.mean1, plda.mean2, plda.lda, plda.mu, plda.tr, plda.psi, noise)


def store(plda: Plda, folder: Path) -> None:
    arrays: dict[str, Any] = {
        name: np.asarray(getattr(plda, name), np.float16 if name in ("lda", "tr") else np.float32)
        for name in Plda.__dataclass_fields__
    }
    np.savez_compressed(folder / NAME, **arrays)


def errors(plda: Plda, data: Data) -> dict[str, dict[str, float]]:
    """Equal error rates of single pieces by channel and length, by cosine in the PLDA's space."""
    found: dict[str, dict[str, float]] = {}
    features = unit(plda.features(unit(data.vectors)))
    for channel in np.unique(data.channels):
        for length in (0.8, 1.2, 2.0):
            own = (data.channels == channel) & (data.seconds == length)
            error, _ = equal_error_rate(features[own], data.speakers[own])
            found.setdefault(str(channel), {})[f"{length} s"] = round(error, 4)
    return found


def halves(plda: Plda, data: Data, channel: str, second: bool) -> dict[int, np.ndarray]:
    """Stored voices, each from the first or the second half of a clip."""
    own = data.where((data.channels == channel) & (data.seconds >= STORED_S))
    own = own.where(own.places >= 0.5 if second else own.places < 0.35)
    features = plda.features(unit(own.vectors))
    return {
        int(speaker): unit(features[own.speakers == speaker].mean(0))
        for speaker in np.unique(own.speakers)
    }


def similarity(parts: Sequence[tuple[Plda, Data]], one: str, other: str) -> dict[str, float]:
    """Compare voices of the same and of different persons over two channels: equal error rate and its
    threshold, the cosine that one pair in a hundred exceeds, and both errors at the sure threshold."""
    same, different = list[float](), list[float]()
    for plda, data in parts:
        first, then = halves(plda, data, one, False), halves(plda, data, other, True)
        for speaker, voice in first.items():
            for who, heard in then.items():
                (same if who == speaker else different).append(float(voice @ heard))
    own, others = np.sort(same), np.sort(different)
    bounds = np.linspace(-1, 1, 2001)
    missed = np.searchsorted(own, bounds) / len(own)
    taken = 1 - np.searchsorted(others, bounds) / len(others)
    at = int(np.abs(missed - taken).argmin())
    figures = {
        "pairs": len(own),
        "equal_error": (missed[at] + taken[at]) / 2,
        "at": bounds[at],
        "hundredth": np.quantile(others, 0.99),
        "missed": (own < THRESHOLDS.same).mean(),
        "taken": (others >= THRESHOLDS.same).mean(),
        "possible_missed": (own < THRESHOLDS.possible).mean(),
        "possible_taken": (others >= THRESHOLDS.possible).mean(),
    }
    return {name: round(float(value), 4) for name, value in figures.items()}


def main() -> None:
    data = Data.load()
    groups = split(sorted(set(data.speakers.tolist())))
    plda = learn(data.of(groups.training))
    store(plda, FOLDER)
    result: dict[str, Any] = {
        "pieces": int(np.isin(data.speakers, sorted(groups.training)).sum()),
        "speakers": {name: len(getattr(groups, name)) for name in ("training", "tuning", "test")},
        "psi": [round(float(value), 3) for value in plda.psi[:8]],
        "noise": [round(value, 3) for value in plda.noise],
        "equal_error": errors(plda, data.of(groups.test)),
    }
    (FOLDER / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n")
    parts = []
    for fold in range(FOLDS):
        others = frozenset(s for s in groups.training if fold_of(s) != fold)
        parts.append((learn(data.of(others)), data.of(groups.training - others)))
    channels = [str(name) for name in np.unique(data.channels)]
    pairs = [(name, name) for name in channels]
    pairs += [("clean", name) for name in channels if name != "clean"]
    likeness = {f"{one}, {other}": similarity(parts, one, other) for one, other in pairs}
    (FOLDER / "likeness.json").write_text(json.dumps(likeness, indent=2) + "\n")
    print(json.dumps(result | likeness, indent=2))


if __name__ == "__main__":
    main()
