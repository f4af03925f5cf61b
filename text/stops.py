"""Stop strings: strings that end a text.

Knows characters only.
"""

from __future__ import annotations

from collections.abc import Sequence

from forescribe.speculative.errors import RequestError


class Stops:
    """Holds back what may be the beginning of a stop string, so that output is never retracted.

    The text ends before the stop string that is complete first; of several that end at the same place,
    the one that begins first. So the cut does not depend on how the text is split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise RequestError("a stop string is empty: it would stop at once")
        self.stops = tuple(stops)
        self.held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is final now, and the stop that ended it, if one did."""
        text = self.held + text
        found = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self.held = ""
            return text[:at], stop
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """Returns what is held back, at the end of the text."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
