"""The speaker encoder: CAM++ of 3D-Speaker, voices as vectors.

CAM++ (Wang et al. 2023, arXiv 2303.00332) is a small 2D convolutional network, then 52 densely connected
convolutions over time, each with a mask that is computed from the mean of its context, then mean and
standard deviation over time. `zh-en common advanced` has 6.9 M parameters. It reads 80 mel bands of frames of
10 ms whose mean was subtracted.

The weights are stored with every batch normalisation that follows a convolution folded into it
(training/speakers/networks.py).

Knows nothing of turns. Shapes: B rows, T frames of 10 ms, C channels, D = 192.
"""

from __future__ import annotations

import lzma
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor
from torch.nn import functional

from forescribe.asr.errors import ModelError
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.speculative.models.quantized import floats

from ..diarizer import Samples

NAME = "voice.safetensors.xz"
"""The file of weights in a folder."""

DIMENSION = 192
"""Numbers of a vector."""

BANDS = 80

HOP = SAMPLE_RATE // 100
"""Samples between frames of features."""

LAYERS = ((12, 1), (24, 2), (16, 2))
"""Dense layers of each block, and their dilation."""

GROWTH = 32
"""Channels that each dense layer adds."""

CONTEXT = 100
"""Frames of 20 ms whose mean a mask is computed from, besides the mean of all frames."""

SHORTEST = 20
"""Frames of a row at least; shorter ones are repeated."""

ROUNDING = 10
"""Rows are repeated to a multiple of so many frames, so that more of them share a batch."""

BATCH_FRAMES = 6400
"""Frames of a batch, 64 s, which bounds the memory of activations."""

LOUD = 0.12
"""Level of the loud frames (95th percentile) of read speech whose root mean square is 0.05."""

SILENT = 1e-6
"""Level below which there is nothing to amplify."""

PART = 6000
"""Frames of features computed at a time, one minute."""


class VoiceEncoder:
    """CAM++ in float32 on one device."""

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._w: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            kept = tensor.float().to(self.device)
            if name.startswith("head.") and kept.dim() == 4:
                kept = kept.contiguous(memory_format=torch.channels_last)
            self._w[name] = kept

    @torch.inference_mode()
    def vectors(self, features: Sequence[Tensor]) -> NDArray[np.float32]:
        """N features `[T, 80]`, of any lengths from one frame -> `[N, 192]` vectors."""
        found = np.zeros((len(features), DIMENSION), np.float32)
        by_length: dict[int, list[int]] = defaultdict(list)
        for n, rows in enumerate(features):
            by_length[max(SHORTEST, -(-len(rows) // ROUNDING) * ROUNDING)].append(n)
        for length, members in sorted(by_length.items()):
            size = max(1, BATCH_FRAMES // length)
            for first in range(0, len(members), size):
                some = members[first : first + size]
                batch = torch.stack([_repeated(features[n], length) for n in some])
                found[some] = self.forward(batch.to(self.device)).cpu().numpy()
        return found

    def forward(self, features: Tensor) -> Tensor:
        """`[B, T, 80]` features of at least `SHORTEST` frames, each with a mean of 0 -> `[B, 192]`."""
        frames = self._dense(self._head(features))
        pooled = torch.cat([frames.mean(2), frames.std(2, unbiased=True)], 1)
        return functional.linear(pooled, self._w["output.weight"], self._w["output.bias"])

    def _head(self, features: Tensor) -> Tensor:
        """`[B, T, 80]` -> `[B, 128, T / 2]`"""
        x = features.transpose(1, 2)[:, None].contiguous(memory_format=torch.channels_last)
        x = self._conv("head.first", x).relu_()
        for block in ("head.1.0", "head.1.1", "head.2.0", "head.2.1"):
            stride = (2, 1) if block.endswith("0") else (1, 1)
            y = self._conv(f"{block}.first", x, stride).relu_()
            y = self._conv(f"{block}.second", y)
            y += self._conv(f"{block}.shortcut", x, stride, 0) if block.endswith("0") else x
            x = y.relu_()
        x = self._conv("head.last", x, (2, 1)).relu_()
        x = x.contiguous().flatten(1, 2)  # [B, 320, T]
        weight, bias = self._w["time.weight"], self._w["time.bias"]
        return functional.conv1d(x, weight, bias, stride=2, padding=2).relu_()

    def _conv(
        self, name: str, x: Tensor, stride: tuple[int, int] = (1, 1), padding: int = 1
    ) -> Tensor:
        weight, bias = self._w[f"{name}.weight"], self._w[f"{name}.bias"]
        return functional.conv2d(x, weight, bias, stride=stride, padding=padding)

    def _dense(self, x: Tensor) -> Tensor:
        """`[B, 128, T]` -> `[B, 512, T]`"""
        for block, (layers, dilation) in enumerate(LAYERS):
            channels = x.shape[1]
            # Each layer reads all channels so far: they are written in place instead of concatenated.
            grown = x.new_empty(x.shape[0], channels + GROWTH * layers, x.shape[2])
            grown[:, :channels] = x
            for layer in range(layers):
                name, end = f"dense.{block}.{layer}", channels + GROWTH * layer
                added = self._dense_layer(name, grown[:, :end], dilation)
                grown[:, end : end + GROWTH] = added
            y = self._normed(f"dense.{block}.out", grown)
            x = functional.conv1d(y, self._w[f"dense.{block}.out.weight"])
        return self._normed("dense.out", x)

    def _dense_layer(self, name: str, x: Tensor, dilation: int) -> Tensor:
        """`[B, C, T]` -> `[B, 32, T]`"""
        w, length = self._w, x.shape[2]
        y = torch.matmul(w[f"{name}.reduce.weight"], self._normed(name, x))
        y = y.add_(w[f"{name}.reduce.bias"][:, None]).relu_()  # [B, 128, T]
        local = w[f"{name}.local.weight"]
        z = functional.conv1d(y, local, padding=dilation, dilation=dilation)
        near = functional.avg_pool1d(y, CONTEXT, CONTEXT, ceil_mode=True)  # [B, 128, S]
        context = y.mean(2, keepdim=True) + near
        for part in ("narrow", "wide"):
            context = torch.matmul(w[f"{name}.{part}.weight"], context)
            context += w[f"{name}.{part}.bias"][:, None]
            context = context.relu_() if part == "narrow" else context.sigmoid_()
        return z.mul_(context.repeat_interleave(CONTEXT, 2)[:, :, :length])

    def _normed(self, name: str, x: Tensor) -> Tensor:
        """A normalisation that no convolution precedes, and ReLU."""
        shift, scale = self._w[f"{name}.shift"][:, None], self._w[f"{name}.scale"][:, None]
        return torch.addcmul(shift, x, scale).relu_()


def frame_power(samples: Samples) -> NDArray[np.float64]:
    """[T] samples -> [T // 160] mean power of frames of 10 ms."""
    rows = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    return np.asarray(np.einsum("ft,ft->f", rows, rows, dtype=np.float64) / HOP)


def _gain(samples: Samples) -> float:
    """What brings the loud frames of a quiet recording to LOUD, 1 for others: Kaldi's features have a floor
    that quiet speech falls below, so that its vectors would be others."""
    power = frame_power(samples)
    if not len(power):
        return 1.0
    level = float(np.sqrt(np.percentile(power, 95)))
    return max(1.0, LOUD / level) if level > SILENT else 1.0


def features(samples: Samples, device: torch.device | str = "cpu") -> Tensor:
    """`[T]` samples -> `[T // 160, 80]` logarithms of mel power, as Kaldi computes them, for frames that
    begin every 10 ms, on the device. Without samples behind it the last frames are those of silence."""
    from torchaudio.compliance.kaldi import fbank

    count = len(samples) // HOP
    window = round(0.025 * SAMPLE_RATE)
    padded = np.zeros(max(0, count - 1) * HOP + window, np.float32)
    padded[: len(samples)] = samples[: len(padded)] * np.float32(_gain(samples))
    sound = torch.from_numpy(padded)[None].to(device)
    parts = [
        fbank(
            sound[:, first * HOP : (min(first + PART, count) - 1) * HOP + window],
            num_mel_bins=BANDS,
            sample_frequency=SAMPLE_RATE,
            dither=0.0,
        )
        for first in range(0, count, PART)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, BANDS)


def load(folder: Path, device: torch.device | str = "cpu") -> VoiceEncoder:
    """Load the encoder. Raises ModelError if the file is missing or damaged."""
    return VoiceEncoder(read_weights(folder / NAME), device)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a compressed safetensors file in float32; integers have scales, as `floats` reads them.

    Raises ModelError for a missing or damaged file.
    """
    try:
        stored = read_tensors(lzma.decompress(path.read_bytes()))
        return {name: tensor.float() for name, tensor in floats(stored).items()}
    except (OSError, ValueError, lzma.LZMAError, SafetensorError) as error:
        raise ModelError(f"no weights in {str(path)!r}: {error}") from error


def _repeated(rows: Tensor, length: int) -> Tensor:
    """`[T, 80]` -> `[length, 80]` with a mean of 0, repeated where it is shorter."""
    rows = rows - rows.mean(0)
    return rows.repeat(-(-length // len(rows)), 1)[:length]
