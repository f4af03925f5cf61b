"""ReadingTranscriber: a transcriber whose recordings are read ahead in other processes.

    transcriber = reading_ahead(transcriber, None, recordings=len(paths), on_cpu=False)

Knows neither models nor formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from ..audio.reading import Open
    from ..decode.options import Options
    from ..decode.outcome import Hook, Outcome
    from .batch import BatchTranscriber


MOST_READERS = 8
"""Readers by default, at most: at 350 times for each, eight read mp3 faster than a model transcribes."""

OTHER_CORES = 2
"""Cores that readers leave to the model's own thread and to the rest of the process."""


class OpeningTranscriber(Protocol):
    """A transcriber that takes a function to open recordings with."""

    def transcribe(
        self,
        sources: Iterable[Any],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = ...,
    ) -> Iterator[Outcome]: ...


class ReadingTranscriber:
    """`readers` processes decode recordings and cut them into windows. The transcripts are the same."""

    def __init__(self, transcriber: OpeningTranscriber, readers: int) -> None:
        self.transcriber, self.readers = transcriber, readers

    def transcribe(
        self, sources: Iterable[Any], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """As of the transcriber. The processes end with the result."""
        from ..audio.fork_server import Cutting
        from ..audio.reader_pool import ReaderPool
        from ..decode.options import Options

        chosen = options or Options()
        cutting = None
        if chosen.long_form != "sequential":
            cutting = Cutting(chosen.vad, chosen.windows)
        with ReaderPool(self.readers, cutting) as pool:
            yield from self.transcriber.transcribe(
                pool.ahead(sources), options, hook, open=pool.open
            )


def reading_ahead(
    transcriber: BatchTranscriber, readers: int | None, *, recordings: int, on_cpu: bool
) -> BatchTranscriber:
    """The transcriber with `readers` processes; unchanged for 0. None chooses: none on a CPU, whose cores the
    model uses, and none for a single recording, which is read as it is transcribed."""
    if readers is None:
        spare = len(os.sched_getaffinity(0)) - OTHER_CORES
        readers = 0 if on_cpu or recordings < 2 else max(1, min(MOST_READERS, spare))
    if readers == 0:
        return transcriber
    return ReadingTranscriber(cast(OpeningTranscriber, transcriber), readers)
