"""Noise in speech: its level below the speech, and its removal. Knows mel power only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d
from torch import Tensor
from torch.nn.functional import avg_pool1d

NOISY_DB = 24.0
"""A recording with a lower speech-to-noise level is noisy. Measured: 26 to 67 dB in 61 of 62 conversations,
calls and rooms without noise, with real and synthetic voices (20 dB in one), and 11 to 21 dB with white or
pink noise 20 dB below the speech."""

SMOOTH = 9
"""Frames over which power is averaged before its minima are taken, as single frames of noise vary by
5 dB."""

QUIET = 0.1
"""Share of frames that are taken as pauses. Without pauses between words each band still has gaps
between sounds."""

OVERSUBTRACTION = 1.5
"""Factor, as the quietest tenth of noise lies below its mean."""

SILENT = 1e-9
"""Power of digital zeros, which say nothing about the noise of a room."""


def speech_over_noise_db(mels: NDArray[np.float32], speech: NDArray[np.bool_]) -> float:
    """The level of speech above noise, from mel power [F, M] and voice activity [F]: the mean of speech
    against the quiet frames in each band, averaged over the bands. Infinite without speech."""
    live = mels.sum(1) > SILENT
    if not (speech & live).any():
        return float("inf")
    smooth = uniform_filter1d(mels[live], SMOOTH, axis=0, mode="nearest")
    floor = np.percentile(smooth, 100 * QUIET, axis=0)  # [M]
    loud = mels[speech & live].mean(0)
    return float(np.mean(10 * np.log10(np.maximum(loud, SILENT) / np.maximum(floor, SILENT))))


def subtract_noise(mels: Tensor) -> Tensor:
    """Subtract the power of the quiet frames from each band of the windows [n, F, M]. Steady noise moves
    the vectors of all voices in one direction, and thus closer together."""
    bands = mels.transpose(1, 2)  # [n, M, F]
    smooth = avg_pool1d(bands, SMOOTH, 1, SMOOTH // 2, count_include_pad=False)
    floor = smooth.kthvalue(1 + round(QUIET * (mels.shape[1] - 1)), dim=2).values  # [n, M]
    return (mels - OVERSUBTRACTION * floor[:, None]).clamp(min=0)
