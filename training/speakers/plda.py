"""Train the PLDA of diarize/, which separates differences of voices from those of moments.

    python -m training.speakers.vectors DATA/speakers
    python -m training.speakers.plda
    python -m training.speakers.plda --likeness      # similarity of voices, for known speakers

Reads training/made/speakers/*.npz, trains on the training speakers only, and writes the encoder's
mean, xvec_transform.npz, plda.npz and evaluation.json in bundled/speakers/. Format and features are
those of pyannote.audio (VBx, Landini et al. 2022): whitened, length-normalised, within-class
covariance I, between-class diagonal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from scipy.linalg import eigh

from forescribe.diarize.engines.voice_encoder import NAME, WINDOW_SAMPLES, weights
from training.speakers.encoder import FOLDER, save
from training.speakers.folds import FOLDS, fold_of, split
from training.speakers.vectors import STEP, WORK
from training.speech.channels import CHANNELS

DIMENSIONS = 128
"""Dimensions of the space, in order of importance; diarize/engines/embedded.py may use fewer."""

RIDGE = 1e-4


@dataclass(frozen=True)
class Plda:
    """The contents of pyannote's two files."""

    mean1: np.ndarray  # [D]
    mean2: np.ndarray  # [L]
    lda: np.ndarray  # [D, L]
    mu: np.ndarray  # [L]
    tr: np.ndarray  # [L, L]
    psi: np.ndarray  # [L] between-class variances, falling

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


def load_vectors(speakers: frozenset[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Load the mean of the clean windows of these speakers, the centred unit vectors of all windows and
    channels [N, D], and their speakers [N]."""
    parts = {name: load_channel(name, speakers) for name in CHANNELS}
    mean = parts["clean"][0].mean(0)
    vectors = np.concatenate([vectors for vectors, _ in parts.values()])
    return mean, unit(vectors - mean), np.concatenate([labels for _, labels in parts.values()])


def load_channel(name: str, speakers: frozenset[int]) -> tuple[np.ndarray, np.ndarray]:
    """Load the vectors [n, D] of these speakers in a channel, in the order of windows."""
    with np.load(WORK / f"{name}.npz") as data:
        chosen = np.isin(data["speakers"], sorted(speakers))
        return data["vectors"][chosen], data["speakers"][chosen]


def store(plda: Plda, folder: Path) -> None:
    """Write the two files that pyannote reads."""
    lda = plda.lda.astype(np.float32)  # of vectors in float32
    np.savez_compressed(folder / "xvec_transform.npz", mean1=plda.mean1, mean2=plda.mean2, lda=lda)
    np.savez_compressed(folder / "plda.npz", mu=plda.mu, tr=plda.tr, psi=plda.psi)


def half_clip_voices(
    plda: Plda, mean: np.ndarray, name: str, speakers: frozenset[int], half: int
) -> np.ndarray:
    """[speakers, L] stored voices, each from the first or the second half of a clip; NaN where a half has
    no window."""
    vectors, labels = load_channel(name, speakers)
    step = STEP if name == "clean" else 2 * STEP
    rows = []
    for speaker in sorted(speakers):
        own = unit(vectors[labels == speaker] - mean)
        starts = np.arange(len(own)) * step
        middle = (starts[-1] + WINDOW_SAMPLES) / 2 if len(own) else 0
        inside = starts + WINDOW_SAMPLES <= middle if half == 0 else starts >= middle
        rows.append(own[inside].mean(0) if inside.any() else np.full(own.shape[1], np.nan))
    return unit(plda.features(unit(np.stack(rows))))


def similarity(
    parts: Iterable[tuple[Plda, np.ndarray, frozenset[int]]], one: str, other: str, bound: float
) -> dict[str, float]:
    """Compare voices of the same and of different persons over two channels: equal error rate and its
    threshold, the cosine that one pair in a hundred exceeds and the misses there, and both errors at
    `bound`."""
    same, different = list[np.ndarray](), list[np.ndarray]()
    for plda, mean, speakers in parts:
        first = half_clip_voices(plda, mean, one, speakers, 0)
        second = half_clip_voices(plda, mean, other, speakers, 1)
        cosines = first @ second.T
        same.append(np.diag(cosines))
        different.append(cosines[~np.eye(len(cosines), dtype=bool)])
    own, others = np.concatenate(same), np.concatenate(different)
    own, others = own[~np.isnan(own)], others[~np.isnan(others)]
    bounds = np.linspace(-1, 1, 2001)
    missed = np.searchsorted(np.sort(own), bounds) / len(own)
    taken = 1 - np.searchsorted(np.sort(others), bounds) / len(others)
    at = int(np.abs(missed - taken).argmin())
    hundredth = float(np.quantile(others, 0.99))
    figures = {
        "equal_error": (missed[at] + taken[at]) / 2,
        "at": bounds[at],
        "hundredth": hundredth,
        "missed_there": (own < hundredth).mean(),
        "missed": (own < bound).mean(),
        "taken": (others >= bound).mean(),
    }
    return {name: round(float(value), 4) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--likeness", action="store_true", help="only that; writes nothing else")
    if parser.parse_args().likeness:
        return print(json.dumps(calibrate(), indent=2))
    learn()


def calibrate() -> dict[str, dict[str, float]]:
    """Compute `similarity` of the training voices by cross-validation and write it to likeness.json."""
    from forescribe.diarize.engines.embedded import THRESHOLDS

    training = split(all_speakers()).training
    parts = []
    for fold in range(FOLDS):
        mean, x, y = load_vectors(frozenset(s for s in training if fold_of(s) != fold))
        own = frozenset(s for s in training if fold_of(s) == fold)
        parts.append((train(x, y, DIMENSIONS), mean, own))
    pairs = [(name, name) for name in CHANNELS]
    pairs += [("clean", name) for name in CHANNELS if name != "clean"]
    found = {
        f"{one}, {other}": similarity(parts, one, other, THRESHOLDS.same) for one, other in pairs
    }
    (FOLDER / "likeness.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


def all_speakers() -> list[int]:
    with np.load(WORK / "clean.npz") as data:
        return sorted(set(data["speakers"].tolist()))


def learn() -> None:
    groups = split(all_speakers())
    mean, x, y = load_vectors(groups.training)
    plda = train(x, y, DIMENSIONS)
    store(plda, FOLDER)
    with safe_open(FOLDER / NAME, framework="pt") as file:
        data = json.loads(file.metadata()["forescribe"])
    tensors = weights(FOLDER)
    tensors["mean"] = torch.from_numpy(mean)
    # Stored voices can be compared only with the same mean.
    name = f"ge2e-{hashlib.sha256(mean.astype(np.float16).tobytes()).hexdigest()[:8]}"
    save(tensors, name, data["sha256"])
    result: dict[str, Any] = {
        "windows": len(y),
        "speakers": {
            "training": len(groups.training),
            "tuning": len(groups.tuning),
            "test": len(groups.test),
        },
        "psi": [round(float(value), 3) for value in plda.psi[:8]],
        "equal_error": {},
    }
    for channel in CHANNELS:
        vectors, speakers = load_channel(channel, groups.test)
        error, at = equal_error_rate(unit(vectors - mean), speakers)
        learnt, _ = equal_error_rate(unit(plda.features(unit(vectors - mean))), speakers)
        result["equal_error"][channel] = {
            "cosine": round(error, 4),
            "at": round(at, 3),
            "plda": round(learnt, 4),
        }
    (FOLDER / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
