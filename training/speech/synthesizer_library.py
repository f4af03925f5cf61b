"""The output of a synthesiser library: speech with word times.

Only the libraries give word times; the programs write samples alone.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples [N] int16 at `rate`, and start and end in seconds of each word of the text (without
    punctuation); None where two words are joined."""

    samples: np.ndarray
    rate: int
    starts: list[float | None]
    ends: list[float | None]


def library(name: str, package: str) -> ctypes.CDLL:
    """Load a library. Raises OSError with the name of the Debian package if it is not installed."""
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise OSError(f"{name} is missing: install the Debian package {package}") from error
