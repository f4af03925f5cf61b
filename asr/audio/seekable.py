"""A whole recording on disk, with Whisper's features at any position.

Sequential decoding reads some audio twice, and Whisper scales its features by the loudest sound of the
whole recording. So the samples go to a temporary file first: 230 MB per hour on disk, one window in
memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .features import LogMel
from .reading import Samples


class SeekableAudio:
    """The samples of a recording, [N] at 16 kHz, and its features.

    Frames are counted from 0, 0.01 s each. A recording shorter than a window is padded with zeros to
    a full window, as Whisper's extractor does. `others` make further features of the same frames, for models
    that read those. Close it after use.
    """

    def __init__(self, blocks: Iterable[Samples], mel: LogMel, *others: LogMel) -> None:
        self.mel, self._mels = mel, (mel, *others)
        self._file = tempfile.TemporaryFile()
        try:
            self.sample_count = 0
            for block in blocks:
                self._file.write(np.ascontiguousarray(block, np.float32).tobytes())
                self.sample_count += len(block)
            self._file.flush()
            self._loudest = [self._measure(mel) for mel in self._mels]
        except BaseException:
            self._file.close()
            raise

    @property
    def frames(self) -> int:
        """Whole frames of the recording itself, at least 1."""
        return max(1, self.sample_count // self.mel.hop)

    def features(self, frame: int) -> Tensor:
        """Features [M, F] of the window that starts at `frame`; zeros after the end of the recording."""
        return self._features(frame, 0)

    def all_features(self, frame: int) -> tuple[Tensor, ...]:
        """Those of `mel`, then of all others."""
        return tuple(self._features(frame, index) for index in range(len(self._mels)))

    def _features(self, frame: int, index: int) -> Tensor:
        power = self._log(self._mels[index], frame, min(self.mel.frames, self._total - frame))
        scaled = self.mel.scaled(power, self._loudest[index])
        return torch.nn.functional.pad(scaled, (0, self.mel.frames - scaled.shape[1]))

    def close(self) -> None:
        self._file.close()

    @property
    def _length(self) -> int:
        """Samples, with the padding of a short recording."""
        return max(self.sample_count, self.mel.samples)

    @property
    def _total(self) -> int:
        return self._length // self.mel.hop

    def _measure(self, mel: LogMel) -> float:
        """The largest log mel power, computed window by window."""
        step = self.mel.frames
        return max(
            float(self._log(mel, frame, min(step, self._total - frame)).max())
            for frame in range(0, self._total, step)
        )

    def _log(self, mel: LogMel, frame: int, count: int) -> Tensor:
        """[M, count] log10 mel power. Frame t starts at sample t * hop - n_fft / 2."""
        hop, size = mel.hop, mel.n_fft
        begin = frame * hop - size // 2
        return mel.frames_of(self._read(begin, begin + (count - 1) * hop + size))

    def _read(self, begin: int, end: int) -> NDArray[np.float32]:
        """Samples begin..end; the recording is mirrored at both ends, as in a centred STFT."""
        before, after = max(0, -begin), max(0, end - self._length)
        inside = self._stored(begin + before, end - after)
        left = self._stored(1, before + 1)[::-1]
        right = self._stored(self._length - 1 - after, self._length - 1)[::-1]
        return np.concatenate([left, inside, right])

    def _stored(self, begin: int, end: int) -> NDArray[np.float32]:
        """Samples begin..end from the file, with zeros after its end."""
        count = max(0, min(end, self.sample_count) - begin)
        self._file.seek(4 * begin)
        stored = np.frombuffer(self._file.read(4 * count), np.float32)
        return np.pad(stored, (0, end - begin - len(stored)))
