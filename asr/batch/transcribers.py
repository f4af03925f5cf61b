"""The transcribers of a run: one, and another with a smaller batch if memory runs out.

    make = TranscriberFactory(lambda size: Transcriber.load("tiny.en", batch=size))
    make(8).transcribe(...)
    make(4).transcribe(...)      # the same weights; the first transcriber's slots are freed

Knows nothing of files or of why a batch is too large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forescribe.speculative.stats import Stats

    from ..decode.transcriber import Transcriber


class TranscriberFactory:
    """Makes transcribers by batch size, one at a time: making another ends the one before. `load` is
    called once, for the first."""

    def __init__(self, load: Callable[[int], Transcriber]) -> None:
        self.load = load
        self.current: Transcriber | None = None
        self.earlier: list[Stats] = []

    def __call__(self, size: int) -> Transcriber:
        self.current = self.load(size) if self.current is None else self._resized(size)
        return self.current

    def stats(self) -> Stats | None:
        """The sum over all transcribers; None before the first."""
        if self.current is None:
            return None
        return sum(self.earlier, start=self.current.stats())

    def _resized(self, size: int) -> Transcriber:
        import torch

        old, self.current = self.current, None  # its slots must be freed before new ones are made
        assert old is not None
        self.earlier.append(old.stats())
        kind, whisper, gamma, detector = type(old), old.whisper, old.gamma, old.detector
        del old
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return kind(whisper, batch=size, gamma=gamma, detector=detector)
