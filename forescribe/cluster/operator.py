"""Transcription on Ray: an operator of Ray Data, and the workers behind `forescribe transcribe --cluster`.

    from forescribe.ray import transcribe

    paths = ray.data.from_items([{"path": "s3://calls/a.mp3"}, {"path": "/mnt/calls/b.mp3"}])
    transcribe(paths, model="large", diarize=True).write_parquet("s3://out/2026")

The rows of the operator are paths; results and errors come back as rows, and it writes no files and no
records. An actor is asynchronous: several rows are in work at a time and share one engine, which a call per
batch of rows would let run empty at the end of each. The command finds recordings, and subtracts and counts
them as on one machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.asr.errors import AudioError, ForescribeError, UsageError
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Location, is_url

from .order import order_of, order_of_options
from .results import RunResults
from .worker import Finished, Report

if TYPE_CHECKING:
    from ray.data import Dataset

    from forescribe.asr.batch.batch import Batch, MakeTranscriber
    from forescribe.asr.decode.options import Options
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.speculative.stats import Stats

    from ..cli.console import Console
    from ..cli.transcribe_options import TranscribeOptions
    from .cluster_transcriber import ClusterTranscriber

Row = dict[str, Any]

Decoder = tuple["MakeTranscriber", "Options", Callable[[], "Stats | None"]]

RETRIES = 3
"""Restarts of an actor, and attempts of a row that has cost one. Ray Data's own default is without end."""

AHEAD = 2
"""Rows that an actor holds for each row of its engine."""

POLL_S = 1.0
BROKEN = 70
"""Exit status of an actor whose device does not answer any more, as of the service."""


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
    from ray.data import ActorPoolStrategy

    order_of_options(options)  # here, not in an actor
    if num_gpus is None and resources is None and options.get("device", "auto") != "cpu":
        import ray

        num_gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else None
    rows = AHEAD * int(options.get("batch_size", 8))
    size = {"size": workers} if workers else {"min_size": 1}
    given: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources}
    return dataset.repartition(target_num_rows_per_block=1).map(
        Transcribe,
        fn_constructor_kwargs={"path_column": path_column, **options},
        compute=ActorPoolStrategy(
            **size, max_tasks_in_flight_per_actor=2 * rows, max_concurrent_calls_per_actor=rows
        ),
        max_restarts=RETRIES,
        max_task_retries=RETRIES,
        **{name: value for name, value in given.items() if value is not None},
    )


class Transcribe:
    """The operator: `dataset.map(Transcribe, fn_constructor_kwargs={"model": "large"}, ...)`; `transcribe`
    passes the arguments that keep its engine full and its failures finite.

    A row keeps its columns and gets `text`, `language`, `audio_s`, `transcript` (JSON, as `-f json` writes
    it), and, where a recording fails, `code` and `message` instead.
    """

    def __init__(self, *, path_column: str = "path", **options: Any) -> None:
        from .worker import prepared_worker

        self.path_column = path_column
        self.worker = prepared_worker(order_of_options(options))
        self._waiting: dict[str, list[Future[Finished]]] = {}  # by path: of all rows that name it
        self._lock = threading.Lock()
        self._error: Exception | None = None
        threading.Thread(target=self._listen, name="reports", daemon=True).start()

    async def __call__(self, row: Row) -> Row:
        """Raises what every row would fail with, such as a language that the model does not have."""
        source = source_of(row.get(self.path_column), self.path_column)
        if isinstance(source, ForescribeError):
            return {**row, **failed_fields(source)}
        future: Future[Finished] = Future()
        with self._lock:
            if self._error is not None:
                raise self._error
            known = source.path in self._waiting
            self._waiting.setdefault(source.path, []).append(future)
        if not known:
            self._read(self.worker.exchange([source]))
        finished = await asyncio.wrap_future(future)
        if finished.transcript is None or finished.error is not None:
            return {**row, **failed_fields(finished.error or _no_result(source))}
        return {**row, **result_fields(finished.transcript)}

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
                for future in self._waiting.pop(each.path)
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


def cluster_decoder(options: TranscribeOptions, batch: Batch, console: Console) -> Decoder:
    """What `Batch.run` needs, on a cluster. Raises UsageError for an address or recordings that cannot be
    used; Ray is started or connected with the first recording."""
    from .cluster_transcriber import ClusterTranscriber
    from .ray_connection import check_address, require_ray
    from .ray_fleet import RayFleet

    assert options.cluster is not None
    check_address(options.cluster)
    require_ray()
    order = order_of(options, [source for source in batch.todo if source.error is None])
    results = RunResults.of(batch.outputs, batch.settings, whole=options.report is not None)
    made: list[ClusterTranscriber] = []

    def make(size: int) -> ClusterTranscriber:
        fleet = RayFleet(
            str(options.cluster),
            device=options.device,
            workers=options.workers,
            threads=options.threads,
            status=console.status,
        )
        made[:] = [
            ClusterTranscriber(
                fleet,
                order,
                [source for source in batch.todo if source.error is None],
                results=results,
                notice=console.notice,
                status=console.status,
            )
        ]
        return made[0]

    return make, order.options, lambda: made[0].stats() if made else None


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
