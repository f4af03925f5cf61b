"""Many recordings in one run: what is done already, the order of the rest, and a result for each.

    batch = Batch(sources, outputs, settings=fingerprint.settings({...}))
    make = TranscriberFactory(lambda size: Transcriber.load("tiny.en", batch=size))
    for result in batch.run(make, options, size=8):
        print(result.record.path, result.record.status)

The longest recordings come first, so that none is left alone at the end; on stdout, results keep
the order given. The files of a recording are put in place as soon as it ends, its record after
them, so a run that was killed continues where it stopped. A failure affects one recording only. Out
of memory, the run continues with half the batch, once: with another transcriber on the same weights.

Recordings at locations are fetched ahead by a `Spool`; one that cannot be fetched fails alone. Results for a
distant store are written in threads while the engine works. Knows nothing of models: a transcriber is
anything with `transcribe(sources, options, hook)`.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..audio.reading import length_s
from ..errors import CapacityError, ForescribeError, out_of_memory
from ..records.sources import Source
from ..storage.locations import Location
from . import fingerprint
from .interrupts import Stop
from .outputs import Outputs
from .results import RecordingResult, Writer, Written
from .spool import Fetching, LocalCopy, Spool

if TYPE_CHECKING:
    from forescribe.speculative.stats import Stats

    from ..decode.options import Hook, Options, Outcome
    from ..decode.transcriber import Transcriber

WRITERS = 8
"""Threads that write results to a distant store."""

WAITING = 64
"""Results that may wait: each holds a transcript in memory."""


class BatchTranscriber(Protocol):
    """The part of `asr.decode.transcriber.Transcriber` that a run needs. Sources are pulled when
    there is room for them; the result is a generator, so that closing it drops unfinished
    recordings."""

    def transcribe(
        self, sources: Iterable[Any], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]: ...


MakeTranscriber = Callable[[int], BatchTranscriber]
"""Makes a transcriber for a batch size; called again with half of it after running out of memory."""


class Batch:
    """The recordings of one run; made before any model is loaded.

    `todo` are to be transcribed, in this order; `done` are not, because their files hold what the same
    settings gave before, unless `overwrite`. `settings` is the hash of everything that can change a
    file's text. `fail_fast` ends the run at the first failure. `fetching` fetches recordings; it is
    needed if any of them is at a location.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        outputs: Outputs,
        *,
        settings: str,
        overwrite: bool = False,
        fail_fast: bool = False,
        fetching: Fetching | None = None,
        stop: Stop | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.outputs, self.settings, self.fetching = outputs, settings, fetching
        self.fail_fast, self.stop, self.notice = fail_fast, stop or Stop(), notice
        self._overwrite = overwrite
        self._writer = Writer(outputs, settings)
        if fetching is not None and not overwrite:
            sources = fetching.with_versions(sources, self._writer.is_known)
        self.done = [] if overwrite else [s for s in sources if self._writer.is_done(s)]
        done = {source.path for source in self.done}
        rest = [source for source in sources if source.path not in done]
        self.todo = _longest_first(rest, sort=not outputs.keeps_order)
        self._open = {source.path: source for source in self.todo}  # without a result yet
        self._pulled: dict[str, str | None] = {}  # content hashes of what the transcriber has taken
        self._settled: deque[Callable[[], RecordingResult]] = deque()  # without a transcriber
        self._writes = _WriteQueue() if self._writer.in_background else None
        self._spool: Spool | None = None
        self._coming: deque[Source] = deque()  # not pulled yet
        self._elsewhere = False

    def run(
        self,
        make: MakeTranscriber,
        options: Options | None = None,
        *,
        size: int,
        hook: Hook | None = None,
        elsewhere: bool = False,
    ) -> Iterator[RecordingResult]:
        """Transcribe `todo` with `size` windows at a time; yields results as recordings end.

        `elsewhere`: other machines read the recordings. They are neither fetched nor hashed here; the
        transcriber gets their paths, and outcomes hold `content` and `entry`.

        Every recording of `todo` gets a result: succeeded, failed, or cancelled with `fail_fast` and
        after an interruption. Raises KeyboardInterrupt after the last result if it was interrupted, and
        what `make` and `transcribe` raise for a request that cannot be served.
        """
        self.outputs.sweep()
        try:
            self._elsewhere = elsewhere
            if not elsewhere:
                self.fetch_ahead()
            for result in (results := self._results(make, options, size, hook)):
                yield result
                if self.fail_fast and result.error is not None:
                    results.close()  # drops unfinished recordings
                    yield from self._cancel()
                    return
        except KeyboardInterrupt:
            yield from self._cancel()
            raise
        finally:
            self._end()

    def fetch_ahead(self) -> None:
        """Begin to fetch, before a model is loaded; `run` does it else. Raises OutputError for a spool that
        cannot be written."""
        remote = [s for s in self.todo if s.location is not None and s.error is None]
        if remote and self._spool is None:
            assert self.fetching is not None, "recordings at locations are fetched"
            self._spool = self.fetching.spool()
            self._spool.order(remote)

    def skipped(self) -> Iterator[RecordingResult]:
        """Results of the recordings that are done; the manifest has them already."""
        for source in self.done:
            yield self._writer.skipped(source)

    def files(self, source: Source) -> list[Path | Location]:
        """The files of a recording's results; none for one that cannot be read."""
        return self._writer.files(source)

    def _results(
        self, make: MakeTranscriber, options: Options | None, size: int, hook: Hook | None
    ) -> Generator[RecordingResult]:
        """Results of all recordings, with one more attempt if memory runs out, and in several calls of the
        transcriber if the next recording can be fetched only after those in work have ended."""
        for source in self.todo:
            if source.error is not None:
                yield self._failed(source, source.error)
        may_halve, transcriber = True, None
        while self._open:
            before = len(self._open)
            try:
                with self.stop.interruptible():
                    transcriber = transcriber or make(size)
                with self._transcribing(transcriber, options, hook) as outcomes:
                    order = _Order(self._open, keep=self.outputs.keeps_order)
                    while True:
                        with self.stop.interruptible():
                            outcome = next(outcomes, None)
                        yield from self._settled_results(order)
                        if outcome is None:
                            break
                        for ready in order.ready(outcome):
                            yield from self._finish(ready)
                yield from self._settled_results()
                assert len(self._open) < before, (
                    "the transcriber left recordings without an outcome"
                )
                continue  # with those that there was no room for
            except Exception as error:
                if not out_of_memory(error):
                    raise
            if not self._open:
                break
            transcriber = None
            gc.collect()  # the frames of the failed call hold its tensors
            full = f"out of memory with {size} windows at a time"
            halve, may_halve = may_halve and size > 1, False
            if halve:
                size //= 2
                self.notice(f"{full}: going on with {size}")
            advice = "try a smaller --batch-size or --dtype float16"
            for path in self._lost(halved=halve, stuck=len(self._open) == before):
                yield self._failed(self._open[path], CapacityError(f"{path}: {full}; {advice}"))
        if self._writes is not None:
            yield from self._writes.rest()

    @contextmanager
    def _transcribing(
        self, transcriber: BatchTranscriber, options: Options | None, hook: Hook | None
    ) -> Iterator[Iterator[Outcome]]:
        """The outcomes of everything that is open; closed at the end."""
        self._pulled = {}
        with self.stop.interruptible():
            outcomes = transcriber.transcribe(self._sources(), options, hook)
        try:
            yield outcomes
        finally:
            if isinstance(outcomes, Generator):
                outcomes.close()

    def _sources(self) -> _SourceStream:
        """The paths and local copies, pulled by the transcriber."""
        self._coming = deque(self._open.values())
        return _SourceStream(self._pulled_sources(), self._is_next_ready)

    def _is_next_ready(self) -> bool:
        source = self._coming[0] if self._coming else None
        fetched = source is not None and source.location is not None and not self._elsewhere
        return source is None or not fetched or self._spooled.is_ready(source)

    def _pulled_sources(self) -> Iterator[str | LocalCopy]:
        """Recordings are hashed before they are read: one that grows in the meantime does not count as
        done. Ends early if there is no room for the next one."""
        while self._coming:
            source = self._coming.popleft()
            if self._elsewhere or source.location is None:
                self._pulled[source.path] = (
                    None if self._elsewhere else fingerprint.content(source.path)
                )
                yield source.path
                continue
            try:
                copy = self._spooled.take(source)
            except ForescribeError as error:
                self._settled.append(partial(self._writer.failed, source, error))
                continue
            if copy is None:
                return
            if source.entry is None:
                source = replace(source, entry=copy.entry)
                self._open[source.path] = source
            if not self._overwrite and self._writer.is_unchanged(source, copy.content):
                self._settled.append(partial(self._writer.confirmed, source))
                continue
            self._pulled[source.path] = copy.content
            yield copy

    @property
    def _spooled(self) -> Spool:
        assert self._spool is not None, "recordings at locations are fetched"
        return self._spool

    def _lost(self, *, halved: bool, stuck: bool) -> list[str]:
        """The recordings that fail for lack of memory. With half the batch, pipes: they cannot be read
        again. Else those that were being decoded, or all if none has ended, as then none will."""
        if halved:
            return [path for path, content in self._pulled.items() if content is None]
        return list(self._open if stuck else self._pulled)

    def _finish(self, outcome: Outcome) -> Iterator[RecordingResult]:
        """Write the result of an outcome; yields the results that are written by now. Raises what ran out
        of memory."""
        error = outcome.error
        cause = error.__cause__ if error and error.code != "invalid_audio" else None
        if cause is not None and out_of_memory(cause):
            raise cause  # the batch is too large; where reading runs out of memory, it is the recording
        if isinstance(outcome, Written):
            self._close(outcome.name)
            yield self._writer.written(outcome)
            return
        content = self._pulled.pop(outcome.name) or outcome.content
        source = self._close(outcome.name)
        if source.location is not None and source.entry is None and outcome.entry is not None:
            source = replace(source, entry=outcome.entry)
        write = partial(self._writer.finished, source, outcome, content)
        if self._writes is None:
            yield write()
        else:
            yield from self._writes.add(write)

    def _failed(self, source: Source, error: ForescribeError) -> RecordingResult:
        """Write the record of a recording that has no outcome."""
        self._close(source.path)
        return self._writer.failed(source, error)

    def _settled_results(self, order: _Order | None = None) -> Iterator[RecordingResult]:
        """Results of what `_sources` has left out; written here, where nothing interrupts it."""
        while self._settled:
            result = self._settled.popleft()()
            self._close(result.record.path)
            yield result
            if order is not None:
                for ready in order.without(result.record.path):
                    yield from self._finish(ready)

    def _close(self, path: str) -> Source:
        """A recording has its outcome, and its copy is not needed any more."""
        self._pulled.pop(path, None)
        if self._spool is not None:
            self._spool.release(path)
        return self._open.pop(path)

    def _cancel(self) -> Iterator[RecordingResult]:
        """Results of what is being written, and of what is not transcribed in this run."""
        yield from self._settled_results()
        if self._writes is not None:
            yield from self._writes.rest()
        results = self._writer.cancelled(list(self._open.values()))
        self._open.clear()
        yield from results

    def _end(self) -> None:
        if self._spool is not None:
            self._spool.close()
        if self._writes is not None:
            self._writes.close()
        self._writer.close()


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


class _SourceStream(Iterator[Any]):
    """The items of `pulled`; `is_ready` says whether its next one comes at once. A reader that collects
    recordings ahead (`asr.audio.reader_pool`) need not wait for one that is still being fetched."""

    def __init__(self, pulled: Iterator[Any], is_ready: Callable[[], bool]) -> None:
        self.pulled, self.is_ready = pulled, is_ready

    @property
    def ready(self) -> bool:
        return self.is_ready()

    def __next__(self) -> Any:
        return next(self.pulled)


class _Order:
    """Outcomes in the order of their names if `keep`, else as they come."""

    def __init__(self, names: Iterable[str], *, keep: bool) -> None:
        self.waiting = deque(names if keep else ())
        self.early: dict[str, Outcome] = {}

    def ready(self, outcome: Outcome) -> Iterator[Outcome]:
        """The outcomes whose turn it is now that this one has come."""
        self.early[outcome.name] = outcome
        if not self.waiting:
            yield self.early.pop(outcome.name)
        yield from self._next()

    def without(self, name: str) -> Iterator[Outcome]:
        """The outcomes whose turn it is now that this name will have none."""
        if name in self.waiting:
            self.waiting.remove(name)
        yield from self._next()

    def _next(self) -> Iterator[Outcome]:
        while self.waiting and self.waiting[0] in self.early:
            yield self.early.pop(self.waiting.popleft())


def _longest_first(sources: list[Source], *, sort: bool) -> list[Source]:
    """The sources with their lengths, the longest first if `sort`."""
    if len(sources) < 2:
        return sources
    measured = [
        source if source.error else replace(source, length_s=length_s(source)) for source in sources
    ]
    return sorted(measured, key=lambda s: -(s.length_s or 0)) if sort else measured
