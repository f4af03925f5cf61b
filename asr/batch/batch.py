"""Many recordings in one run: what is done already, the order of the rest, and a result for each.

A run is planned before a model is loaded, and loading is the caller's. The longest recordings come first,
so that none is left alone at the end; on stdout, results keep the order given. The files of a recording are
put in place as soon as it ends, its record after them, so a run that was killed continues where it stopped. A
failure affects one recording only. Out of memory (for drafts too) it goes on with half the batch, once.

Recordings at locations are fetched ahead by a `Spool`; one that cannot be fetched fails alone. Results for a
distant store are written in threads while the engine works.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ..audio.inputs import Resumable
from ..audio.reading import BYTES_PER_S, length_of
from ..errors import CapacityError, ForescribeError, out_of_memory
from ..formats.transcript_parts import seconds
from ..storage.locations import Source
from .interrupts import Stop
from .ledger import content_hash, file_version
from .outputs import Outputs, RecordingResult, Writer
from .remote_inputs import described
from .spool import LocalCopy, Spool

if TYPE_CHECKING:
    from ..decode.options import Options
    from ..decode.results import Hook, Outcome, Progress

WRITERS = 8
"""Threads that write results to a distant store."""

WAITING = 64
"""Results that may wait: each holds a transcript in memory."""


FULL = "out of memory with {} windows at a time"


class BatchTranscriber(Protocol):
    """The part of `asr.decode.transcriber.Transcriber` that a run needs. Sources are pulled when
    there is room for them; the result is a generator, so that closing it drops unfinished
    recordings."""

    @property
    def batch(self) -> int:
        """Windows that are decoded at a time."""

    def set_batch(self, size: int) -> None:
        """Decode another number of windows at a time from now on."""

    def transcribe(
        self, sources: Iterable[Any], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]: ...


class Batch:
    """The recordings of one run; made before any model is loaded.

    `todo` are to be transcribed, in this order; `done` are not, because their files hold what the same
    settings gave before, unless `overwrite`. `settings` is the hash of everything that can change a
    file's text. `fail_fast` ends the run at the first failure. `spool` fetches recordings; it is
    needed if any of them is at a location. `elsewhere`: other machines read the recordings, which are neither
    fetched nor hashed here; the transcriber gets their paths, and outcomes hold `content` and `entry`.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        outputs: Outputs,
        *,
        settings: str,
        overwrite: bool = False,
        fail_fast: bool = False,
        spool: Spool | None = None,
        elsewhere: bool = False,
        stop: Stop | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.outputs, self._spool = outputs, spool
        self.fail_fast, self.stop, self.notice = fail_fast, stop or Stop(), notice
        self._overwrite, self._elsewhere = overwrite, elsewhere
        self.writer = Writer(outputs, settings, overwrite)
        remote = any(source.location is not None for source in sources)
        if remote and spool is not None and not overwrite:
            sources = described(
                sources, spool.stores, lambda source: outputs.stands(source, settings) is not None
            )
        self.done, self.todo = list[Source](), list[Source]()
        for source in sources:
            known = not overwrite and self.writer.is_done(source)
            (self.done if known else self.todo).append(source)
        again: dict[str, list[str]] = {}
        for source in () if overwrite else self.todo:
            if (why := self.writer.earlier(source)) is not None:
                again.setdefault(why, []).append(source.path)
        for why, paths in again.items():
            what = paths[0] if len(paths) == 1 else f"{len(paths)} recordings"
            notice(f"{what}: earlier results are not used ({why})")
        if len(self.todo) > 1:
            self.todo = [s if s.error else replace(s, length_s=length_s(s)) for s in self.todo]
            if outputs.where is not None:
                self.todo.sort(key=lambda source: -(source.length_s or 0))
        self._open = {source.path: source for source in self.todo}  # without a result yet
        self._keeps_order = outputs.where is None  # on stdout only the order tells texts apart
        self._turns: deque[str] = deque()  # recordings whose results are to come, in order
        self._early: dict[str, Outcome] = {}  # outcomes whose turn has not come
        self._taken: dict[str, _Taken] = {}  # what the transcriber has
        self._left_out: deque[Callable[[], RecordingResult]] = deque()  # ended without it
        background = outputs.ledger.destination.in_background
        self._writes = _WriteQueue() if background else None
        self._fetching = False
        self._hashes = ThreadPoolExecutor(1, "hash")

    def fetch_ahead(self) -> None:
        """Begin to fetch, before a model is loaded; `run` does it else. Raises OutputError for a spool that
        cannot be written."""
        remote = [s for s in self.todo if s.location is not None and s.error is None]
        if remote and not self._fetching and not self._elsewhere:
            assert self._spool is not None, "recordings at locations are fetched"
            self._spool.order(remote)
            self._fetching = True

    def skipped(self) -> Iterator[RecordingResult]:
        """Results of the recordings that are done. Formats that they lack are written from their JSON."""
        for source in self.done:
            yield self.writer.skipped(source)
        if not self.todo:
            self.outputs.ledger.destination.close()

    def run(
        self,
        transcriber: BatchTranscriber | None,
        options: Options | None = None,
        hook: Hook | None = None,
    ) -> Iterator[RecordingResult]:
        """Transcribe `todo`; yields results as recordings end. Without a readable recording no
        transcriber is needed.

        Every recording of `todo` gets a result: succeeded, failed, or cancelled with `fail_fast` and
        after an interruption. Raises KeyboardInterrupt after the last result if it was interrupted, and
        what `transcribe` raises for a request that cannot be served.
        """
        self.outputs.ledger.destination.sweep(self.outputs.stems.values())
        size = transcriber.batch if transcriber is not None else 0
        may_halve, smaller = size > 1, False
        try:
            self.fetch_ahead()
            for source in self.todo:
                if source.error is not None:
                    yield from self._until_failure([self._failed(source, source.error)])
            # Several calls, if the next recording can be fetched only after those in work have ended, and one
            # more attempt if memory runs out.
            while self._open:
                assert transcriber is not None
                before = len(self._open)
                self._turns, self._early = deque(self._open), {}
                outcomes: Iterator[Outcome] | None = None
                sources = _Sources(self, deque(self._open.values()))
                try:
                    with self.stop.interruptible():
                        if smaller:
                            transcriber.set_batch(size)
                        self._taken, smaller = {}, False
                        watched = partial(self._watch, hook) if may_halve else hook
                        outcomes = transcriber.transcribe(sources, options, watched)
                    more = True
                    while more:
                        with self.stop.interruptible():
                            outcome = next(outcomes, None)
                        yield from self._until_failure(self._ended(outcome))
                        more = outcome is not None
                    assert len(self._open) < before, "recordings were left without outcomes"
                    continue  # with those that there was no room for
                except Exception as error:
                    if not out_of_memory(error):
                        raise
                finally:
                    if isinstance(outcomes, Generator):
                        outcomes.close()
                yield from self._until_failure(self._ended(None))
                if not self._open:
                    break
                gc.collect()  # the frames of the failed call hold its tensors
                smaller, may_halve, stuck = may_halve, False, len(self._open) == before
                yield from self._until_failure(self._lost(size, halved=smaller, stuck=stuck))
                if smaller:
                    self.notice(f"{FULL.format(size)}: going on with {size // 2}")
                    size //= 2
            if self._writes is not None:
                yield from self._until_failure(self._writes.rest())
        except _EnoughError:  # unfinished recordings have been dropped
            yield from self._cancel()
        except KeyboardInterrupt:
            yield from self._cancel()
            raise
        finally:
            if self._spool is not None:
                self._spool.close()
            if self._writes is not None:
                self._writes.close()
            self._hashes.shutdown(cancel_futures=True)
            self.outputs.ledger.destination.close()

    def _until_failure(self, results: Iterable[RecordingResult]) -> Iterator[RecordingResult]:
        """The results; with `fail_fast` up to the first failure, which raises then."""
        for result in results:
            yield result
            if self.fail_fast and result.error is not None:
                raise _EnoughError

    def _ended(self, outcome: Outcome | None) -> Iterator[RecordingResult]:
        """Results of the recordings that need no decoding, and of an outcome; None: of the former alone.
        Raises what ran out of memory."""
        while self._left_out:
            result = self._left_out.popleft()()
            self._close(result.record.path)
            self._turns.remove(result.record.path)
            yield result
        if outcome is not None:
            cause = outcome.error.__cause__ if outcome.error is not None else None
            reading = outcome.error is not None and outcome.error.code == "invalid_audio"
            if cause is not None and not reading and out_of_memory(cause):
                raise cause  # the batch is too large; where reading runs out, it is the recording
            self._early[outcome.name] = outcome
        while self._early:
            name = self._turns[0] if self._keeps_order else next(iter(self._early))
            if name not in self._early:
                break
            hashed = self._taken[name].hashed
            if outcome is not None and hashed is not None and not hashed.done():
                break  # the engine does not wait for it
            self._turns.remove(name)
            yield from self._finish(self._early.pop(name))

    def _take(self, source: Source) -> str | Resumable | LocalCopy | None:
        """What the transcriber is to read for a recording; None if there is no room for it yet, or nothing to
        do, which `_left_out` tells."""
        if self._elsewhere or source.location is None:
            version = None if self._elsewhere else file_version(source.path)
            hashed = None if version is None else self._hashes.submit(content_hash, source.path)
            file = None if version is None else self._resumable(source.path, version)
            self._taken[source.path] = _Taken(source, version=version, hashed=hashed, file=file)
            return file or source.path
        assert self._spool is not None, "recordings at locations are fetched"
        try:
            copy = self._spool.take(source)
        except ForescribeError as error:
            self._left_out.append(partial(self.writer.failed, source, error))
            return None
        if copy is None:
            return None
        if source.entry is None:
            self._open[source.path] = source = replace(source, entry=copy.entry)
        if not self._overwrite and self.writer.is_unchanged(source, copy.content):
            self._left_out.append(partial(self.writer.confirmed, source))
            return None
        self._taken[source.path] = _Taken(source, content=copy.content, version=source.version)
        return copy

    def _resumable(self, path: str, version: str) -> Resumable | None:
        """A recording of which an interrupted run keeps what it has decoded; None where results go to no
        folder."""
        if (folder := self.outputs.folder) is None:
            return None
        digest = hashlib.sha256(os.fsencode(self.outputs.ledger.key(path))).hexdigest()[:16]
        kept = folder / f".forescribe-{digest}.windows"
        file = Resumable(path, kept, f"{version}+{self.writer.settings}")
        if self._overwrite:
            with suppress(OSError):
                kept.unlink()
        if windows := file.windows():
            done_s = seconds(sum(window["samples"] for window in windows))
            self.notice(f"{path}: goes on, as {done_s:.0f} s of it are decoded")
        return file

    def _lost(self, size: int, *, halved: bool, stuck: bool) -> Iterator[RecordingResult]:
        """Results of the recordings that fail for lack of memory. With half the batch, pipes: they cannot be
        read again. Else those that were being decoded, or all if none has ended, as then none will."""
        lost = list(self._open if stuck else self._taken)
        if halved and not self._elsewhere:
            lost = [path for path, one in self._taken.items() if one.is_pipe]
        advice = "try a smaller --batch-size or --dtype float16"
        for path in lost:
            error = CapacityError(f"{path}: {FULL.format(size)}; {advice}")
            yield self._failed(self._open[path], error)

    def _finish(self, outcome: Outcome) -> Iterator[RecordingResult]:
        """Write the result of an outcome; yields the results that are written by now."""
        taken = self._taken[outcome.name]
        source, content, version = taken.source, taken.content, taken.version
        if self._elsewhere:
            content = outcome.content
            if source.location is not None and source.entry is None and outcome.entry is not None:
                source = replace(source, entry=outcome.entry)
            version = source.version
        elif taken.hashed is not None and version == file_version(source.path):
            content = taken.hashed.result()  # unknown of one that has changed: it is done again
        self._close(source.path)
        write = partial(self.writer.finished, source, outcome, content, version)
        if self._writes is None:
            result = write()
            if taken.file is not None and result.error is None:
                with suppress(OSError):
                    taken.file.kept.unlink()
            yield result
        else:
            yield from self._writes.add(write)

    def _watch(self, hook: Hook | None, progress: Progress) -> None:
        """The hook of a call, which ends where memory runs out for drafts: what follows would have none
        either, and half the batch writes the same words sooner. Where a pipe is being decoded it goes on
        without drafts."""
        error, pipes = progress.draft_error, any(one.is_pipe for one in self._taken.values())
        if error is not None and out_of_memory(error) and not pipes:
            raise error
        if hook is not None:
            hook(progress)

    def _failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        """Write the record of a recording that has no outcome."""
        self._close(source.path)
        return self.writer.failed(source, error)

    def _close(self, path: str) -> None:
        """A recording has its outcome, and its copy is not needed any more."""
        self._taken.pop(path, None)
        if self._spool is not None:
            self._spool.release(path)
        del self._open[path]

    def _cancel(self) -> Iterator[RecordingResult]:
        """Results of what is being written, and of what is not transcribed in this run."""
        yield from self._ended(None)
        if self._writes is not None:
            yield from self._writes.rest()
        results = self.writer.cancelled(list(self._open.values()))
        self._open.clear()
        yield from results


class _EnoughError(Exception):
    """A recording has failed, which ends the run."""


@dataclass(frozen=True)
class _Taken:
    """A recording that the transcriber has. `version` is that before it was read."""

    source: Source
    content: str | None = None
    version: str | None = None
    hashed: Future[str | None] | None = None  # of a file, in a thread beside the engine's
    file: Resumable | None = None

    @property
    def is_pipe(self) -> bool:
        """Whether it cannot be read again."""
        return self.content is None and self.version is None


@dataclass(eq=False)
class _Sources(Iterator[Any]):
    """The open recordings of a batch, as the transcriber pulls them. Ends early if there is no room for the
    next one. A reader that collects recordings ahead need not wait for one that is still being fetched, which
    is not `ready`."""

    batch: Batch
    coming: deque[Source]

    @property
    def ready(self) -> bool:
        spool = self.batch._spool
        return spool is None or not self.coming or spool.is_ready(self.coming[0])

    def __next__(self) -> str | Resumable | LocalCopy:
        while self.coming:
            before = len(self.batch._left_out)
            given = self.batch._take(self.coming.popleft())
            if given is not None:
                return given
            if len(self.batch._left_out) == before:  # no room
                self.coming.clear()
        raise StopIteration


class _WriteQueue:
    """Calls in threads, and their results in the order in which they were added. If many wait, adding one
    waits for the first."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WRITERS, "write")
        self._written: deque[Future[RecordingResult]] = deque()

    def add(self, write: Callable[[], RecordingResult]) -> Iterator[RecordingResult]:
        """Call `write` in a thread; yields what is written by now."""
        self._written.append(self._pool.submit(write))
        while self._written and (self._written[0].done() or len(self._written) > WAITING):
            yield self._written.popleft().result()

    def rest(self) -> Iterator[RecordingResult]:
        """Wait for everything that was added."""
        while self._written:
            yield self._written.popleft().result()

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown()


def length_s(source: Source) -> float:
    """The duration in seconds: from the list of inputs, or `length_of` its file; estimated from the size of a
    recording that is to be fetched."""
    if source.length_s is not None:
        return source.length_s
    if source.location is not None:
        return source.entry.size / BYTES_PER_S if source.entry is not None else 0.0
    return length_of(source.path)
