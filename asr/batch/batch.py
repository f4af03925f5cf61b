"""Many recordings in one run: what is done already, the order of the rest, and a result for each.

    batch = Batch(sources, outputs, settings=fingerprint.settings({...}))
    for result in batch.run(make, options, size=8):
        print(result.record.path, result.record.status)

The longest recordings come first, so that none is left alone at the end; on stdout, results keep
the order given. The files of a recording are put in place as soon as it ends, its record after
them, so a run that was killed continues where it stopped. A failure affects one recording only. Out
of memory, the run continues with half the batch, once.

Knows nothing of models: a transcriber is anything with `transcribe(sources, options, hook)`.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..audio.durations import length_s
from ..errors import CapacityError, out_of_memory
from . import fingerprint
from .fingerprint import Fingerprint
from .inputs import Source
from .interrupts import Stop
from .outputs import Outputs
from .recording_results import RecordingResult, ResultWriter

if TYPE_CHECKING:
    from ..decode.options import Options
    from ..decode.outcome import Hook, Outcome


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
    file's text. `fail_fast` ends the run at the first failure.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        outputs: Outputs,
        *,
        settings: str,
        overwrite: bool = False,
        fail_fast: bool = False,
        stop: Stop | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.outputs, self.settings = outputs, settings
        self.fail_fast, self.stop, self.notice = fail_fast, stop or Stop(), notice
        self.done = [] if overwrite else [s for s in sources if self._is_done(s)]
        done = {source.path for source in self.done}
        # On stdout only the order tells texts apart.
        rest = [source for source in sources if source.path not in done]
        self.todo = _longest_first(rest, sort=outputs.folder is not None)
        self._writer = ResultWriter(outputs)
        self._open = {source.path: source for source in self.todo}  # without a result yet
        self._pulled: dict[str, str | None] = {}  # content hashes of what the transcriber has taken

    def run(
        self,
        make: MakeTranscriber,
        options: Options | None = None,
        *,
        size: int,
        hook: Hook | None = None,
    ) -> Iterator[RecordingResult]:
        """Transcribe `todo` with `size` windows at a time; yields results as recordings end.

        Every recording of `todo` gets a result: succeeded, failed, or cancelled with `fail_fast` and
        after an interruption. Raises KeyboardInterrupt after the last result if it was interrupted, and
        what `make` and `transcribe` raise for a request that cannot be served.
        """
        self.outputs.sweep()
        try:
            for result in (results := self._results(make, options, size, hook)):
                yield result
                if self.fail_fast and result.error is not None:
                    results.close()  # drops unfinished recordings
                    yield from self._cancel()
                    return
        except KeyboardInterrupt:
            yield from self._cancel()
            raise

    def skipped(self) -> Iterator[RecordingResult]:
        """Results of the recordings that are done; the manifest has them already."""
        for source in self.done:
            yield self._writer.skipped(source)

    def files(self, source: Source) -> list[Path]:
        """The files of a recording's results; none for one that cannot be read."""
        return [] if source.error is not None else self.outputs.files(source.path)

    def _is_done(self, source: Source) -> bool:
        """Whether its files exist and hold what would be written again."""
        manifest, files = self.outputs.manifest, self.files(source)
        if manifest is None or not files or not all(file.is_file() for file in files):
            return False
        # By file: the last record alone may be of a run with other formats.
        prints = {manifest.fingerprint(manifest.relative(file)) for file in files}
        if not all(mark is not None and mark.endswith(f"+{self.settings}") for mark in prints):
            return False  # without reading the recording
        content = fingerprint.content(source.path)
        return content is not None and prints == {str(Fingerprint(content, self.settings))}

    def _results(
        self, make: MakeTranscriber, options: Options | None, size: int, hook: Hook | None
    ) -> Generator[RecordingResult]:
        """Results of all recordings, with one more attempt if memory runs out."""
        for source in self.todo:
            if source.error is not None:
                yield self._close(self._writer.failed(source, source.error))
        may_halve = True
        while self._open:
            before = len(self._open)
            try:
                with self._transcribing(make, options, size, hook) as outcomes:
                    order = _Order(self._open, keep=self.outputs.folder is None)
                    while True:
                        with self.stop.interruptible():
                            outcome = next(outcomes, None)
                        if outcome is None:
                            break
                        for ready in order.ready(outcome):
                            yield self._finish(ready)
                assert not self._open, "the transcriber left recordings without an outcome"
            except Exception as error:
                if not out_of_memory(error):
                    raise
            if not self._open:
                return
            gc.collect()  # the frames of the failed call hold its tensors
            full = f"out of memory with {size} windows at a time"
            halve, may_halve = may_halve and size > 1, False
            if halve:
                size //= 2
                self.notice(f"{full}: going on with {size}")
            for path in self._lost(halved=halve, stuck=len(self._open) == before):
                yield self._close(
                    self._writer.failed(
                        self._open[path],
                        CapacityError(
                            f"{path}: {full}; try a smaller --batch-size or --dtype float16"
                        ),
                    )
                )

    @contextmanager
    def _transcribing(
        self, make: MakeTranscriber, options: Options | None, size: int, hook: Hook | None
    ) -> Iterator[Iterator[Outcome]]:
        """The outcomes of everything that is open; closed at the end."""
        self._pulled = {}
        with self.stop.interruptible():
            outcomes = make(size).transcribe(self._sources(), options, hook)
        try:
            yield outcomes
        finally:
            if isinstance(outcomes, Generator):
                outcomes.close()

    def _sources(self) -> Iterator[str]:
        """The paths, pulled by the transcriber. Hashed before they are read: a recording that grows in
        the meantime does not count as done."""
        for path in list(self._open):
            self._pulled[path] = fingerprint.content(path)
            yield path

    def _lost(self, *, halved: bool, stuck: bool) -> list[str]:
        """The recordings that fail for lack of memory. With half the batch, pipes: they cannot be read
        again. Else those that were being decoded, or all if none has ended, as then none will."""
        if halved:
            return [path for path, content in self._pulled.items() if content is None]
        return list(self._open if stuck else self._pulled)

    def _finish(self, outcome: Outcome) -> RecordingResult:
        """Write the result of an outcome. Raises what ran out of memory."""
        cause = outcome.error and outcome.error.__cause__
        if cause is not None and out_of_memory(cause):
            raise cause  # the batch is too large, not this recording
        content = self._pulled[outcome.name]
        mark = str(Fingerprint(content, self.settings)) if content else None
        return self._close(self._writer.finished(self._open[outcome.name], outcome, mark))

    def _close(self, result: RecordingResult) -> RecordingResult:
        self._pulled.pop(result.record.path, None)
        del self._open[result.record.path]
        return result

    def _cancel(self) -> Iterator[RecordingResult]:
        """Results of what is not transcribed in this run."""
        results = self._writer.cancelled(list(self._open.values()))
        self._open.clear()
        yield from results


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
