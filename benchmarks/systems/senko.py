"""senko (https://github.com/narcotic-sh/senko): the same two networks as our engine, clustered otherwise.

Needs the package `senko` (0.2), which is no dependency. On a CPU its voice activity is silero's.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from forescribe.diarize.diarizer import (
    Bounds,
    Diarization,
    Engine,
    SimilarityThresholds,
    StageHook,
    ignore_progress,
)
from forescribe.diarize.turns import Turns

RATE = 16_000


class Senko:
    """Its merged segments as turns, which do not overlap. It takes no number of speakers, and its vectors are
    not compared with ours."""

    def __init__(self) -> None:
        senko = import_module("senko")

        self._engine: Any = senko.Diarizer(device="cpu", vad="silero", warmup=False, quiet=True)

    @property
    def engine(self) -> Engine:
        return Engine("senko", None, SimilarityThresholds(1, 1), {"senko": version("senko")})

    def diarize(
        self,
        samples: NDArray[np.float32],
        bounds: Bounds | None = None,
        hook: StageHook = ignore_progress,
    ) -> Diarization:
        """Raises ValueError for bounds, which it does not have."""
        if bounds is not None and bounds != Bounds():
            raise ValueError("senko takes no number of speakers")
        with TemporaryDirectory() as folder:
            path = Path(folder) / "recording.wav"
            soundfile.write(path, samples, RATE, subtype="PCM_16")
            found = self._engine.diarize(str(path), generate_colors=False)
        spans = [] if found is None else found["merged_segments"]
        turns = Turns.of(
            (round(s["start"] * RATE), min(len(samples), round(s["end"] * RATE)), s["speaker"])
            for s in spans
            if s["end"] > s["start"]
        )
        return Diarization.of(turns, turns, (), len(samples), self.engine)
