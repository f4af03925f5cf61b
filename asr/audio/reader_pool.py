"""ReaderPool: recordings are decoded and cut into windows ahead of the model, in child processes.

A core decodes and cuts an mp3 at 500 times its length; a model that transcribes faster waits for audio
otherwise. The windows are those that reading in this process gives, and are there as soon as a child has
cut them. Samples wait in unnamed files, 64 kB per second, `spool_bytes` of them at most. What does not fit is
read in this process, block by block: memory and disk are bounded whatever comes. So are short recordings
until the children are loaded, which few of them do not cause.

Knows nothing of models.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from ..errors import AudioError, ForescribeError, visible
from ..formats.transcript_parts import SAMPLE_RATE
from ..segment.cut_plan import plan_of
from ..segment.vad import SileroDetector
from ..segment.windows import WindowSpan
from .containers import DEMUXERS, Pcm, Reader
from .fork_server import Bounds, Cutting
from .inputs import WIDTH, DecodedFile, Input, read_samples
from .opening import open_path
from .reading import Recording, length_of, open_audio
from .sandbox import Decoders

SECOND = SAMPLE_RATE * WIDTH
"""Bytes of samples."""

SPOOL_BYTES = 4 << 30
"""Samples of 18 hours."""

AHEAD = 4
"""Recordings that are begun for each reader: of short ones several are used up while the next is read."""

LONG_S, MANY_S, FILE_S = 1200.0, 300.0, 8.0
"""Loading the children takes as long as reading LONG_S: shorter recordings are read in this process until
that is done. It begins with a longer one, or once MANY_S have come, with FILE_S for opening each file."""

DAY_S = 24 * 3600
MEMORY_BYTES = 4 << 30
"""Limits of a child. They end what hangs or grows without end; a person's own recordings need less."""

NO_ROOM = ("audio_too_long", "storage_full")
"""Where the samples do not fit into the spool, though the header promised it, or not on its disk."""


class ReaderPool(AbstractContextManager["ReaderPool"]):
    """`readers` children at a time; `cutting` None only decodes. To be used from one thread."""

    def __init__(
        self, readers: int, cutting: Cutting | None, *, spool_bytes: int = SPOOL_BYTES
    ) -> None:
        self.readers, self.cutting, self.spool_bytes = readers, cutting, spool_bytes
        self._decoders = Decoders(readers)
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="reader")
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._used = 0  # bytes in the spool, with those that are reserved there
        self._pulled_s = 0.0  # what reading the sources so far costs, in seconds of audio
        self._bounds = Bounds(
            max_s=spool_bytes / SECOND,
            wall_s=DAY_S,
            cpu_s=DAY_S,
            memory_bytes=MEMORY_BYTES,
            demuxers=DEMUXERS,
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the children, and drop what was read ahead."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()
        self._threads.shutdown()
        while self._waiting:
            self._drop(self._waiting.popleft())

    def ahead(self, sources: Iterable[Input]) -> Iterator[Input]:
        """The sources, in order; some that follow are being read already. Each is to be opened by `open`
        before the next is pulled. A source that is still being fetched (where the stream says so, `ready`) is
        waited for only if there is no other."""
        coming = iter(sources)
        while True:
            while len(self._waiting) < self.readers * AHEAD:
                if self._waiting and not getattr(coming, "ready", True):
                    break  # it is still being fetched
                source = next(coming, None)
                if source is None:
                    break
                self._waiting.append(_Waiting(source, self._size(source)))
                self._pulled_s += FILE_S + self._waiting[-1].size / SECOND
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
        with ExitStack() as left:
            left.callback(self._drop, waiting)
            reader = _SpoolReader(waiting, self.cutting)
            return Recording(reader, name=visible(str(waiting.source)), opened=left)

    def _size(self, source: Input) -> int:
        """Bytes to reserve for the samples of a source; 0 for one that is to be read in this process."""
        if not isinstance(source, str | os.PathLike):
            return 0
        length = length_of(os.fspath(source))  # 0 for "-", pipes and what is missing
        size = round(length * SECOND)
        return size if size <= self.spool_bytes else 0

    def _begin(self) -> None:
        """Begin to read what fits into the spool, in order."""
        worth = self._pulled_s >= MANY_S and len(self._waiting) > 1
        shortest = 0 if worth and self._decoders.loaded else LONG_S * SECOND
        for waiting in self._waiting:
            if waiting.decoded is not None or not waiting.size or waiting.size < shortest:
                continue
            with self._lock:
                if self._used + waiting.size > self.spool_bytes:
                    return
                self._used += waiting.size
            waiting.decoded = self._threads.submit(self._decode, waiting)

    def _decode(self, waiting: _Waiting) -> DecodedFile:
        assert isinstance(waiting.source, str | os.PathLike)
        path, name = Path(waiting.source), visible(str(waiting.source))
        try:
            with open_path(path, name) as file:
                return self._decoders.decode(
                    file,
                    self._bounds,
                    name=name,
                    cutting=self.cutting,
                    told=waiting.told,
                    trusted=True,
                )
        finally:
            waiting.windows.put(None)

    def _drop(self, waiting: _Waiting) -> None:
        """Make room in the spool, once no child writes there: it ends with its next window."""
        waiting.dropped = True
        if waiting.decoded is not None:
            waiting.decoded.cancel()
            waiting.decoded.add_done_callback(lambda _: self._dropped(waiting))

    def _dropped(self, waiting: _Waiting) -> None:
        waiting.close()
        with self._lock:
            self._used -= waiting.size


class _SpoolReader(Reader):
    """Of a recording that a child decodes and cuts. What there is no room for is cut here."""

    decoded = True

    def __init__(self, waiting: _Waiting, cutting: Cutting | None) -> None:
        self._waiting, self._cutting = waiting, cutting
        self._spans = list[WindowSpan]()
        self.spans = None if cutting is None else self._spans

    def read(self) -> Iterator[Pcm]:
        waiting, end = self._waiting, 0
        assert waiting.decoded is not None
        for file, span in iter(waiting.windows.get, None):
            self._spans.append(span)
            yield from read_samples(file, end, span.end)
            end = span.end
        try:
            decoded = waiting.decoded.result()
        except ForescribeError as error:
            if error.code not in NO_ROOM:
                raise
        else:
            self.notices = decoded.notices
            yield from read_samples(decoded.file, end, decoded.sample_count)
            return
        if self._cutting is not None:
            with open_audio(waiting.source) as recording:
                vad, options = self._cutting.vad, self._cutting.options
                plan = plan_of(recording.blocks(), SileroDetector(), options, skip_silence=vad)
            self._spans[:] = plan.spans  # those that are known begin them
        with open_audio(waiting.source) as recording:
            at = 0
            for block in recording.blocks():
                yield Pcm(block[max(0, end - at) :, None], SAMPLE_RATE)
                at += len(block)
            self.notices = recording.warnings


@dataclass(eq=False)
class _Waiting:
    """A source that was pulled; `decoded` is None as long as it does not fit into the spool. `windows` are
    those that a child has cut, with the files of their samples; None behind the last one."""

    source: Input
    size: int  # bytes to reserve; 0: not for the spool
    decoded: Future[DecodedFile] | None = None
    windows: SimpleQueue[tuple[BinaryIO, WindowSpan] | None] = field(default_factory=SimpleQueue)
    files: dict[BinaryIO, BinaryIO] = field(default_factory=dict)  # ours, by those of the children
    end: int = 0
    dropped: bool = False

    def told(self, file: BinaryIO, span: WindowSpan) -> None:
        """A window has been cut. A second child, after one that has died, begins again. Raises CancelledError
        where nobody reads it any more."""
        if self.dropped:
            raise CancelledError
        if file not in self.files:
            self.files[file] = os.fdopen(os.dup(file.fileno()), "rb")
        if span.start < self.end:  # of the first child
            return
        if span.start > self.end:
            raise AudioError(f"{visible(str(self.source))}: it was changed while it was read")
        self.end = span.end
        self.windows.put((self.files[file], span))

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        if self.decoded is not None and not self.decoded.cancelled():
            if self.decoded.exception() is None:
                self.decoded.result().close()
