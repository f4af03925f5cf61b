"""Voice activity: the probability of speech in each frame of 32 ms.

A detector holds weights and may serve many recordings at once; each recording has its own stream, which
carries the state from block to block. Knows nothing of windows or files.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from forescribe.speculative.models.checkpoint import loading

from ..errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Samples = NDArray[np.float32]
Probabilities = NDArray[np.float32]

FRAME = 512
"""Samples: 32 ms at 16 kHz, the step of silero-vad."""

CONTEXT = 64
"""Samples of the previous frame that silero-vad needs with each frame."""

AUDIBLE = 0.1
MOST_GAIN = 64.0
LEVEL_FRAMES = 32
"""The network misses quiet speech, so each second (32 frames) that peaks below AUDIBLE is amplified to
that level, by MOST_GAIN at most."""

WEIGHTS = "silero_vad.jit"
"""The file that the package itself loads. Its safetensors file holds the weights of another training
run (silero-vad 6.2; probabilities differ by up to 0.9)."""


class Stream(Protocol):
    """One recording's voice activity, in order."""

    def probabilities(self, samples: Samples) -> Probabilities:
        """Probabilities [F] of samples [F * 512]. Raises ValueError for a length that is not a multiple
        of 512."""


class Detector(Protocol):
    """Creates streams."""

    def stream(self) -> Stream:
        """Start a new recording."""


class SileroDetector:
    """silero-vad's 16 kHz network with the weights in its package; nothing is downloaded.

    The published module runs frame by frame in a Python loop. Only its LSTM is recurrent, so here all
    frames of a block pass the convolutions together and the LSTM in one call: the same probabilities
    (up to rounding), thirty times faster. The package itself is not imported, because importing it sets
    torch's thread count to 1.

    Raises ModelError where the package or its weights are missing.
    Source: the module packaged in silero-vad 6.2 (MIT), https://github.com/snakers4/silero-vad.
    """

    @loading()
    def __init__(self) -> None:
        import torch

        self.weights = _weights()
        self.lstm = torch.nn.LSTM(128, 128)
        with torch.no_grad():
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(self.lstm, f"{kind}_l0").copy_(self.weights[f"decoder.rnn.{kind}"])
        self.lstm.requires_grad_(False)

    def stream(self) -> Stream:
        return _SileroStream(self)

    def encode(self, frames: Tensor) -> Tensor:
        """Encodings [F, 128] of samples [F, 64 + 512]: spectrum and convolutions, each frame alone."""
        from torch.nn.functional import conv1d, pad

        weights = self.weights
        x = pad(frames[:, None], (0, 64), mode="reflect")  # [F, 1, 640]
        x = conv1d(x, weights["stft.forward_basis_buffer"], stride=128)  # [F, 258, 4]
        x = (x[:, :129].square() + x[:, 129:].square()).sqrt()  # [F, 129, 4]
        for layer, stride in enumerate((1, 2, 2, 1)):
            name = f"encoder.{layer}.reparam_conv"
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            x = conv1d(x, weight, bias, stride=stride, padding=1).relu()
        return x[..., 0]


class _SileroStream:
    def __init__(self, detector: SileroDetector) -> None:
        import torch

        self.detector = detector
        self.context = np.zeros(CONTEXT, np.float32)
        self.state = torch.zeros(1, 1, 128), torch.zeros(1, 1, 128)

    def probabilities(self, samples: Samples) -> Probabilities:
        import torch

        frames = _frames(audible(samples))  # [F, 512]
        if not len(frames):
            return np.zeros(0, np.float32)
        # Each frame is preceded by the end of the one before it.
        before = np.concatenate([self.context[None], frames[:-1, -CONTEXT:]])
        frames = np.concatenate([before, frames], axis=1)  # [F, 576]
        self.context = frames[-1, -CONTEXT:].copy()
        with torch.inference_mode():
            encoded = self.detector.encode(torch.from_numpy(frames))
            hidden, self.state = self.detector.lstm(encoded[:, None], self.state)  # [F, 1, 128]
            weights = self.detector.weights
            weight, bias = weights["decoder.decoder.2.weight"], weights["decoder.decoder.2.bias"]
            logits = hidden[:, 0].relu() @ weight[0, :, 0] + bias  # [F]
            return np.asarray(logits.sigmoid().numpy(), np.float32)


Levels = NDArray[np.float32]
"""Of frames, in dB against full scale."""

ABOVE_NOISE = 10
BELOW_SPEECH = 20
"""dB: what is less than this above the noise of its recording, or more than this below its speech, is plainly
quiet."""

LOUD, HALF_SECOND = 0.9, 16
"""The share of frames with a voice below the loud ones, and frames."""

QUIETEST = -120
"""dB: the lowest level that is told from others."""


class Loudness:
    """Which frames of a recording are not plainly quiet, by the levels of all that was heard so far.

    The noise is what a tenth of the frames is below, the speech the median of those with a voice. Levels are
    of the differences of samples, which leaves hum and rumble out, but for `faint_db`.
    """

    def __init__(self) -> None:
        self._frames = np.zeros(1 - QUIETEST, np.int64)  # by level
        self._voiced = self._loud = self._frames
        self._last = np.float32(0)

    def hear(self, samples: Samples, voiced: NDArray[np.bool_]) -> Levels:
        """The levels [F] of the next samples [F * 512], where a voice was heard in frames `voiced` [F]."""
        if not len(samples):
            return np.zeros(0, np.float32)
        frames = _frames(np.diff(samples, prepend=self._last))
        self._last = samples[-1]
        levels = np.nan_to_num(_levels(frames), nan=0.0, posinf=0.0)
        self._frames = self._frames + _counted(levels)
        self._voiced = self._voiced + _counted(levels[voiced])
        whole = _levels(_frames(samples)[voiced])
        self._loud = self._loud + _counted(np.nan_to_num(whole, nan=0.0, posinf=0.0))
        return levels

    def stands_out(self, levels: Levels) -> NDArray[np.bool_]:
        """Which frames are not plainly quiet."""
        limit = _quantile(self._frames, 0.1) + ABOVE_NOISE
        if self._voiced.any():
            limit = max(limit, _quantile(self._voiced, 0.5) - BELOW_SPEECH)
        return levels >= limit

    def faint_db(self, samples: Samples, heard: NDArray[np.bool_] | None = None) -> float | None:
        """How far the loudest half second of samples, or half of fewer, is below the loud frames with a
        voice; of those frames alone that are `heard`. None where there are none. By their whole levels: a
        voice that came through a wall or a telephone has lost its high tones, and is as loud."""
        levels = _levels(_frames(np.pad(samples, (0, -len(samples) % FRAME))))
        levels = levels if heard is None else levels[heard]
        if not len(levels) or not self._loud.any():
            return None
        loudest = np.sort(levels)[-min(HALF_SECOND, -(-len(levels) // 2)) :]
        return max(0.0, _quantile(self._loud, LOUD) - float(loudest[0]))


def level_of(samples: Samples) -> float:
    """The level of samples in dB against full scale."""
    return float(_levels(samples))


def _levels(samples: Samples) -> Levels:
    """The levels of rows of samples."""
    power = np.square(samples, dtype=np.float64).mean(axis=-1)
    return np.asarray(10 * np.log10(power + 10 ** (QUIETEST / 10)), np.float32)


def _counted(levels: Levels) -> NDArray[np.int64]:
    """How many frames have each level, from `QUIETEST` up to 0."""
    places = np.clip(np.rint(levels).astype(np.int64), QUIETEST, 0) - QUIETEST
    return np.bincount(places, minlength=1 - QUIETEST)


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    """The level that this share of frames does not exceed."""
    return int(np.searchsorted(np.cumsum(counts), share * counts.sum())) + QUIETEST


def audible(samples: Samples) -> Samples:
    """Samples [T] with quiet seconds amplified, loud ones unchanged."""
    if not len(samples):
        return samples
    size = LEVEL_FRAMES * FRAME
    starts = np.arange(0, len(samples), size)
    peaks = np.maximum.reduceat(np.abs(samples), starts)
    gains = np.clip(AUDIBLE / np.maximum(peaks, 1e-9), 1.0, MOST_GAIN).astype(np.float32)
    return samples * np.repeat(gains, size)[: len(samples)]


def _frames(samples: Samples) -> NDArray[np.float32]:
    if len(samples) % FRAME:
        raise ValueError(f"{len(samples)} samples are not a whole number of frames of {FRAME}")
    return samples.reshape(-1, FRAME)


def _weights() -> dict[str, Tensor]:
    """The 16 kHz network's tensors by their names in the packaged module."""
    import torch

    package = find_spec("silero_vad")  # does not import it
    path = Path(package.origin).parent / "data" / WEIGHTS if package and package.origin else None
    if path is None or not path.is_file():
        raise ModelError(f"voice activity needs {WEIGHTS} of silero-vad; pip install silero-vad")
    with warnings.catch_warnings():
        # Deprecated in torch 2.14, but the package ships these weights in no other form.
        warnings.simplefilter("ignore", FutureWarning)
        module = torch.jit.load(path, map_location="cpu")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    prefix = "_model."
    return {n.removeprefix(prefix): t.detach().float() for n, t in tensors if n.startswith(prefix)}
