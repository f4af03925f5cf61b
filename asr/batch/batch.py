"""Many recordings, one run: what is done already, in which order, and a record for each.

    batch = Batch(sources, destination, settings=fingerprint.settings({...}))
    for ended in batch.run(make, options, size=8):
        print(ended.record.path, ended.record.status)

Longest first, so that no long recording is left alone at the end; onto stdout in the order given.
A recording's files are put in place as soon as it ends, its record after them: a run that was
killed goes on where it was. One that fails takes no other with it. Out of memory, the run goes on
with half the batch, once.

Knows nothing of models: what transcribes is anything with `transcribe(sources, options, hook)`.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..audio.durations import length_s
from ..errors import CapacityError, ForescribeError, OutputError, out_of_memory
from ..formats.transcript import Transcript
from . import fingerprint
from .fingerprint import Fingerprint
from .inputs import Source
from .interrupts import Stop
from .manifest import Record, described
from .outputs import Destination

if TYPE_CHECKING:
    from ..decode.options import Options
    from ..decode.outcome import Hook, Outcome


class Transcribes(Protocol):
    """The part of `asr.decode.transcriber.Transcriber` that a run needs. Sources are pulled as there is
    room for them; a generator, so that closing it drops what is in the air."""

    def transcribe(
        self, sources: Iterable[Any], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]: ...


Make = Callable[[int], Transcribes]
"""From a batch size; called again with half of it when memory ran out."""


@dataclass(frozen=True)
class Ended:
    """A recording that the run is done with."""

    record: Record
    transcript: Transcript | None = None
    error: ForescribeError | None = None
    files: tuple[Path, ...] = ()


class Batch:
    """The recordings of one run; made before any model is loaded.

    `todo` are to be transcribed, in this order; `done` are not, because their files hold what
    these settings gave before. `overwrite` does all again. `settings` is the hash of all that can
    change a file's text. `fail_fast` ends the run with the first failure.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        destination: Destination,
        *,
        settings: str,
        overwrite: bool = False,
        fail_fast: bool = False,
        stop: Stop | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.destination, self.settings = destination, settings
        self.fail_fast, self.stop, self.notice = fail_fast, stop or Stop(), notice
        self.done = [] if overwrite else [s for s in sources if self._is_done(s)]
        paths = {source.path for source in self.done}
        rest = [source for source in sources if source.path not in paths]
        if len(rest) > 1:
            rest = [
                source if source.error else replace(source, length_s=length_s(source))
                for source in rest
            ]
            if (
                destination.folder is not None
            ):  # on stdout nothing but their order tells texts apart
                rest.sort(key=lambda source: -(source.length_s or 0))
        self.todo = rest
        self._open = {source.path: source for source in rest}  # not ended
        self._pulled: dict[str, str | None] = {}  # with the hash of their bytes

    def run(
        self,
        make: Make,
        options: Options | None = None,
        *,
        size: int,
        hook: Hook | None = None,
    ) -> Iterator[Ended]:
        """Transcribes `todo` with `size` windows at a time; yields recordings as they end.

        Every recording of `todo` ends: transcribed, failed, or, with `fail_fast` and after an
        interruption, cancelled. Raises KeyboardInterrupt after the last one if it was interrupted,
        and what `make` and `transcribe` raise for a request that cannot be served.
        """
        self.destination.sweep()
        try:
            for ended in (all_ := self._run(make, options, size, hook)):
                yield ended
                if self.fail_fast and ended.error is not None:
                    all_.close()  # drops what is in the air
                    yield from self._cancel()
                    return
        except KeyboardInterrupt:
            yield from self._cancel()
            raise

    # -- what is done -----------------------------------------------------------------------------

    def _is_done(self, source: Source) -> bool:
        """Whether its files are there and hold what would be written again."""
        manifest, files = self.destination.manifest, self.files(source)
        if manifest is None or not files or not all(file.is_file() for file in files):
            return False
        # By file, not by the last record alone: that may be of another format's run.
        known = {manifest.fingerprint(manifest.relative(file)) for file in files}
        if not all(mark is not None and mark.endswith(f"+{self.settings}") for mark in known):
            return False  # without reading the recording
        content = fingerprint.content(source.path)
        return content is not None and known == {str(Fingerprint(content, self.settings))}

    def skipped(self) -> Iterator[Ended]:
        """Those that are done, for whoever lists them; the manifest has them already."""
        for source in self.done:
            yield Ended(self._record(source, status="skipped"), files=tuple(self.files(source)))

    def files(self, source: Source) -> list[Path]:
        """Where its results go."""
        return [] if source.error is not None else self.destination.files(source.path)

    # -- the run ----------------------------------------------------------------------------------

    def _run(
        self, make: Make, options: Options | None, size: int, hook: Hook | None
    ) -> Generator[Ended]:
        for source in self.todo:
            if source.error is not None:
                yield self._fail(source, source.error)
        halved = False
        while self._open:
            before = len(self._open)
            try:
                yield from self._attempt(make, options, size, hook)
                assert not self._open, "the transcriber left recordings without an outcome"
            except Exception as error:
                if not out_of_memory(error):
                    raise
            if not self._open:
                return
            gc.collect()  # the frames of the failed call hold its tensors
            full = f"out of memory with {size} windows at a time"
            if size > 1 and not halved:
                halved, size = True, size // 2
                self.notice(f"{full}: going on with {size}")
                # A pipe cannot be read again.
                lost = [path for path, content in self._pulled.items() if content is None]
            else:
                # Nothing ended, so nothing will: what is left fails. Else what was in the air.
                lost = list(self._open if len(self._open) == before else self._pulled)
            for path in lost:
                yield self._fail(
                    self._open[path],
                    CapacityError(f"{path}: {full}; try a smaller --batch-size or --dtype float16"),
                )

    def _attempt(
        self, make: Make, options: Options | None, size: int, hook: Hook | None
    ) -> Iterator[Ended]:
        """All that is open, until memory runs out."""
        self._pulled = {}
        with self.stop.interruptible():
            running = make(size).transcribe(self._sources(), options, hook)
        outcomes = running
        if self.destination.folder is None:
            outcomes = _in_order(running, list(self._open))
        try:
            while True:
                with self.stop.interruptible():
                    outcome = next(outcomes, None)
                if outcome is None:
                    return
                cause = outcome.error and outcome.error.__cause__
                if cause is not None and out_of_memory(cause):
                    raise cause  # it hit one recording, but is no fault of its own
                yield self._end(outcome)
        finally:
            if isinstance(running, Generator):
                running.close()

    def _sources(self) -> Iterator[str]:
        """Pulled by the transcriber. Hashed before it is read: a recording that grows meanwhile
        will not count as done."""
        for path in list(self._open):
            self._pulled[path] = fingerprint.content(path)
            yield path

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome) -> Ended:
        source, content = self._open[outcome.name], self._pulled.pop(outcome.name)
        mark = str(Fingerprint(content, self.settings)) if content else None
        return self._close(
            source, outcome.transcript, outcome.error, wall_s=outcome.wall_s, mark=mark
        )

    def _fail(self, source: Source, error: ForescribeError) -> Ended:
        self._pulled.pop(source.path, None)
        return self._close(source, None, error)

    def _close(
        self,
        source: Source,
        transcript: Transcript | None,
        error: ForescribeError | None,
        *,
        wall_s: float = 0.0,
        mark: str | None = None,
    ) -> Ended:
        """Files, then the record, in one hold of the lock."""
        try:
            with self._locked():
                files: tuple[Path, ...] = ()
                if transcript is not None and error is None:
                    try:
                        self._void(source, mark)
                        files = tuple(self.destination.write(source.path, transcript))
                    except OutputError as refused:
                        error = refused
                record = self._ended(source, transcript, error, wall_s, files, mark)
                self._append([record])
        except OutputError as refused:  # the manifest itself: what has no record will be done again
            error, files = error or refused, ()
            record = self._ended(source, transcript, error, wall_s, files, mark)
        del self._open[source.path]
        return Ended(record, transcript, error, files)

    def _void(self, source: Source, mark: str | None) -> None:
        """Takes the fingerprints off files that are about to be replaced: a process that is killed
        before the new record must not leave new files under the old one."""
        manifest = self.destination.manifest
        if manifest is None:
            return
        self.destination.settle(source.path)
        names = [manifest.relative(file) for file in self.files(source)]
        old = tuple(name for name in names if manifest.fingerprint(name) not in (None, mark))
        if old:
            self._append([self._record(source, status="cancelled", outputs=old)])

    def _ended(
        self,
        source: Source,
        transcript: Transcript | None,
        error: ForescribeError | None,
        wall_s: float,
        files: tuple[Path, ...],
        mark: str | None,
    ) -> Record:
        manifest = self.destination.manifest
        return self._record(
            source,
            **described(transcript, error, wall_s),
            outputs=() if manifest is None else tuple(map(manifest.relative, files)),
            fingerprint=mark if error is None else None,
        )

    def _cancel(self) -> Iterator[Ended]:
        """Records for what will not be transcribed in this run."""
        records = [self._record(source, status="cancelled") for source in self._open.values()]
        if records:
            with suppress(OutputError), self._locked():
                self._append(records)
        self._open.clear()
        yield from map(Ended, records)

    def _record(self, source: Source, **fields: Any) -> Record:
        manifest = self.destination.manifest
        if manifest is None:
            return Record(path=source.path, **fields)
        key = manifest.key(source.path)
        tries = manifest.attempts(key) + (fields["status"] in ("succeeded", "failed"))
        return Record(path=source.path, source=key, attempt=tries, **fields)

    def _locked(self) -> AbstractContextManager[None]:
        manifest = self.destination.manifest
        return nullcontext() if manifest is None else manifest.locked()

    def _append(self, records: list[Record]) -> None:
        if self.destination.manifest is not None:
            self.destination.manifest.append(records)


def _in_order(outcomes: Iterator[Outcome], names: Iterable[str]) -> Iterator[Outcome]:
    """In the order of `names`, each as soon as it and all before it have ended."""
    early: dict[str, Outcome] = {}
    waiting = deque(names)
    for outcome in outcomes:
        early[outcome.name] = outcome
        while waiting and waiting[0] in early:
            yield early.pop(waiting.popleft())
