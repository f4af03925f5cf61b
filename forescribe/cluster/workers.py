"""Workers: actors of Ray Data with a model each, and the recordings that they are given.

    with connected("auto") as ray:
        for outcome in ClusterTranscriber(...).transcribe(sources, options): ...

An actor is asynchronous: several rows are in work at a time and share one engine, which a call per batch of
rows would let run empty at the end of each. A row is a block of its own, as blocks are repeated whole.

What is lost with a worker that dies is tried again at the end, one recording at a time: so the one that is to
blame is known, and no other fails with it. An actor on the cluster, `DatasetRun`, runs the dataset, as Ray
Data knows no clients from outside.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.asr.batch.spool import LocalCopy, SpoolFolder
from forescribe.asr.decode.results import Outcome, Progress
from forescribe.asr.errors import (
    AudioError,
    CapacityError,
    ForescribeError,
    UsageError,
    out_of_memory,
)
from forescribe.asr.storage.locations import Location, Source, is_url
from forescribe.asr.storage.stores import Stores
from forescribe.speculative.errors import BrokenError, SpeculativeError
from forescribe.speculative.requests import Stats

from .connection import connected, first_line
from .order import WorkOrder

if TYPE_CHECKING:
    from ray.data import Dataset

    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.results import Hook
    from forescribe.asr.formats.transcript import Transcript

Row = dict[str, Any]

AHEAD = 2
"""Rows that an actor holds for each row of its engine."""

TRIES_ALONE = 2
"""Workers that may die over a recording that they have alone, after the one that had others too."""

DEFAULT_SLICE = 4
"""Cores of a worker on machines without accelerators, unless the user says otherwise."""

BROKEN = 70
"""Exit status of an actor whose device does not answer any more; Ray starts the next one."""

POLL_S = 0.5


class Worker:
    """One engine, kept filled with windows of many recordings, by a thread of its own.

    An error that every recording would have is kept in `failure`, and returned for each.
    """

    def __init__(self, order: WorkOrder) -> None:
        self.order, self.size, self._may_halve = order, order.batch, order.batch > 1
        self.failure: Exception | None = None
        self._stores, self._folder = Stores(), SpoolFolder(order.spool)
        self._changed = threading.Condition()  # guards the two below
        self._waiting: deque[_Item] = deque()
        self._begun: dict[int, _Item] = {}  # by the copy's identity
        try:
            order.check_machine()
            self._set_threads()
            self.transcriber = order.load()
        except (ForescribeError, SpeculativeError) as error:
            self.failure = portable(error)
            return
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    async def transcribe(self, source: Source) -> Outcome:
        """The outcome of a recording, without what only this process has. Raises what every other one would
        fail with, too."""
        try:
            copy = await asyncio.to_thread(self._folder.copy, source, self._stores)
        except ForescribeError as error:
            return Outcome(source.path, error=portable(error))
        try:
            item = _Item(copy)
            with self._changed:
                if self.failure is not None:
                    raise self.failure
                self._waiting.append(item)
                self._changed.notify()
            outcome = await asyncio.wrap_future(item.future)
        finally:
            copy.remove()
        return Outcome(
            source.path,
            outcome.transcript,
            outcome.error and portable(outcome.error),
            outcome.wall_s,
            content=copy.content,
            entry=copy.entry,
        )

    def _run(self) -> None:
        self._set_threads()
        while self.failure is None:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            try:
                if self.transcriber.batch != self.size:
                    self.transcriber.set_batch(self.size)
                for outcome in self.transcriber.transcribe(self._pulled(), self.order.options):
                    cause = outcome.error and outcome.error.__cause__
                    if cause is not None and out_of_memory(cause):
                        raise cause  # the batch is too large, not this recording
                    with self._changed:
                        item = self._begun.pop(id(outcome.source))
                    item.end(outcome)
            except Exception as error:
                self._recover(error)
            else:
                continue
            gc.collect()  # the frames of the failed call hold its tensors

    def _pulled(self) -> Iterator[LocalCopy]:
        """Ends where none waits: rows in work must not wait for one; the next call takes what comes later."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                item = self._waiting.popleft()
                self._begun[id(item.copy)] = item
            yield item.copy

    def _recover(self, error: Exception) -> None:
        """After an exception of the transcriber: the worker goes on, or has a `failure`."""
        if isinstance(error, BrokenError):
            os._exit(BROKEN)
        with self._changed:
            begun = list(self._begun.values())
            self._begun.clear()
            if out_of_memory(error) and self._may_halve:
                self.size, self._may_halve = self.size // 2, False
                self._waiting.extendleft(reversed(begun))
                return
            if not out_of_memory(error):
                self.failure = portable(error)
                begun += self._waiting
        for item in begun:
            text = f"{item.copy}: out of memory with {self.size} windows at a time"
            full = CapacityError(f"{text}; try a smaller --batch-size")
            item.end(self.failure or Outcome(item.copy, error=full))

    def _set_threads(self) -> None:
        """A number of threads holds for the thread that sets it."""
        if self.order.threads:
            import torch

            torch.set_num_threads(self.order.threads)


@dataclass(frozen=True)
class _Item:
    """A recording on this machine, and its outcome to come."""

    copy: LocalCopy
    future: Future[Outcome] = field(default_factory=Future)

    def end(self, outcome: Outcome | Exception) -> None:
        if self.future.cancelled():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class TranscribeRows:
    """The operator of a pipeline: a row keeps its columns and gets those of `transcribe`."""

    def __init__(self, order: WorkOrder, path_column: str) -> None:
        self.worker, self.path_column = Worker(order), path_column

    async def __call__(self, row: Row) -> Row:
        try:
            source = source_of(row.get(self.path_column), self.path_column)
        except ForescribeError as error:
            return {**row, **columns(None, error)}
        outcome = await self.worker.transcribe(source)
        return {**row, **columns(outcome.transcript, outcome.error)}


class TranscribeSources:
    """The operator of a run: pickled sources become pickled outcomes, or the error that ends the run."""

    def __init__(self, order: WorkOrder) -> None:
        self.worker = Worker(order)

    async def __call__(self, row: Row) -> Row:
        answer: Outcome | Exception
        try:
            answer = await self.worker.transcribe(pickle.loads(row["source"]))
        except Exception as error:
            answer = portable(error)
        return {"outcome": pickle.dumps(answer)}


@dataclass(frozen=True)
class Slot:
    """What a worker takes of a machine, and how many workers there are."""

    kind: str  # GPU, HPU or CPU
    cpus: int
    workers: int

    @classmethod
    def planned(
        cls,
        resources: dict[str, float],
        largest: int,
        *,
        device: str = "auto",
        workers: int | None = None,
        threads: int = 0,
    ) -> Slot:
        """For the resources of a cluster whose largest machine has `largest` cores. Raises UsageError for a
        device that it does not have."""
        kind = {"cuda": "GPU", "hpu": "HPU", "cpu": "CPU"}.get(device)
        if device == "auto":
            kind = next((name for name in ("GPU", "HPU") if resources.get(name, 0) >= 1), "CPU")
        if kind is None:
            raise UsageError(
                f"--device {device}: on a cluster Ray chooses the devices; use auto, cuda, hpu or cpu"
            )
        if kind != "CPU":
            count = workers or int(resources.get(kind, 0))
            if count < 1:
                raise UsageError(
                    f"--device {device}: the cluster has no {kind}; add one, or use --workers"
                )
            return cls(kind, 1, count)
        cores = max(1, int(resources.get("CPU", 1)))
        share = threads or (max(1, cores // workers) if workers else DEFAULT_SLICE)
        cpus = min(share, max(1, largest))
        return cls("CPU", cpus, workers or max(1, cores // cpus))

    @property
    def options(self) -> dict[str, Any]:
        """The options of its actor."""
        if self.kind == "GPU":
            return {"num_cpus": self.cpus, "num_gpus": 1}
        own = {} if self.kind == "CPU" else {"resources": {self.kind: 1}}
        return {"num_cpus": self.cpus, **own}


def cards_for(device: str, workers: int) -> int:
    """The GPUs of this machine, 0 where `device` is another; for workers on it. Raises UsageError where there
    are not as many devices, or cores, and DeviceError for a device that is not available."""
    from forescribe.speculative.device import choose, device_count

    kind = choose(device).kind
    found = len(os.sched_getaffinity(0)) if kind == "cpu" else device_count(kind)
    if workers > found:
        what = "cores" if kind == "cpu" else f"devices of the kind {kind}"
        raise UsageError(
            f"--workers {workers}: each worker needs one of this machine's {what}, which are {found}"
        )
    return found if kind == "cuda" else 0


class DatasetRun:
    """The actor that runs the dataset of a command, on the cluster."""

    def __init__(self, order: WorkOrder, sources: Sequence[Source], slot: Slot) -> None:
        self._outcomes = outcomes(order, sources, slot)

    def next(self) -> Outcome | Exception | None:
        """What has ended next; an error ends the run, and so does None."""
        try:
            return next(self._outcomes, None)
        except Exception as error:
            if not isinstance(error, ForescribeError | SpeculativeError):
                last = str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
                error = CapacityError(f"the workers cannot be started: {last}")
            sent: Exception = portable(error)
            return sent


def outcomes(order: WorkOrder, sources: Sequence[Source], slot: Slot) -> Iterator[Outcome]:
    """The outcomes of all sources, on actors. Raises what ends the run."""
    left = {source.path: source for source in sources}
    for alone in (False, True):
        for outcome in _attempt(order, list(left.values()), slot, alone=alone):
            if left.pop(outcome.name, None) is not None:
                yield outcome
    for path in left:
        yield Outcome(
            path,
            error=AudioError(
                f"{path}: {TRIES_ALONE + 1} workers died while they had it, the last ones nothing else; it "
                "may be damaged or hostile, or too large for their memory",
                code="crashed_workers",
            ),
        )


def _attempt(
    order: WorkOrder, sources: Sequence[Source], slot: Slot, *, alone: bool
) -> Iterator[Outcome]:
    """The outcomes of the sources that no worker dies over; `alone`: a worker has one at a time."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    if not sources:
        return
    context = DataContext.get_current()
    context.max_errored_blocks = -1  # what is lost has no row
    context.enable_progress_bars = False
    rows = 1 if alone else AHEAD * order.batch
    dataset = ray.data.from_items(
        [{"source": pickle.dumps(source)} for source in sources], override_num_blocks=len(sources)
    ).map(
        TranscribeSources,
        fn_constructor_args=(order,),
        compute=ActorPoolStrategy(
            size=min(slot.workers, len(sources)),
            max_tasks_in_flight_per_actor=rows,
            max_concurrent_calls_per_actor=rows,
        ),
        max_restarts=-1,
        max_task_retries=TRIES_ALONE - 1 if alone else 0,
        **slot.options,
    )
    for block in dataset.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow"):
        for value in block["outcome"].to_pylist():
            answer = pickle.loads(value)
            if isinstance(answer, Exception):
                raise answer
            yield answer


@dataclass(frozen=True)
class ClusterTranscriber:
    """What a run on a cluster has in place of a model: see `asr.batch.batch.BatchTranscriber`."""

    address: str
    order: WorkOrder
    recordings: Sequence[Source]
    status: Callable[[str], None]
    device: str = "auto"
    workers: int | None = None
    threads: int = 0
    cards: int | None = None  # of this machine, where the workers are to be

    @property
    def batch(self) -> int:
        """Windows that a worker decodes at a time."""
        return self.order.batch

    def transcribe(
        self, sources: Iterable[str], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes as recordings end. Raises what no worker can serve, and CapacityError where none
        can be started."""
        recordings = {source.path: source for source in self.recordings}
        given = [recordings[path] for path in sources]
        with connected(self.address, status=self.status, cards=self.cards) as ray:
            nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            slot = Slot.planned(
                ray.cluster_resources(),
                int(max(nodes, default=0)),
                device=self.device,
                workers=self.workers,
                threads=self.threads,
            )
            order = replace(self.order, threads=slot.cpus if slot.kind == "CPU" else 0)
            for answer in self._answers(ray, order, given, slot):
                if hook is not None and answer.transcript is not None:
                    length, text = answer.transcript.duration, answer.transcript.segments
                    hook(Progress(answer.name, length, length, text, Stats()))
                yield answer

    def _answers(
        self, ray: Any, order: WorkOrder, sources: Sequence[Source], slot: Slot
    ) -> Iterator[Outcome]:
        """What `DatasetRun` returns. Where its process dies, another one does once what is left. Raises what
        ends the run."""
        left = {source.path: source for source in sources}
        for retries in (1, 0):
            run = ray.remote(num_cpus=0)(DatasetRun).remote(order, list(left.values()), slot)
            try:
                while (answer := _awaited(ray, run.next.remote())) is not None:
                    if isinstance(answer, Exception):
                        raise answer
                    left.pop(answer.name, None)
                    yield answer
                return
            except ray.exceptions.RayActorError as error:
                if not retries:
                    raise _ended(error) from error
                self.status("the process that hands out the recordings has died: starting it again")
            except ray.exceptions.RayError as error:
                raise _ended(error) from error

    def set_batch(self, size: int) -> None:
        raise AssertionError("workers halve their batches themselves")


def transcribe(
    dataset: Dataset,
    order: WorkOrder,
    *,
    workers: int | None = None,
    path_column: str = "path",
    **given: Any,
) -> Dataset:
    """The dataset with the columns of transcripts; see `forescribe.ray.transcribe`."""
    from ray.data import ActorPoolStrategy

    rows = AHEAD * order.batch
    size = {"size": workers} if workers else {"min_size": 1}
    return dataset.repartition(target_num_rows_per_block=1).map(
        TranscribeRows,
        fn_constructor_args=(order, path_column),
        compute=ActorPoolStrategy(
            **size, max_tasks_in_flight_per_actor=2 * rows, max_concurrent_calls_per_actor=rows
        ),
        max_restarts=-1,
        max_task_retries=TRIES_ALONE,
        **{name: value for name, value in given.items() if value is not None},
    )


def source_of(path: Any, column: str) -> Source:
    """The recording of a row. Raises UsageError for one that names none."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"the column {column!r} holds no path")
    if is_url(str(path)):
        location = Location.parse(str(path))
        return Source(location.identity, location=location)
    return Source(str(Path(path)))


def columns(made: Transcript | None, error: ForescribeError | None) -> Row:
    """The same of both, so that blocks agree."""
    return {
        "text": made and made.text,
        "language": made and made.language,
        "audio_s": made and made.duration,
        "transcript": made and json.dumps(made.to_dict(), ensure_ascii=False),
        "code": error and error.code,
        "message": error and error.message,
    }


def _awaited(ray: Any, call: Any) -> Outcome | Exception | None:
    """The answer of a call, in a loop that signals can end. Raises Ray's errors."""
    while not ray.wait([call], timeout=POLL_S)[0]:
        pass
    answer: Outcome | Exception | None = ray.get(call)
    return answer


def _ended(error: Exception) -> CapacityError:
    """Ray's last line is advice about its own settings, or about memory, whatever has happened."""
    return CapacityError(
        f"the run on the cluster has ended ({first_line(error)}): the same command goes on where it stopped"
    )


def portable(error: Exception) -> Any:
    """An error as it can be sent to another process: those of libraries, and some of ours, do not survive
    pickling."""
    if not isinstance(error, ForescribeError | SpeculativeError):
        return ForescribeError(f"a worker failed with {type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        code = error.code if isinstance(error, ForescribeError) else None
        return ForescribeError(str(error), code=code)
    return error
