"""The engine that survives: DBOS, embedded. The one module that knows it.

Its tables are in the same database as ours, so a job's row and its place in the queue are committed
together or not at all. What DBOS leaves to others (dead workers' work) is in `reconciler`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions

from ..records import Work, prefix
from .workflow_engine import Pending, Play

NAME = "forescribe"
VERSION = "jobs-1"
"""Of the plays; DBOS lets nobody take up work of another. A constant, since by default any edit of their
source would make a new one. It changes with the order of a play's steps or the sense of their answers,
and then `adopt` brings over what is queued."""

QUEUES: Mapping[str, str] = {"transcribe": "jobs", "diarize": "jobs", "webhook": "webhooks"}
CALLBACKS = 16
"""Callbacks that may be under way at a time: a receiver that hangs holds one of them for 20 s."""

PIECE = 1000
"""Values in a statement: SQLite takes 32,766."""

POLL_S = 0.2
PRIORITY = 5
"""A row without any would be ahead of all others."""

_plays: Mapping[str, Play] = {}
_steps: Callable[..., Any] | None = None
_running: set[str] = set()
_lock = threading.Lock()


def _run(kind: str, *args: str | int) -> None:
    """A play, its steps recorded."""
    id = DBOS.workflow_id
    assert id is not None

    def call(step: str, *args: str | int) -> Any:
        assert _steps is not None
        return DBOS.run_step({"name": step}, _steps, step, *args)

    with _lock:
        _running.add(id)
    try:
        _plays[kind](call, *args)
    finally:
        with _lock:
            _running.discard(id)


# By name, so that moving a function does not rename it in the database. Ours are the tries: a process
# that dies with a job is counted in the job's row.
@DBOS.workflow(name="transcribe", max_recovery_attempts=None)
def _transcribe(job: str, run: int) -> None:
    _run("transcribe", job, run)


@DBOS.workflow(name="diarize", max_recovery_attempts=None)
def _diarize(job: str, run: int) -> None:
    _run("diarize", job, run)


@DBOS.workflow(name="webhook", max_recovery_attempts=None)
def _webhook(job: str, run: int, number: int) -> None:
    _run("webhook", job, run, number)


class Durable:
    """DBOS over an engine of SQLAlchemy. One at a time in a process: DBOS itself is global."""

    def __init__(self, engine: sa.Engine, *, concurrency: int) -> None:
        self.engine, self.concurrency = engine, concurrency
        self.executor = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._client: DBOSClient | None = None

    def start(self, steps: Callable[..., Any], plays: Mapping[str, Play]) -> None:
        global _steps, _plays
        _steps, _plays = steps, plays
        DBOS(
            config={
                "name": NAME,
                "system_database_url": self.engine.url.render_as_string(hide_password=False),
                "system_database_engine": self.engine,
                "executor_id": self.executor,  # "local" would take other processes' work
                "application_version": VERSION,
                "serializer": DBOSPortableJSONSerializer(),  # not pickle: rows are no programs
                "log_level": "CRITICAL",  # cancelling is no fault, and our steps tell of theirs
            }
        )
        DBOS.listen_queues(sorted(set(QUEUES.values())))
        DBOS.launch()
        self._client = DBOSClient(
            system_database_engine=self.engine,
            serializer=DBOSPortableJSONSerializer(),
            application_name=NAME,
        )
        for queue, most in (("jobs", self.concurrency), ("webhooks", CALLBACKS)):
            DBOS.register_queue(queue, worker_concurrency=most, polling_interval_sec=POLL_S)

    def enqueue(self, tx: sa.Connection, work: Work) -> None:
        options: EnqueueOptions = {
            "workflow_name": work.kind,
            "queue_name": QUEUES[work.kind],
            "workflow_id": work.id,
            "priority": PRIORITY,
            "app_version": VERSION,
        }
        if work.delay_s:
            options["delay_seconds"] = work.delay_s
        self._open().enqueue_in_transaction(tx, options, *work.args)

    def cancel(self, id: str) -> None:
        if self._list(workflow_ids=[id]):
            self._open().cancel_workflow(id)

    def forget(self, job: str) -> None:
        ids = [row.workflow_id for row in self._list(workflow_id_prefix=prefix(job))]
        if ids:
            self._open().cancel_workflows(ids)
            self._open().delete_workflows(ids)

    def pending(self) -> list[Pending]:
        rows = self._list(status="PENDING")
        return [Pending(row.workflow_id, row.executor_id) for row in rows]

    def running(self) -> frozenset[str]:
        with _lock:
            return frozenset(_running)

    def broken(self, ids: Sequence[str]) -> frozenset[str]:
        if not ids:
            return frozenset()
        rows = {row.workflow_id: row.status for row in self._list(workflow_ids=list(ids))}
        alive = ("PENDING", "ENQUEUED", "DELAYED")
        return frozenset(id for id in ids if rows.get(id) not in alive)

    def resume(self, id: str) -> None:
        rows = self._list(workflow_ids=[id])
        for row in rows:  # without its queue's name it would escape the queue's limit
            self._open().resume_workflow(id, queue_name=QUEUES[row.name])

    def adopt(self) -> int:
        """DBOS has no way to say it, so these are its tables: tests/api/jobs/test_engines.py holds them."""
        schema = None if self.engine.dialect.name == "sqlite" else "dbos"
        names = ("workflow_uuid", "status", "name", "application_version")
        work = sa.table("workflow_status", *map(sa.column, names), schema=schema)
        answers = sa.table("operation_outputs", sa.column("workflow_uuid"), schema=schema)
        foreign = (
            work.c.status.in_(("ENQUEUED", "DELAYED"))
            & (work.c.application_version != VERSION)
            & work.c.name.in_(QUEUES)
        )
        with self.engine.begin() as tx:
            ours = sa.update(work).where(foreign).values(application_version=VERSION)
            ids = list(tx.execute(ours.returning(work.c.workflow_uuid)).scalars())
            for at in range(0, len(ids), PIECE):
                some = answers.c.workflow_uuid.in_(ids[at : at + PIECE])
                tx.execute(sa.delete(answers).where(some))
        return len(ids)

    def stop(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.destroy()
            self._client = None

    def _open(self) -> DBOSClient:
        assert self._client is not None, "the engine has not been started"
        return self._client

    def _list(self, **which: Any) -> list[Any]:
        return self._open().list_workflows(load_input=False, load_output=False, **which)
