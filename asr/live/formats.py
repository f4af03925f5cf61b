"""Audio as it comes in pieces of bytes: 16-bit PCM at three rates and G.711, to samples at 16 kHz.

G.711 (ITU-T G.711, both laws) has 256 codes, so it is decoded by a table. Does not know items.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Literal

import numpy as np

from ..audio.reading import Resampler
from ..segment.windows import Samples

Kind = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]


class AudioInput:
    """The audio of one stream. `rate` is in Hz."""

    def __init__(self, kind: Kind, rate: int) -> None:
        self.kind, self.rate = kind, rate
        self._resampler = Resampler(rate)
        self._odd = b""  # the first half of a sample
        self._codes = g711(kind) if kind != "audio/pcm" else np.zeros(0, np.float32)

    @property
    def bytes_per_s(self) -> int:
        return self.rate * (2 if self.kind == "audio/pcm" else 1)

    def push(self, data: bytes) -> Samples:
        """The next bytes, as samples at 16 kHz."""
        return self._resampler.push(self._decoded(data))

    def flush(self) -> Samples:
        """What is left of the audio so far."""
        rest, self._resampler = self._resampler.finish(), Resampler(self.rate)
        return rest

    def clear(self) -> None:
        """Forget what is left."""
        self._resampler, self._odd = Resampler(self.rate), b""

    def _decoded(self, data: bytes) -> Samples:
        if self.kind != "audio/pcm":
            return self._codes[np.frombuffer(data, np.uint8)]
        data = self._odd + data
        whole = len(data) - len(data) % 2
        self._odd = data[whole:]
        return np.frombuffer(data, "<i2", whole // 2).astype(np.float32) / 32768.0


@cache
def g711(kind: Kind) -> Samples:
    """The sample of each code of G.711 [256], from -1 to 1."""
    from soundfile import SoundFile

    law, codes = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}[kind], bytes(range(256))
    with SoundFile(BytesIO(codes), "r", 8_000, 1, law, format="RAW") as file:
        return np.asarray(file.read(dtype="float32"))
