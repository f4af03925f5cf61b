"""ReaderPool: recordings are decoded and cut into windows ahead of the model, in child processes.

    with ReaderPool(4, Cutting()) as pool:
        for source in pool.ahead(paths):
            with pool.open(source) as recording: ...

A core decodes and cuts an mp3 at 350 times its length; a model that transcribes faster waits for audio
otherwise. The windows are those that reading in this process gives. Samples wait in unnamed files, 64 kB
per second, `spool_bytes` of them at most. What does not fit, and what no child has begun when its turn
comes, is read in this process, block by block: memory and disk are bounded whatever comes, and the first
recording is not waited for.

Knows nothing of models.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..errors import ForescribeError, visible
from ..formats.transcript_parts import SAMPLE_RATE
from .containers import DEMUXERS
from .fork_server import Bounds, Cutting
from .inputs import WIDTH, DecodedFile, Input
from .opening import open_path
from .reading import Recording, length_of, open_audio
from .sandbox import Decoders

SPOOL_BYTES = 4 << 30
"""Samples of 18 hours."""

AHEAD = 4
"""Recordings that are begun for each reader: of short ones several are used up while the next is read."""

DAY_S = 24 * 3600
MEMORY_BYTES = 4 << 30
"""Limits of a child. They end what hangs or grows without end; a person's own recordings need less."""

NO_ROOM = ("audio_too_long", "storage_full")
"""Where the samples do not fit into the spool, though the header promised it, or not on its disk."""


class ReaderPool:
    """`readers` children at a time; `cutting` None only decodes. `folder` is that of the samples, None: where
    temporary files go. To be used from one thread."""

    def __init__(
        self,
        readers: int,
        cutting: Cutting | None,
        *,
        spool_bytes: int = SPOOL_BYTES,
        folder: Path | None = None,
    ) -> None:
        if readers < 1:
            raise ValueError(f"readers is {readers}; it must be 1 or more")
        self.readers, self.cutting, self.spool_bytes = readers, cutting, spool_bytes
        self._decoders = Decoders(readers, folder)
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="reader")
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._used = 0
        self._bounds = Bounds(
            max_s=spool_bytes / (SAMPLE_RATE * WIDTH),
            wall_s=DAY_S,
            cpu_s=DAY_S,
            memory_bytes=MEMORY_BYTES,
            demuxers=DEMUXERS,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the children, and drop what was read ahead."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()
        self._threads.shutdown()
        while self._waiting:
            self._drop(self._waiting.popleft())

    @property
    def used_bytes(self) -> int:
        """Bytes of samples in the spool, with what is reserved for recordings that are being read."""
        return self._used

    def ahead(self, sources: Iterable[Input]) -> Iterator[Input]:
        """The sources, in order; some that follow are being read already. Each is to be opened by `open`
        before the next is pulled. A source that is still being fetched (where the stream says so, `ready`) is
        waited for only if there is no other."""
        coming = iter(sources)
        first = next(coming, None)
        if first is not None:
            self._waiting.append(_Waiting(first, 0))
        while True:
            while len(self._waiting) < self.readers * AHEAD:
                if self._waiting and not getattr(coming, "ready", True):
                    break  # it is still being fetched
                source = next(coming, None)
                if source is None:
                    break
                self._waiting.append(_Waiting(source, self._size(source)))
            self._begin()
            if not self._waiting:
                return
            given = self._waiting[0]
            yield given.source
            if self._waiting and self._waiting[0] is given:  # the caller did not open it
                self._drop(self._waiting.popleft())

    def open(self, source: Input) -> Recording:
        """The recording of a source of `ahead`; any other one is opened here. Raises what `open_audio` and
        `Decoders.decode` raise."""
        if not self._waiting or self._waiting[0].source is not source:
            return open_audio(source)
        waiting = self._waiting.popleft()
        if waiting.decoded is None:
            return open_audio(source)
        if waiting.decoded.cancel():  # the children have others
            self._release(waiting.size)
            return open_audio(source)
        try:
            decoded = waiting.decoded.result()
        except BaseException as error:
            self._release(waiting.size)
            if isinstance(error, ForescribeError) and error.code in NO_ROOM:
                return open_audio(source)
            raise
        return _Spooled(decoded, self, waiting.size)

    def _size(self, source: Input) -> int:
        """Bytes to reserve for the samples of a source; 0 for one that is to be read in this process."""
        if not isinstance(source, str | os.PathLike):
            return 0
        length = length_of(os.fspath(source))  # 0 for "-", pipes and what is missing
        size = round(length * SAMPLE_RATE * WIDTH)
        return size if size <= self.spool_bytes else 0

    def _begin(self) -> None:
        """Begin to read what fits into the spool, in order."""
        for waiting in self._waiting:
            if waiting.decoded is not None or not waiting.size:
                continue
            with self._lock:
                if self._used + waiting.size > self.spool_bytes:
                    return
                self._used += waiting.size
            waiting.decoded = self._threads.submit(self._decode, waiting.source)

    def _decode(self, source: Input) -> DecodedFile:
        assert isinstance(source, str | os.PathLike)
        path, name = Path(source), visible(str(source))
        with open_path(path, name) as file:
            return self._decoders.decode(file, self._bounds, name=name, cutting=self.cutting)

    def _drop(self, waiting: _Waiting) -> None:
        if waiting.decoded is None:
            return
        self._release(waiting.size)
        if not waiting.decoded.cancel() and waiting.decoded.exception() is None:
            waiting.decoded.result().close()

    def _release(self, size: int) -> None:
        with self._lock:
            self._used -= size


class _Spooled(Recording):
    """A recording in the spool, which it leaves when it is closed."""

    def __init__(self, decoded: DecodedFile, pool: ReaderPool, size: int) -> None:
        self._held: tuple[DecodedFile, ReaderPool, int] | None = (decoded, pool, size)
        try:
            super().__init__(decoded.reader(), name=decoded.name)
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        if self._held is not None:
            (decoded, pool, size), self._held = self._held, None
            decoded.close()
            pool._release(size)


@dataclass(eq=False)
class _Waiting:
    """A source that was pulled; `decoded` is None as long as it does not fit into the spool."""

    source: Input
    size: int  # bytes to reserve; 0: not for the spool
    decoded: Future[DecodedFile] | None = None
