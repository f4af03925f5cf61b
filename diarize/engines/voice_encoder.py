"""Voices as vectors: the speaker encoder that travels with the package.

Resemblyzer's network (GE2E, Wan et al. 2018, arXiv 1710.10467): log-free mel spectrum, three LSTM
layers, one unit vector for each window of 1.6 s. Its vectors are all positive, so that every two
voices look alike; here the average of many voices is taken off, which sets them apart. Knows
nothing of turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import normalize

from forescribe.asr.errors import ModelError
from forescribe.asr.formats.transcript import SAMPLE_RATE
from forescribe.asr.segment.vad import FRAME, LEVEL_FRAMES

from .noise_removal import speech_over_noise_db, subtract_noise

Samples = NDArray[np.float32]

WINDOW = 160
"""Mel frames of 10 ms that the network was trained to hear at a time."""

HOP = SAMPLE_RATE // 100
"""Samples from one mel frame to the next."""

WINDOW_SAMPLES = WINDOW * HOP

DIMENSION = 256

LEVEL = 10 ** (-30 / 20)
"""Root mean square, -30 dBFS: what is quieter is raised to it, as in the network's training."""

BATCH = 128
"""Windows: below 32 the LSTM leaves half of a core idle, above 128 it only takes room."""

PART = 60 * LEVEL_FRAMES * FRAME
"""Samples heard at a time, a minute: half an hour at once would take half a GB. Whole seconds of the
detector's level."""

FAR = 4 * WINDOW_SAMPLES

NAME = "encoder.safetensors"


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
        """[N, 160, 40] -> [N, 256], as published: unit vectors without a negative number."""
        _, (hidden, _) = self.lstm(mels)
        return normalize(self.linear(hidden[-1]).relu())

    @torch.inference_mode()
    def windows(
        self, samples: Samples, starts: NDArray[np.int64], *, noisy: bool = False
    ) -> Iterator[Samples]:
        """The vectors [n, 256] of windows of 1.6 s that start at these samples, in order, a batch
        at a time; of speech over noise, without the noise. What lies outside the recording is
        silence."""
        for batch in _batches(starts):
            mels = self.mels(samples, batch)
            yield np.asarray(self(subtract_noise(mels) if noisy else mels).cpu())

    @torch.inference_mode()
    def speech_over_noise_db(self, samples: Samples, speech: NDArray[np.bool_]) -> float:
        """How far speech stands above what is under it. `speech` [F] says where it is, in equal
        parts of `FRAME` samples."""
        parts = [samples[first : first + PART] for first in range(0, len(samples), PART)]
        frames = [
            self.mel(torch.from_numpy(part).to(self.mean.device)).cpu().numpy().T for part in parts
        ]
        places = np.concatenate([n * PART + HOP * np.arange(len(f)) for n, f in enumerate(frames)])
        said = speech[np.minimum(places // FRAME, len(speech) - 1)]
        return speech_over_noise_db(np.concatenate(frames), said)

    def mels(self, samples: Samples, starts: NDArray[np.int64]) -> Tensor:
        """[n, 160, 40], each window raised to LEVEL. One spectrum serves windows that overlap;
        a window begins at the nearest of its frames, at most 5 ms away."""
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


def _batches(starts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Up to BATCH windows that lie close together: the spectrum covers what is between them."""
    for near in np.split(starts, np.flatnonzero(np.diff(starts) > FAR) + 1):
        yield from (near[first : first + BATCH] for first in range(0, len(near), BATCH))


def load(folder: Path, device: torch.device | str = "cpu") -> SpeakerEncoder:
    """The encoder in a folder; stored in float16, computed in float32.

    Raises ModelError where the file is missing or holds something else.
    """
    path = folder / NAME
    encoder = SpeakerEncoder()
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key).float() for key in file.keys()}
        names = {"mean", *(f"lstm.{n}" for n, _ in encoder.lstm.named_parameters())}
        names |= {"linear.weight", "linear.bias"}
        if tensors.keys() != names:
            raise ValueError(f"it holds {', '.join(sorted(tensors))}")
        encoder.load_state_dict(tensors, strict=False)  # the mel filters are computed
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"no speaker encoder in {str(path)!r}: {error}") from error
    return encoder.to(device).eval().requires_grad_(False)


def identity(folder: Path) -> str:
    """The name that a stored voice carries: vectors of two encoders are never compared."""
    with safe_open(folder / NAME, framework="pt") as file:
        metadata = file.metadata() or {}
    return str(json.loads(metadata["forescribe"])["name"])
