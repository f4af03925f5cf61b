"""The speaker encoder of this package: voices as vectors.

Resemblyzer's network (GE2E, Wan et al. 2018, arXiv 1710.10467): mel power without logarithm, three
LSTM layers, one unit vector per window of 1.6 s. Its vectors have no negative components, so that all
voices are similar; subtracting the mean of many voices separates them. Steady noise moves them closer
together: it is measured against the speech (`speech_over_noise_db`) and subtracted from the mel power.

Knows nothing of turns. Shapes: N windows, F mel frames, M bands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from scipy.ndimage import uniform_filter1d
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, normalize

from forescribe.asr.errors import ModelError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.asr.segment.vad import FRAME, LEVEL_FRAMES
from forescribe.speculative.models.quantized import floats

NAME = "encoder.safetensors"
"""The file of weights in a folder."""

WINDOW = 160
"""Mel frames of 10 ms per window, as in the network's training."""

HOP = SAMPLE_RATE // 100
"""Samples between mel frames."""

WINDOW_SAMPLES = WINDOW * HOP
"""1.6 s."""

DIMENSION = 256
"""Numbers of a vector."""

LEVEL = 10 ** (-30 / 20)
"""Root mean square, -30 dBFS. Quieter windows are amplified to it, as in the network's training."""

BATCH = 128
"""Windows. Below 32 the LSTM leaves half of a core idle, above 128 it only needs more memory."""

PART = 60 * LEVEL_FRAMES * FRAME
"""Samples processed at a time, one minute: half an hour would need half a GB. A multiple of the
detector's frames."""

FAR = 4 * WINDOW_SAMPLES
"""Samples. Windows farther apart are in different batches."""

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

Samples = NDArray[np.float32]


class SpeakerEncoder(nn.Module):
    """[N, 160, 40] mel power at one level -> [N, 256] unit vectors around `mean`."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        from torchaudio.transforms import MelSpectrogram

        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, DIMENSION)
        self.register_buffer("mean", torch.zeros(DIMENSION))
        # librosa's melspectrogram, which the network was trained on.
        self.mel = MelSpectrogram(
            SAMPLE_RATE,
            n_fft=400,
            hop_length=HOP,
            n_mels=40,
            norm="slaney",
            mel_scale="slaney",
            pad_mode="constant",
        )

    def forward(self, mels: Tensor) -> Tensor:
        return normalize(self.raw(mels) - self.mean)

    def raw(self, mels: Tensor) -> Tensor:
        """[N, 160, 40] -> [N, 256], as published: unit vectors without negative components."""
        _, (hidden, _) = self.lstm(mels)
        return normalize(self.linear(hidden[-1]).relu())

    @torch.inference_mode()
    def windows(
        self, samples: Samples, starts: NDArray[np.int64], *, noisy: bool = False
    ) -> Iterator[Samples]:
        """Yield the vectors [n, 256] of windows of 1.6 s that start at these samples, in order and in
        batches. If `noisy`, noise is subtracted. Samples outside the recording are zeros."""
        for batch in _batches(starts):
            mels = self.mels(samples, batch)
            yield np.asarray(self(subtract_noise(mels) if noisy else mels).cpu())

    @torch.inference_mode()
    def speech_over_noise_db(self, samples: Samples, speech: NDArray[np.bool_]) -> float:
        """The level of speech above noise. `speech` [F] is the voice activity in frames of `FRAME`
        samples."""
        parts = [samples[first : first + PART] for first in range(0, len(samples), PART)]
        frames = [
            self.mel(torch.from_numpy(part).to(self.mean.device)).cpu().numpy().T for part in parts
        ]
        places = np.concatenate([n * PART + HOP * np.arange(len(f)) for n, f in enumerate(frames)])
        said = speech[np.minimum(places // FRAME, len(speech) - 1)]
        return speech_over_noise_db(np.concatenate(frames), said)

    def mels(self, samples: Samples, starts: NDArray[np.int64]) -> Tensor:
        """[n, 160, 40] mel power, each window amplified to LEVEL. Overlapping windows share one spectrum;
        a window begins at the nearest frame, at most 5 ms away."""
        begin, end = int(starts.min()), int(starts.max()) + WINDOW_SAMPLES
        audio = np.zeros(end - begin, np.float32)
        inside = samples[max(begin, 0) : max(end, 0)]
        audio[max(-begin, 0) :][: len(inside)] = inside
        device = self.mean.device
        frames: Tensor = self.mel(torch.from_numpy(audio).to(device)).T  # [F, 40]
        power = np.concatenate([[0.0], np.cumsum(np.square(audio, dtype=np.float64))])
        at = starts - begin
        level = np.sqrt((power[at + WINDOW_SAMPLES] - power[at]) / WINDOW_SAMPLES)
        gain = np.maximum(1.0, LEVEL / np.maximum(level, 1e-7))  # a window of zeros stays zero
        places = torch.from_numpy(np.round(at / HOP).astype(np.int64)).to(device)
        mels: Tensor = frames[places[:, None] + torch.arange(WINDOW, device=device)]
        return mels * torch.from_numpy(np.square(gain)).to(mels)[:, None, None]


def load(folder: Path, device: torch.device | str = "cpu") -> SpeakerEncoder:
    """Load the encoder in a folder, to compute in float32.

    Raises ModelError if the file is missing or holds something else.
    """
    path = folder / NAME
    encoder = SpeakerEncoder()
    try:
        tensors = weights(folder)
        names = {"mean", *(f"lstm.{n}" for n, _ in encoder.lstm.named_parameters())}
        names |= {"linear.weight", "linear.bias"}
        if tensors.keys() != names:
            raise ValueError(f"it holds {', '.join(sorted(tensors))}")
        encoder.load_state_dict(tensors, strict=False)  # the mel filters are computed
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"no speaker encoder in {str(path)!r}: {error}") from error
    return encoder.to(device).eval().requires_grad_(False)


def weights(folder: Path) -> dict[str, Tensor]:
    """The encoder's tensors by name in float32; stored as 8-bit integers with scales, or as floats.

    Raises ValueError for integers without scales, and what safetensors raises for a damaged file.
    """
    with safe_open(folder / NAME, framework="pt") as file:
        stored = {key: file.get_tensor(key) for key in file.keys()}
    return {key: tensor.float() for key, tensor in floats(stored).items()}


def identity(folder: Path) -> str:
    """The name of the encoder, which is stored with voices: vectors of two encoders never compare."""
    with safe_open(folder / NAME, framework="pt") as file:
        metadata = file.metadata() or {}
    return str(json.loads(metadata["forescribe"])["name"])


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


def _batches(starts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Batches of up to BATCH windows close together, as the spectrum covers the gaps between them."""
    for near in np.split(starts, np.flatnonzero(np.diff(starts) > FAR) + 1):
        yield from (near[first : first + BATCH] for first in range(0, len(near), BATCH))
