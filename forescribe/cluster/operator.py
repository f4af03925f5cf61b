"""The operator of Ray Data: rows with paths become rows with transcripts.

    from forescribe.ray import transcribe

    paths = ray.data.from_items([{"path": "s3://calls/a.mp3"}, {"path": "/mnt/calls/b.mp3"}])
    transcribe(paths, model="large", diarize=True).write_parquet("s3://out/2026")

Results and errors come back as rows; it writes no files and no records. An actor is asynchronous: several
rows are in work at a time and share one engine, which a call per batch of rows would let run empty at the end
of each.

Ray restarts an actor that dies and gives it the same rows again. `Marks`, in an actor of their own, know what
the dead one had begun: these recordings are tried in a child process (`asr.child_process`), one after the
other, where a death tells which of them it was and takes no other with it. One that has cost three processes
becomes a row with the code `crashed_workers`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from forescribe.asr.child_process import Begin, ChildDied, in_child
from forescribe.asr.decode.options import Outcome
from forescribe.asr.errors import (
    AudioError,
    CapacityError,
    ForescribeError,
    UsageError,
    out_of_memory,
)
from forescribe.asr.records.record_store import MAX_CRASHES
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Location, is_url

from .dispatch import crash_error
from .order import WorkOrder, order_of_options
from .worker import Report

if TYPE_CHECKING:
    from ray.data import Dataset

    from forescribe.asr.formats.transcript import Transcript

Row = dict[str, Any]

MAX_DEATHS = 10
"""Deaths of actors after which a recording is given up that no child dies of: it may take the machine's
memory."""

AHEAD = 2
"""Rows that an actor holds for each row of its engine."""

POLL_S = 1.0
BROKEN = 70
"""Exit status of an actor whose device does not answer any more, as of the service."""

NO_CHILD = (
    "a worker died while it had this recording, so it was to be tried in a process of its own, which could "
    "not load the model"
)


def transcribe(
    dataset: Dataset,
    *,
    workers: int | None = None,
    path_column: str = "path",
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: dict[str, float] | None = None,
    **options: Any,
) -> Dataset:
    """Add transcripts to the rows of a dataset.

    `workers` is the number of actors (None: as many as there is room for), each with the given resources;
    without any, one GPU if the cluster has one. `options` are those of `forescribe transcribe`, by their
    names in Python. A row becomes a block of its own: a block is repeated as a whole, and the last long
    one would be waited for. Raises UsageError for options that contradict each other.
    """
    import ray
    from ray.data import ActorPoolStrategy

    order_of_options(options)  # here, not in an actor
    if num_gpus is None and resources is None and options.get("device", "auto") != "cpu":
        num_gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else None
    rows = AHEAD * int(options.get("batch_size", 8))
    size = {"size": workers} if workers else {"min_size": 1}
    marks = ray.remote(num_cpus=0, max_restarts=-1)(Marks).remote()
    given: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources}
    return dataset.repartition(target_num_rows_per_block=1).map(
        Transcribe,
        fn_constructor_kwargs={"path_column": path_column, "marks": marks, **options},
        compute=ActorPoolStrategy(
            **size, max_tasks_in_flight_per_actor=2 * rows, max_concurrent_calls_per_actor=rows
        ),
        max_restarts=-1,
        max_task_retries=-1,  # `marks` end what would be repeated without end
        **{name: value for name, value in given.items() if value is not None},
    )


class Transcribe:
    """The operator: `dataset.map(Transcribe, fn_constructor_kwargs={"model": "large"}, ...)`; `transcribe`
    passes the arguments that keep its engine full and its failures finite.

    A row keeps its columns and gets `text`, `language`, `audio_s`, `transcript` (JSON, as `-f json` writes
    it), and, where a recording fails, `code` and `message` instead. `marks` is an actor of `Marks`, or the
    object itself; without it, what kills an actor kills the next one too.
    """

    def __init__(self, *, path_column: str = "path", marks: Any = None, **options: Any) -> None:
        from .worker import prepared_worker

        self.path_column, self.order = path_column, order_of_options(options)
        self.worker = prepared_worker(self.order)
        self._marks, self._actor, self._process = marks, _own_actor(), secrets.token_hex(8)
        self._suspects: SimpleQueue[tuple[Source, Future[Outcome]]] = SimpleQueue()
        threading.Thread(target=self._try_suspects, name="suspects", daemon=True).start()
        self._waiting: dict[str, list[Future[Outcome]]] = {}  # by path: of all rows that name it
        self._lock = threading.Lock()
        self._error: Exception | None = None
        threading.Thread(target=self._listen, name="reports", daemon=True).start()

    async def __call__(self, row: Row) -> Row:
        """Raises what every row would fail with, such as a language that the model does not have."""
        source = source_of(row.get(self.path_column), self.path_column)
        if isinstance(source, ForescribeError):
            return {**row, **failed_fields(source)}
        deaths = await asyncio.to_thread(
            self._mark, "begin", self._actor, self._process, source.path
        )
        finished = await asyncio.wrap_future(self._begin(source, deaths))
        await asyncio.to_thread(self._mark, "end", self._actor, source.path)
        if finished.transcript is None or finished.error is not None:
            return {**row, **failed_fields(finished.error or _no_result(source))}
        return {**row, **result_fields(finished.transcript)}

    def _begin(self, source: Source, deaths: int) -> Future[Outcome]:
        """Have a recording transcribed, after this many processes have died over it."""
        future: Future[Outcome] = Future()
        if deaths >= MAX_DEATHS:
            future.set_result(Outcome(source.path, error=crash_error(source.path)))
        elif deaths:
            self._suspects.put((source, future))
        else:
            with self._lock:
                if self._error is not None:
                    raise self._error
                known = source.path in self._waiting
                self._waiting.setdefault(source.path, []).append(future)
            if not known:
                self._read(self.worker.exchange([source]))
        return future

    def _mark(self, what: str, *args: str) -> int:
        """Call the marks. Where they are lost, with their machine, nothing is known of deaths."""
        if self._marks is None:
            return 0
        method = getattr(self._marks, what)
        if isinstance(self._marks, Marks):
            return int(method(*args))
        import ray

        try:
            return int(ray.get(method.remote(*args)))
        except ray.exceptions.RayError:
            return 0

    def _try_suspects(self) -> None:
        """Transcribe suspects in children, as many in one as wait and as it survives."""
        while True:
            waiting = [self._suspects.get()]
            while not self._suspects.empty():
                waiting.append(self._suspects.get())
            while waiting:
                waiting = self._try_in_child(waiting)

    def _try_in_child(
        self, waiting: list[tuple[Source, Future[Outcome]]]
    ) -> list[tuple[Source, Future[Outcome]]]:
        """Try the suspects in turn. Returns those that have no result yet."""
        begun: str | None = None

        def heard(told: str | Outcome) -> None:
            nonlocal begun, waiting
            if isinstance(told, str):
                begun = told
            else:
                (_, future), *waiting = waiting
                future.set_result(told)

        error: ForescribeError | None = None
        try:
            in_child(transcribe_each, self.order, [source for source, _ in waiting], heard=heard)
        except ChildDied as died:
            if begun is None:
                error = CapacityError(f"{NO_CHILD}: {died}; there may be too little memory")
            elif self._mark("died", begun) >= MAX_CRASHES:
                heard(Outcome(begun, error=crash_error(begun)))
        except Exception as failed:
            error = failed if isinstance(failed, ForescribeError) else ForescribeError(str(failed))
        if error is not None:
            for source, _ in list(waiting):
                heard(Outcome(source.path, error=error))
        return waiting

    def _listen(self) -> None:
        while self._error is None:
            self._read(self.worker.exchange((), POLL_S))

    def _read(self, report: Report) -> None:
        if report.broken is not None:
            os._exit(BROKEN)  # Ray starts the next one
        with self._lock:
            ended = [
                (future, each)
                for each in report.finished
                for future in self._waiting.pop(each.name)
            ]
            if report.error is not None:
                self._error = report.error
            left = [future for each in self._waiting.values() for future in each]
        for future, finished in ended:
            future.set_result(finished)
        if self._error is not None:
            for future in left:
                if not future.done():
                    future.set_exception(self._error)


class Marks:
    """What each actor has begun, and how many processes have died over each recording."""

    def __init__(self) -> None:
        self._begun: dict[
            str, tuple[str, set[str]]
        ] = {}  # by actor: its process, and its recordings
        self._deaths: Counter[str] = Counter()

    def begin(self, actor: str, process: str, path: str) -> int:
        """A process begins a recording. What an earlier process of the actor has left is charged for its
        death. Returns the deaths over the recording."""
        before, begun = self._begun.get(actor, (process, set()))
        if before != process:
            self._deaths.update(begun)
            begun = set()
        begun.add(path)
        self._begun[actor] = process, begun
        return self._deaths[path]

    def end(self, actor: str, path: str) -> int:
        """A recording has ended."""
        self._begun[actor][1].discard(path)
        return self._deaths[path]

    def died(self, path: str) -> int:
        """A child has died over a recording. Returns the deaths over it."""
        self._deaths[path] += 1
        return self._deaths[path]


def transcribe_each(begin: Begin, order: WorkOrder, sources: Sequence[Source]) -> None:
    """Transcribe recordings one after the other, in a child: tells the path of each and its result."""
    from .worker import prepared_worker

    try:
        worker = prepared_worker(order)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise CapacityError(f"{NO_CHILD}: there is no memory for a second model") from error
    for source in sources:
        begin(source.path)
        report = worker.exchange([source], POLL_S)
        while not report.finished:
            if report.error is not None:
                raise report.error
            if report.broken is not None:
                os._exit(BROKEN)
            report = worker.exchange((), POLL_S)
        begin(report.finished[0])


def _own_actor() -> str:
    """The name of this actor, which a process that is started in its place has, too."""
    ray = sys.modules.get("ray")  # loaded already, where this is an actor
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().get_actor_id())


def source_of(path: Any, column: str) -> Source | ForescribeError:
    """The recording of a row, or the error of one that names none."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        return UsageError(f"the column {column!r} holds no path")
    try:
        if is_url(str(path)):
            location = Location.parse(str(path))
            return Source(location.identity, location=location)
    except ForescribeError as error:
        return error
    return Source(str(Path(path)))


def result_fields(transcript: Transcript) -> Row:
    """The columns of a transcript."""
    return {
        "text": transcript.text,
        "language": transcript.language,
        "audio_s": transcript.duration,
        "transcript": json.dumps(transcript.to_dict(), ensure_ascii=False),
        "code": None,
        "message": None,
    }


def failed_fields(error: ForescribeError) -> Row:
    """The columns of a recording that has failed; the same as of a transcript, so that blocks agree."""
    empty = dict.fromkeys(("text", "language", "audio_s", "transcript"))
    return {**empty, "code": error.code, "message": error.message}


def _no_result(source: Source) -> ForescribeError:
    return AudioError(f"{source.path}: ended without a transcript", code="internal_error")
