"""Log-mel features: windows of samples to the input of Whisper's encoder, on the device.

Computes the same numbers as transformers' WhisperFeatureExtractor, with its filters and sizes, so any
model folder works; but as one batch on the device, without converting to numpy. Knows nothing of models
or of where windows come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Extractor:
    """The sizes of a model's features and their filters, as of transformers' WhisperFeatureExtractor."""

    feature_size: int = 80
    sampling_rate: int = 16000
    hop_length: int = 160
    chunk_length: int = 30  # seconds
    n_fft: int = 400

    @property
    def n_samples(self) -> int:
        return self.chunk_length * self.sampling_rate

    @property
    def nb_max_frames(self) -> int:
        return self.n_samples // self.hop_length

    @cached_property
    def mel_filters(self) -> NDArray[np.float64]:
        """Triangles `[n_fft / 2 + 1, M]` of equal area up to 8 kHz, on Slaney's scale: linear to 1 kHz,
        logarithmic above."""
        knee, step = 15.0, np.log(6.4) / 27.0
        top = knee + np.log(8000.0 / 1000.0) * (27.0 / np.log(6.4))
        mels = np.linspace(0.0, top, self.feature_size + 2)
        edges = 200.0 * mels / 3.0
        edges[mels >= knee] = 1000.0 * np.exp(step * (mels[mels >= knee] - knee))
        bins = np.linspace(0, self.sampling_rate // 2, 1 + self.n_fft // 2)
        width, distance = np.diff(edges), edges[None] - bins[:, None]
        filters = np.maximum(
            0.0, np.minimum(-distance[:, :-2] / width[:-1], distance[:, 2:] / width[1:])
        )
        filters *= 2.0 / (edges[2:] - edges[:-2])
        return filters


class LogMel:
    """Computes Whisper's features. Built once per model and device.

    M is the extractor's number of mel bands, F its frames (3000 for 30 s), S its samples (480,000).
    A feature extractor's `dither` is not applied: it is random noise for training. Source: Radford
    et al. 2022, section 2.2; `WhisperFeatureExtractor._torch_extract_fbank_features`.
    """

    def __init__(self, extractor: Extractor, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.samples, self.n_fft = extractor.n_samples, extractor.n_fft
        self.hop = extractor.hop_length
        filters = extractor.mel_filters.astype(np.float32).T  # [M, n_fft / 2 + 1]
        self.filters = torch.from_numpy(np.ascontiguousarray(filters)).to(self.device)
        self.hann = torch.hann_window(self.n_fft, device=self.device)

    @property
    def bands(self) -> int:
        """M."""
        return self.filters.shape[0]

    @property
    def frames(self) -> int:
        """F."""
        return self.samples // self.hop

    def __call__(self, windows: Sequence[NDArray[np.float32]]) -> Tensor:
        """Features [B, M, F] float32 of B windows [up to S], which are padded with zeros.

        Raises ValueError for a window longer than S: truncating it would lose words silently.
        """
        batch = torch.from_numpy(self._padded(windows)).to(self.device)  # [B, S]
        # A CPU takes 5 ms for a single window and 12 ms for one of eight, which do not fit its caches.
        groups = batch.split(1) if self.device.type == "cpu" and len(batch) else (batch,)
        return torch.cat([self._features(group) for group in groups])

    def _features(self, batch: Tensor) -> Tensor:
        """[B, S] -> [B, M, F]."""
        mel = self._log(batch, center=True)[..., :-1]
        # The maximum [B, 1, 1] is per window, so that it does not depend on the rest of the batch.
        return self.scaled(mel, mel.amax(dim=(1, 2), keepdim=True))

    def frames_of(self, samples: NDArray[np.float32]) -> Tensor:
        """The log10 mel power [M, K] of K frames, from [n_fft + (K - 1) * hop] samples.

        For features of a whole recording, piece by piece: `scaled` needs the maximum of all pieces.
        """
        whole = torch.from_numpy(np.ascontiguousarray(samples)).to(self.device)
        return self._log(whole, center=False)

    @staticmethod
    def scaled(mel: Tensor, loudest: Tensor | float) -> Tensor:
        """The encoder's input from log mel power: clamped at 8 below the loudest, shifted and scaled."""
        return (torch.maximum(mel, torch.as_tensor(loudest) - 8.0) + 4.0) / 4.0

    def _log(self, samples: Tensor, *, center: bool) -> Tensor:
        spectrum = torch.stft(
            samples, self.n_fft, self.hop, window=self.hann, center=center, return_complex=True
        )
        return (self.filters @ spectrum.abs().square()).clamp(min=1e-10).log10()

    def _padded(self, windows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        batch = np.zeros((len(windows), self.samples), np.float32)
        for row, window in zip(batch, windows, strict=True):
            if window.ndim != 1 or len(window) > self.samples:
                raise ValueError(f"window of shape {window.shape}; expected [up to {self.samples}]")
            row[: len(window)] = window
        return batch
