"""Batches of windows of equal length, whose kind depends on the progress of training.

Training begins with single clips, sorted by length to avoid padding, continues with several clips per
window, and ends with full windows of 30 s, as a padded window costs as much as a full one. `progress` is
the elapsed share of training, 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.demo.features import log_mel
from training.demo.windows import IGNORE, RATE, Pool, characters, compose, label, mislead
from training.sentences import vocabulary
from training.speech.augment import NoiseBank, damage

LEAD = 0.2  # seconds before a single clip, at most
# (until this progress, shares of single clips, of 7 to 16 s windows, of 30 s windows)
STAGES = ((0.42, 1.0, 0.0, 0.0), (0.68, 0.6, 0.4, 0.0), (0.8, 0.4, 0.2, 0.4), (1.0, 0.2, 0.1, 0.7))
NOISY_FROM = 0.3  # clean speech before this point
PROMPTED_FROM = 0.6
TIMED, TIMED_EARLY = 0.7, 0.35  # share of windows with timestamps
EMPTY = 0.03  # share of windows without speech
PROMPTED = 0.12  # share of batches that continue a previous text
MISLED = 0.4  # share of windows with mistakes in the text so far (windows.mislead)
# A batch of single clips is drawn from this share of clips of similar length.
NEIGHBOURS = 0.02


@dataclass
class Batch:
    """features [B, 80, 2T], tokens, labels and places [B, L], characters packed, lengths [B].

    A place is the encoder position of a label in the audio; negative if unknown.
    """

    features: Tensor
    tokens: Tensor
    labels: Tensor
    places: Tensor
    characters: Tensor
    character_lengths: Tensor
    seconds: float


def stage(progress: float) -> tuple[float, float, float]:
    """Shares of single clips, several clips and full windows."""
    return next((a, b, c) for until, a, b, c in STAGES if progress < until or until == 1.0)


class Batcher:
    """Draws batches of `budget` seconds of audio."""

    def __init__(self, pool: Pool, seed: int, budget: float) -> None:
        self.pool = pool
        self.rng = np.random.default_rng(seed)
        self.bank = NoiseBank(self.rng)
        self.budget = budget

    def draw(self, progress: float, step: int) -> Batch:
        # The shape depends on the step only, so that all processes have equal work.
        shape = np.random.default_rng(step)
        single, several, _ = stage(progress)
        kind, place = shape.random(), shape.random()
        alone = kind < single
        near = self.pool.neighbours(place, NEIGHBOURS) if alone else None
        if near is not None:
            seconds = float(self.pool.lengths[near].max()) / RATE + LEAD + 0.04
        else:
            seconds = 7 + 9 * place if kind < single + several else 30.0
        seconds = np.ceil(seconds * 25) / 25  # an even number of frames
        rows = max(1, round(self.budget / seconds))
        noisy = progress > NOISY_FROM
        # Prompts make rows long; in batches of their own they do not pad others.
        prompted = progress > PROMPTED_FROM and shape.random() < PROMPTED
        audio, tokens, labels, places, chars = [], [], [], [], []
        for _ in range(rows):
            if noisy and self.rng.random() < EMPTY:
                sound, placed = self._empty(seconds), list[tuple[int, float, float]]()
            elif near is not None:
                sound, placed = self._alone(int(self.rng.choice(near)), seconds)
            else:
                sparse = 0.2 if seconds == 30.0 else 0.05
                sound, placed = compose(self.pool, seconds, self.rng, sparse=sparse)
            if placed:
                sound = damage(sound, self.bank, self.rng, 0.4 if noisy else 0.0)
            times = self.rng.random() < (TIMED if progress > PROMPTED_FROM else TIMED_EARLY)
            row, targets, where = label(self.pool, placed, self.rng, times=times, prompted=prompted)
            if noisy and self.rng.random() < MISLED:
                row = mislead(row, self.rng)
            if len(row) > 440:  # at most 448 positions; only very long prompts exceed them
                row, targets, where = row[:440], targets[:440], where[:440]
            audio.append(sound)
            tokens.append(row)
            labels.append(targets)
            places.append([round(50 * seconds_in) for seconds_in in where])
            chars.append(characters([self.pool.clips[i].text for i, _, _ in placed]))
        features = log_mel(torch.from_numpy(np.stack(audio)))
        return Batch(
            features=self._tilt(features) if noisy else features,
            tokens=_pad(tokens, vocabulary.EOT),
            labels=_pad(labels, IGNORE),
            places=_pad(places, -1),
            characters=torch.tensor([c for row in chars for c in row], dtype=torch.long),
            character_lengths=torch.tensor([len(row) for row in chars]),
            seconds=rows * seconds,
        )

    def _alone(
        self, index: int, seconds: float
    ) -> tuple[np.ndarray, list[tuple[int, float, float]]]:
        """One clip after a short silence."""
        clip = self.pool.audio(index)
        begin = int(self.rng.uniform(0, LEAD) * RATE)
        audio = np.zeros(round(seconds * RATE), np.float32)
        audio[begin : begin + len(clip)] = clip
        return audio, [(index, begin / RATE, (begin + len(clip)) / RATE)]

    def _empty(self, seconds: float) -> np.ndarray:
        """Silence, or noise of any kind and level."""
        audio = np.zeros(round(seconds * RATE), np.float32)
        if self.rng.random() < 0.8:
            level = np.float32(10 ** self.rng.uniform(-4.5, -0.8))
            audio = self.bank.cut(len(audio), self.rng) * level
        return np.clip(audio, -1, 1)

    def _tilt(self, features: Tensor) -> Tensor:
        """A smooth random change of the spectrum, as by microphones and lines, and a mask."""
        rows = features.shape[0]
        x = torch.linspace(-1, 1, 80)
        weights = torch.from_numpy(self.rng.normal(0, 0.06, (rows, 3)).astype(np.float32))
        basis = torch.stack([x, 2 * x**2 - 1, torch.sin(3 * x)])
        tilted = features + (weights @ basis)[:, :, None]
        for row in np.flatnonzero(self.rng.random(rows) < 0.2):
            width = int(self.rng.integers(2, 9))
            start = int(self.rng.integers(0, 80 - width))
            tilted[row, start : start + width] = features[row].mean()
        return tilted


def _pad(rows: list[list[int]], value: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])
