"""The transcribers of a run: one, and another of a smaller batch when memory ran out.

    make = Maker(lambda size: Transcriber.load("demo", batch=size))
    make(8).transcribe(...)
    make(4).transcribe(...)      # the same weights; the first one's rows are gone

Knows nothing of files or of why a batch is too large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forescribe.speculative.engine.stats import Stats

    from ..decode.transcriber import Transcriber


class Maker:
    """Transcribers by batch size, one at a time: asking for another ends the one before. `load` is
    called once, for the first."""

    def __init__(self, load: Callable[[int], Transcriber]) -> None:
        self.load = load
        self.last: Transcriber | None = None
        self.earlier: list[Stats] = []

    def __call__(self, size: int) -> Transcriber:
        self.last = self.load(size) if self.last is None else self._resized(size)
        return self.last

    def stats(self) -> Stats | None:
        """Of all of them; None before there is one."""
        if self.last is None:
            return None
        return sum(self.earlier, start=self.last.stats())

    def _resized(self, size: int) -> Transcriber:
        import torch

        made, self.last = self.last, None  # its rows must go before new ones come
        assert made is not None
        self.earlier.append(made.stats())
        kind, whisper, gamma, detector = type(made), made.whisper, made.gamma, made.detector
        del made
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return kind(whisper, batch=size, gamma=gamma, detector=detector)
