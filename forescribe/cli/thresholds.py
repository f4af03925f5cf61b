"""Guards from what is typed: numbers, the word None, steps of a temperature.

Guards are on unless somebody says no. Knows options by name, nothing of parsing a command line.
"""

from __future__ import annotations

import math
from typing import Any

from forescribe.asr.decode.guards import Guards
from forescribe.asr.errors import UsageError


def guards(on: bool, *, increment: str | None, **thresholds: str | None) -> Guards | None:
    """Guards with these thresholds; None where they are off. Raises UsageError.

    `thresholds` are `compression_ratio`, `logprob` and `no_speech`, None where not given.
    """
    given: dict[str, Any] = {
        name: _number(f"--{name.replace('_', '-')}-threshold", text)
        for name, text in thresholds.items()
        if text is not None
    }
    if increment is not None:
        given["temperatures"] = _temperatures(increment)
    if given and not on:
        raise UsageError("--no-guards and a guard's threshold contradict each other")
    return Guards(**given) if on else None


def _number(option: str, text: str) -> float | None:
    """A number; None for the word, which switches a guard off."""
    if text.lower() == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{option} {text} is neither a number nor None")
    return number


def _temperatures(text: str) -> tuple[float, ...]:
    """0 to 1 in steps, as openai/whisper has them."""
    step = _number("--temperature-increment-on-fallback", text)
    if step is None:
        return (0.0,)
    if step < 0.01:
        raise UsageError(
            f"--temperature-increment-on-fallback {text}: take 0.01 or more, or None for one try"
        )
    return tuple(round(n * step, 6) for n in range(int((1 + 1e-6) / step) + 1))


__all__ = ["guards"]
