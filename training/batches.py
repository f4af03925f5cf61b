"""Batches of equal-length windows whose shape follows the training clock.

Early windows are short and single; full 30 s windows come last, because a padded window costs as
much as a full one. `progress` is the elapsed share of training, 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training import pieces
from training.augment import NoiseBank, damage
from training.features import log_mel
from training.windows import IGNORE, Pool, characters, compose, label

POSITIONS = 1500
CTC_ONLY = 0.42  # until here the decoder sleeps: it could learn nothing but English
FULL = 0.88  # from here most windows are 30 s
TIMED = 0.72  # share of windows with timestamps
EMPTY = 0.03  # share of windows without speech
PROMPTED = 0.12  # share of batches that continue a previous text


@dataclass
class Batch:
    """features [B, 80, 2T], tokens, labels and places [B, L], characters packed, lengths [B].

    A place is the encoder position at which a label is heard, or below 0.
    """

    features: Tensor
    offsets: Tensor
    tokens: Tensor
    labels: Tensor
    places: Tensor
    characters: Tensor
    character_lengths: Tensor
    seconds: float


def window_seconds(progress: float, rng: np.random.Generator) -> float:
    """How long this batch's windows are."""
    if progress < CTC_ONLY:
        return float(rng.uniform(2.2, 7))
    if progress < 0.78:
        return float(rng.uniform(2.2, 7) if rng.random() < 0.75 else rng.uniform(7, 15))
    if progress < FULL:
        return float(rng.uniform(3, 12) if rng.random() < 0.5 else rng.uniform(12, 30))
    return 30.0 if rng.random() < 0.65 else float(rng.uniform(3, 18))


class Batcher:
    """Draws batches of `budget` seconds of audio."""

    def __init__(self, pool: Pool, seed: int, budget: float) -> None:
        self.pool = pool
        self.rng = np.random.default_rng(seed)
        self.bank = NoiseBank(self.rng)
        self.budget = budget

    def draw(self, progress: float, step: int) -> Batch:
        # The shape follows the step alone, so that members of a team have equal work.
        shape = np.random.default_rng(step)
        seconds = round(window_seconds(progress, shape) * 25) / 25  # an even number of frames
        rows = max(1, round(self.budget / seconds))
        full = seconds == 30.0
        # Prompts make rows long; together in a batch they cost the others no padding.
        prompted = progress > 0.74 and shape.random() < PROMPTED
        audio, tokens, labels, places, chars, offsets = [], [], [], [], [], []
        for _ in range(rows):
            sound, placed = self._window(seconds, full, strength=0.4)
            times = self.rng.random() < (TIMED if progress > 0.74 else TIMED / 2)
            offset = self._offset(seconds, times)
            row, targets, where = label(
                self.pool, placed, self.rng, times=times, shift=offset / 50, prompted=prompted
            )
            if len(row) > 440:  # positions end at 448; only very long prompts get here
                row, targets, where = row[:440], targets[:440], where[:440]
            audio.append(sound)
            tokens.append(row)
            labels.append(targets)
            places.append([round(50 * seconds_in) for seconds_in in where])
            chars.append(characters([self.pool.clips[i].text for i, _, _ in placed]))
            offsets.append(offset)
        features = log_mel(torch.from_numpy(np.stack(audio)))
        return Batch(
            features=self._tilt(features),
            offsets=torch.tensor(offsets),
            tokens=_pad(tokens, pieces.EOT),
            labels=_pad(labels, IGNORE),
            places=_pad(places, -1),
            characters=torch.tensor([c for row in chars for c in row], dtype=torch.long),
            character_lengths=torch.tensor([len(row) for row in chars]),
            seconds=rows * seconds,
        )

    def _window(
        self, seconds: float, full: bool, strength: float
    ) -> tuple[np.ndarray, list[tuple[int, float, float]]]:
        rng = self.rng
        if rng.random() < EMPTY:
            audio = np.zeros(round(seconds * 16_000), np.float32)
            if rng.random() < 0.8:
                audio = self.bank.cut(len(audio), rng) * np.float32(10 ** rng.uniform(-4.5, -0.8))
            return np.clip(audio, -1, 1), []
        audio, placed = compose(self.pool, seconds, rng, sparse=0.3 if full else 0.05)
        return damage(audio, self.bank, rng, strength), placed

    def _offset(self, seconds: float, times: bool) -> int:
        """A short window may stand anywhere in the 30 s: late positions are learnt for free."""
        last = POSITIONS - round(seconds * 50)
        if last == 0 or self.rng.random() < (0.55 if times else 0.3):
            return 0
        return int(self.rng.integers(last + 1))

    def _tilt(self, features: Tensor) -> Tensor:
        """A smooth random change of the spectrum, as microphones and lines make, and a mask."""
        rows = features.shape[0]
        x = torch.linspace(-1, 1, 80)
        weights = torch.from_numpy(self.rng.normal(0, 0.06, (rows, 3)).astype(np.float32))
        basis = torch.stack([x, 2 * x**2 - 1, torch.sin(3 * x)])
        tilted = features + (weights @ basis)[:, :, None]
        for row in np.flatnonzero(self.rng.random(rows) < 0.25):
            width = int(self.rng.integers(2, 9))
            start = int(self.rng.integers(0, 80 - width))
            tilted[row, start : start + width] = features[row].mean()
        return tilted


def _pad(rows: list[list[int]], value: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])
