"""A detector of speech that needs no weights."""

from __future__ import annotations

import numpy as np

from forescribe.asr.segment.vad import FRAME, Probabilities, Samples


class EnergyDetector:
    """Detects speech by level: from 0 at -50 dB to 1 at -30 dB. Noise counts as speech."""

    def stream(self) -> EnergyDetector:
        return self

    def probabilities(self, samples: Samples) -> Probabilities:
        power = np.square(samples.reshape(-1, FRAME), dtype=np.float64).mean(axis=-1)
        level_db = 10 * np.log10(power + 1e-12)
        return np.asarray(np.clip((level_db + 50) / 20, 0, 1), np.float32)
