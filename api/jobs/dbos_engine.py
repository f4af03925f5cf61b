"""The durable engine: DBOS, embedded. The only module that knows it.

DBOS's tables are in the same database as the jobs, so a job's row and its place in the queue are committed
together. DBOS does not detect the work of dead processes; `api.jobs.recovery` does.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions

from .tables import WorkItem, item_prefix
from .workflows import Pending, Workflow

NAME = "forescribe"
VERSION = "jobs-1"
"""The version of the workflows; DBOS does not run work of another version. It is a constant, because by
default every edit of the source makes a new version. Change it with the order of a workflow's steps or the
meaning of their answers; `adopt` then takes over what is queued."""

QUEUES: Mapping[str, str] = {"transcribe": "jobs", "diarize": "jobs", "webhook": "webhooks"}
ALL_QUEUES = ("jobs", "webhooks")
WEBHOOKS = ("webhooks",)
CALLBACKS = 16
"""Concurrent callbacks: a receiver that hangs occupies one of them for 20 s."""

QUEUED = ("ENQUEUED", "DELAYED")
"""DBOS's states of work that no process has begun."""

VALUES_PER_STATEMENT = 1000
"""SQLite accepts 32,766."""

POLL_S = 0.2
PRIORITY = 5
"""A row without a priority would come before all others."""

_workflows: Mapping[str, Workflow] = {}
_steps: Callable[..., Any] | None = None
_running: Counter[str] = Counter()
"""Executions by id: DBOS runs a workflow again that was resumed, beside one that has not noticed yet."""

_lock = threading.Lock()


def _run(kind: str, *args: str | int) -> None:
    """Run a workflow with recorded steps."""
    id = DBOS.workflow_id
    assert id is not None

    def call(step: str, *args: str | int) -> Any:
        assert _steps is not None
        return DBOS.run_step({"name": step}, _steps, step, *args)

    with _lock:
        _running[id] += 1
    try:
        _workflows[kind](call, *args)
    finally:
        with _lock:
            _running[id] -= 1
            if not _running[id]:
                del _running[id]


# The names are explicit, so that moving a function does not rename it in the database. DBOS does not
# limit the attempts: the job's row counts the processes that died with it.
@DBOS.workflow(name="transcribe", max_recovery_attempts=None)
def _transcribe(job: str, run: int) -> None:
    _run("transcribe", job, run)


@DBOS.workflow(name="diarize", max_recovery_attempts=None)
def _diarize(job: str, run: int) -> None:
    _run("diarize", job, run)


@DBOS.workflow(name="webhook", max_recovery_attempts=None)
def _webhook(job: str, run: int, number: int) -> None:
    _run("webhook", job, run, number)


class DbosEngine:
    """DBOS over a SQLAlchemy engine, working on the `queues`. One at a time in a process: DBOS itself is
    global."""

    def __init__(
        self, engine: sa.Engine, *, concurrency: int, queues: Sequence[str] = ALL_QUEUES
    ) -> None:
        self.engine, self.concurrency, self.queues = engine, concurrency, queues
        self.executor = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._client: DBOSClient | None = None

    def start(self, steps: Callable[..., Any], workflows: Mapping[str, Workflow]) -> None:
        global _steps, _workflows
        _steps, _workflows = steps, workflows
        DBOS(
            config={
                "name": NAME,
                "system_database_url": self.engine.url.render_as_string(hide_password=False),
                "system_database_engine": self.engine,
                "executor_id": self.executor,  # the default, "local", would take other processes' work
                "application_version": VERSION,
                "serializer": DBOSPortableJSONSerializer(),  # not pickle: rows must not execute code
                "log_level": "CRITICAL",  # cancelling is not an error, and the steps log theirs
            }
        )
        DBOS.listen_queues(list(self.queues))
        DBOS.launch()
        self._client = DBOSClient(
            system_database_engine=self.engine,
            serializer=DBOSPortableJSONSerializer(),
            application_name=NAME,
        )
        for queue, limit in (("jobs", self.concurrency), ("webhooks", CALLBACKS)):
            if queue in self.queues:
                DBOS.register_queue(queue, worker_concurrency=limit, polling_interval_sec=POLL_S)

    def enqueue(self, tx: sa.Connection, item: WorkItem) -> None:
        options: EnqueueOptions = {
            "workflow_name": item.kind,
            "queue_name": QUEUES[item.kind],
            "workflow_id": item.id,
            "priority": PRIORITY,
            "app_version": VERSION,
        }
        if item.delay_s:
            options["delay_seconds"] = item.delay_s
        self._open().enqueue_in_transaction(tx, options, *item.args)

    def cancel(self, id: str) -> None:
        if self._list(workflow_ids=[id]):
            self._open().cancel_workflow(id)

    def forget(self, job: str) -> None:
        ids = [row.workflow_id for row in self._list(workflow_id_prefix=item_prefix(job))]
        if ids:
            self._open().cancel_workflows(ids)
            self._open().delete_workflows(ids)

    def pending(self) -> list[Pending]:
        rows = self._list(status="PENDING")
        return [Pending(row.workflow_id, row.executor_id) for row in rows]

    def running(self) -> frozenset[str]:
        with _lock:
            return frozenset(_running)

    def broken(self, tx: sa.Connection, ids: sa.Select[str]) -> list[str]:
        """DBOS would list them all, so this reads DBOS's tables, as `adopt` does."""
        asked, work = ids.subquery(), self._work
        known = work.c.workflow_uuid == asked.c.id
        alive = sa.exists().where(known, work.c.status.in_(("PENDING", *QUEUED)))
        return list(tx.execute(sa.select(asked.c.id).where(~alive)).scalars())

    def resume(self, id: str, executor: str | None) -> None:
        rows = self._list(workflow_ids=[id], status="PENDING")
        for row in rows:  # without the queue's name it would bypass the queue's limit
            if row.executor_id == executor:
                self._open().resume_workflow(id, queue_name=QUEUES[row.name])

    def adopt(self) -> int:
        """DBOS has no function for this, so it works on DBOS's tables (tests/api/jobs/test_engines.py)."""
        work = self._work
        answers = sa.table("operation_outputs", sa.column("workflow_uuid"), schema=work.schema)
        foreign = (
            work.c.status.in_(QUEUED)
            & (work.c.application_version != VERSION)
            & work.c.name.in_(QUEUES)
        )
        with self.engine.begin() as tx:
            update = sa.update(work).where(foreign).values(application_version=VERSION)
            ids = list(tx.execute(update.returning(work.c.workflow_uuid)).scalars())
            for at in range(0, len(ids), VALUES_PER_STATEMENT):
                batch = answers.c.workflow_uuid.in_(ids[at : at + VALUES_PER_STATEMENT])
                tx.execute(sa.delete(answers).where(batch))
        return len(ids)

    def stop(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.destroy()
            self._client = None

    @property
    def _work(self) -> sa.TableClause:
        """DBOS's table of workflows, as far as it is used here."""
        names = ("workflow_uuid", "status", "name", "application_version")
        schema = None if self.engine.dialect.name == "sqlite" else "dbos"
        return sa.table("workflow_status", *map(sa.column, names), schema=schema)

    def _open(self) -> DBOSClient:
        assert self._client is not None, "the engine has not been started"
        return self._client

    def _list(self, **which: Any) -> list[Any]:
        return self._open().list_workflows(load_input=False, load_output=False, **which)
