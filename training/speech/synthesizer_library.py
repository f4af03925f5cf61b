"""What a synthesiser's library gives: speech with the times of its words. Only the libraries tell when
a word begins and ends; the programs write samples alone.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples [N] int16 at `rate`, and for each word of the text (what stands between spaces, unless it
    is only signs) where it starts and ends, in seconds; None where two words were drawn together."""

    samples: np.ndarray
    rate: int
    starts: list[float | None]
    ends: list[float | None]


def library(name: str, package: str) -> ctypes.CDLL:
    """Raises OSError, which names the Debian package, where it is not installed."""
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise OSError(f"{name} is missing: install the Debian package {package}") from error
