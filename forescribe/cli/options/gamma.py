"""The value of `--gamma`: a number of drafted tokens, or auto.

Knows the syntax and the largest number; nothing of schedules.
"""

from __future__ import annotations

from forescribe.asr.errors import UsageError

AUTO = "auto"
MAX_GAMMA = 64


def parse_gamma(text: str) -> int | None:
    """Return the number of drafted tokens, None for auto. Raises UsageError."""
    if text.lower() == AUTO:
        return None
    if not text.isdecimal() or int(text) > MAX_GAMMA:
        raise UsageError(f"--gamma {text} is neither auto nor a number from 0 to {MAX_GAMMA}")
    return int(text)
