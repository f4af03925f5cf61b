"""Guards from the command line: numbers, the word None, temperature steps.

Knows the options by name; nothing of parsing a command line or of how windows are decoded again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import UsageError

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Guards


def guards(enabled: bool, *, increment: str | None, **thresholds: str | None) -> Guards | None:
    """Make guards with these thresholds; None if they are off. Raises UsageError.

    `thresholds` are `compression_ratio`, `logprob` and `no_speech`, None where not given.
    """
    from forescribe.asr.decode.options import Guards

    given: dict[str, Any] = {
        name: _number(f"--{name.replace('_', '-')}-threshold", text)
        for name, text in thresholds.items()
        if text is not None
    }
    if increment is not None:
        given["temperatures"] = _temperatures(increment)
    if given and not enabled:
        raise UsageError("--no-guards and a guard's threshold contradict each other")
    return Guards(**given) if enabled else None


def _number(option: str, text: str) -> float | None:
    """A number, or None for the word None, which turns a guard off."""
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
    """From 0 to 1 in steps, as in openai/whisper."""
    step = _number("--temperature-increment-on-fallback", text)
    if step is None:
        return (0.0,)
    if step < 0.01:
        raise UsageError(
            f"--temperature-increment-on-fallback {text}: give 0.01 or more, or None for one attempt"
        )
    return tuple(round(n * step, 6) for n in range(int((1 + 1e-6) / step) + 1))


__all__ = ["guards"]
