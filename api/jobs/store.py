"""The job store: a database and a blob folder, opened together, with one object for each table.

    store = Store.open(folder)
    with store.transaction() as tx:          # the engine's queue is in the same database
        store.jobs.insert(tx, new)
        engine.enqueue(tx, item)

Every write of a run is bound to its number, so that a run that was cancelled or replaced writes nothing. Does
not know workflows, HTTP or what blobs hold.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from forescribe.asr.errors import OutputError, StorageError

from ..errors import ApiError
from .blobs import Blobs, BlobStore
from .database import Database, Place, Turns, Tx, not_before, one_page
from .references import References
from .tables import (
    ENDED,
    ENTRIES,
    EXPOSED,
    JOBS,
    KEYS,
    REFERENCES,
    UNFINISHED,
    WORKERS,
    Callback,
    CallbackState,
    EntryKind,
    Job,
    Kind,
    LogEntry,
    NewJob,
    State,
    bounded,
    bounded_options,
    bounded_warnings,
    item_prefix,
    record_of,
)


class Store:
    """One object for each table, over one database and one blob store."""

    def __init__(
        self, database: Database, blobs: BlobStore, clock: Callable[[], float] = time.time
    ) -> None:
        self.database, self.blobs, self.clock = database, blobs, clock
        self.log = EventLog(database)
        self.crashes = CrashRecords(database)
        self.jobs = JobTable(database, self.log, self.crashes, self.now)
        self.references = References(database, blobs)
        self.keys = IdempotencyKeys(database, self.now)
        self.heartbeats = Heartbeats(database, blobs.place)
        self.turns = Turns(database)

    @classmethod
    def open(cls, folder: Path, url: str | None = None, blobs: BlobStore | None = None) -> Store:
        """The store in a folder, with its own SQLite database or the one at `url`, and its own blobs or
        others. Raises UsageError, CapacityError."""
        database = Database.open(url or f"sqlite:///{folder / 'jobs.db'}")
        return cls(database, blobs or Blobs(folder / "blobs"))

    def now(self) -> float:
        """Unix seconds."""
        return self.clock()

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction. Raises OutputError if the database's disk is full or read-only."""
        return self.database.transaction()

    def writable(self) -> bool:
        """Whether a row can be committed and a blob written."""
        try:
            self.heartbeats.probe()
            self.blobs.probe()
            return True
        except (DBAPIError, OutputError, StorageError):
            return False

    def erase(self, id: str) -> None:
        """Delete all rows of a job, and the blobs that only this job refers to. SQLite's log has them until
        `Database.truncate_log`."""
        deletions = [
            sa.delete(table).where(table.c.job == id) for table in (ENTRIES, KEYS, EXPOSED)
        ]
        self.references.drop_all(id, *deletions, sa.delete(JOBS).where(JOBS.c.id == id))

    def close(self) -> None:
        self.blobs.close()
        self.database.close()


class JobTable:
    """The rows of jobs in one database: reading, and the transitions between their states. `now` gives the
    time in Unix seconds."""

    def __init__(
        self, database: Database, log: EventLog, crashes: CrashRecords, now: Callable[[], float]
    ) -> None:
        self._database, self._log, self._crashes, self._now = database, log, crashes, now

    # -- reading ----------------------------------------------------------------------------------

    def get(self, id: str, owner: str | None = None) -> Job | None:
        """The job; None if it does not exist or belongs to another owner."""
        with self._database.engine.connect() as tx:
            return self._select(tx, id, owner)

    def page(
        self, owner: str, limit: int, after: Place | None = None, state: str | None = None
    ) -> tuple[list[Job], bool]:
        """Up to `limit` jobs, the latest first, behind a place; and whether there are more."""
        query = sa.select(JOBS).where(JOBS.c.tenant == owner)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        with self._database.engine.connect() as tx:
            jobs = [_job(row) for row in tx.execute(one_page(query, JOBS, after, limit))]
        return jobs[:limit], len(jobs) > limit

    def unfinished_runs(self) -> sa.Select[str]:
        """The query of the work ids (`api.jobs.tables.run_item`) of queued and running jobs of all owners."""
        id = JOBS.c.id + item_prefix("") + sa.cast(JOBS.c.run, sa.String)
        return sa.select(id.label("id")).where(JOBS.c.state.in_(UNFINISHED))

    def oldest(self) -> float | None:
        """When the oldest unfinished job was created; None without one."""
        query = sa.select(sa.func.min(JOBS.c.created_at)).where(JOBS.c.state.in_(UNFINISHED))
        with self._database.engine.connect() as tx:
            created_at: float | None = tx.execute(query).scalar_one()
        return created_at

    def backlog(self, owner: str | None = None) -> tuple[int, float]:
        """The number of unfinished jobs, and their remaining seconds of audio."""
        left_s = JOBS.c.total_s - JOBS.c.done_s
        query = sa.select(
            sa.func.count(), sa.func.sum(sa.case((left_s > 0.0, left_s), else_=0.0))
        ).where(JOBS.c.state.in_(UNFINISHED))
        if owner is not None:
            query = query.where(JOBS.c.tenant == owner)
        with self._database.engine.connect() as tx:
            count, seconds = tx.execute(query).one()
        return count, seconds or 0.0

    def ended_before(self, when: float) -> list[str]:
        query = sa.select(JOBS.c.id).where(JOBS.c.state.in_(ENDED), JOBS.c.finished_at < when)
        with self._database.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    def with_audio_succeeded_before(self, when: float) -> list[str]:
        """Jobs that succeeded before `when` and still have their audio."""
        query = (
            sa.select(JOBS.c.id)
            .join(REFERENCES, (REFERENCES.c.job == JOBS.c.id) & (REFERENCES.c.role == "audio"))
            .where(JOBS.c.state == "succeeded", JOBS.c.finished_at < when)
        )
        with self._database.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    # -- transitions ------------------------------------------------------------------------------

    def insert(self, tx: Tx, new: NewJob) -> Job:
        callback = new.callback
        tx.execute(
            sa.insert(JOBS).values(
                id=new.id,
                tenant=new.owner,
                state="queued",
                run=1,
                kind="transcribe",
                label=new.label,
                created_at=self._now(),
                total_s=new.total_s,
                done_s=0.0,
                options=json.dumps(bounded_options(new.options)),
                hook_url=callback and callback.url,
                hook_secret=callback and callback.secret,
                hook_state=callback and callback.state,
                hook_tries=0,
                crashes=0,
            )
        )
        return self._enter(tx, new.id, "queued")

    def current(self, tx: Tx, id: str, run: int) -> Job | None:
        """The job, locked, if this run may still write; else None."""
        query = sa.select(JOBS).where(JOBS.c.id == id, JOBS.c.run == run).with_for_update()
        row = tx.execute(query).one_or_none()
        job = None if row is None else _job(row)
        return None if job is None or job.ended else job

    def locked(self, tx: Tx, id: str) -> Job | None:
        """The job in any state, locked; None if it has been erased."""
        row = tx.execute(sa.select(JOBS).where(JOBS.c.id == id).with_for_update()).one_or_none()
        return None if row is None else _job(row)

    def start(self, tx: Tx, id: str, run: int) -> Job | None:
        """Mark the job as running and return it as it was before; None if the run is not current."""
        job = self.current(tx, id, run)
        if job is not None and job.state == "queued":
            started_at = not_before(tx, self._now(), JOBS.c.created_at)
            self._enter(tx, id, "running", started_at=started_at)
        return job

    def end(self, tx: Tx, id: str, state: State, error: tuple[str, str] | None = None) -> Job:
        """End the job. Only a new run opens it again."""
        code, message = error or (None, None)
        message = message and bounded(message)
        finished_at = not_before(tx, self._now(), JOBS.c.created_at, JOBS.c.started_at)
        return self._enter(
            tx, id, state, finished_at=finished_at, error_code=code, error_message=message
        )

    def new_run(self, tx: Tx, id: str, kind: Kind) -> Job:
        """Queue an ended job again."""
        job = self._required(tx, id)
        assert job.ended
        self._crashes.clear(tx, id)
        values: dict[str, Any] = {"run": job.run + 1, "kind": kind}
        if job.callback is not None:
            values |= {"hook_state": "pending", "hook_tries": 0}
        cleared = dict.fromkeys(("started_at", "finished_at", "error_code", "error_message"))
        return self._enter(tx, id, "queued", **values, **cleared)

    def restart(self, tx: Tx, id: str) -> Job:
        """Queue an unfinished job as a new run. Counts as a crash, so that a job cannot restart forever
        without progress."""
        return self._enter(tx, id, "queued", run=JOBS.c.run + 1, crashes=JOBS.c.crashes + 1)

    # -- single values ----------------------------------------------------------------------------

    def set_progress(self, tx: Tx, id: str, done_s: float) -> None:
        """Record how many seconds of audio are done."""
        self._update(tx, id, done_s=done_s)
        self._log.append(tx, id, "progress", {"done_s": round(done_s, 3)})
        self._crashes.clear(tx, id)

    def set_warnings(self, tx: Tx, id: str, warnings: Sequence[Mapping[str, Any]]) -> None:
        """Replace the warnings: the first of those of the transcript."""
        text = json.dumps(bounded_warnings(warnings)) if warnings else None
        self._update(tx, id, warnings=text)

    def set_callback(self, tx: Tx, id: str, state: CallbackState, tries: int) -> None:
        """Record the result of a delivery attempt."""
        self._update(tx, id, hook_state=state, hook_tries=tries)

    def set_options(self, tx: Tx, id: str, options: Mapping[str, Any]) -> None:
        """Replace the options for the next run."""
        self._update(tx, id, options=json.dumps(dict(options)))

    def _enter(self, tx: Tx, id: str, state: State, **values: Any) -> Job:
        """Set the state and log the transition."""
        self._update(tx, id, state=state, **values)
        self._log.append(tx, id, "state", {"state": state})
        return self._required(tx, id)

    def _update(self, tx: Tx, id: str, **values: Any) -> None:
        tx.execute(sa.update(JOBS).where(JOBS.c.id == id).values(**values))

    def _select(self, tx: Tx, id: str, owner: str | None = None) -> Job | None:
        query = sa.select(JOBS).where(JOBS.c.id == id)
        if owner is not None:
            query = query.where(JOBS.c.tenant == owner)
        row = tx.execute(query).one_or_none()
        return None if row is None else _job(row)

    def _required(self, tx: Tx, id: str) -> Job:
        job = self._select(tx, id)
        assert job is not None
        return job


class EventLog:
    """The logs of all jobs of one database: numbered entries for states, progress and segments, which
    clients can follow."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, tx: Tx, job: str, kind: EntryKind, data: Mapping[str, Any]) -> None:
        last = tx.execute(sa.select(sa.func.max(ENTRIES.c.n)).where(ENTRIES.c.job == job)).scalar()
        n = 1 if last is None else last + 1
        tx.execute(sa.insert(ENTRIES).values(job=job, n=n, kind=kind, data=json.dumps(dict(data))))

    def entries(self, job: str, after: int = 0) -> list[LogEntry]:
        """The entries numbered above `after`, in order."""
        query = sa.select(ENTRIES).where(ENTRIES.c.job == job, ENTRIES.c.n > after)
        with self._database.engine.connect() as tx:
            rows = tx.execute(query.order_by(ENTRIES.c.n))
            return [LogEntry(row.n, row.kind, json.loads(row.data)) for row in rows]

    def last_segment(self, tx: Tx, job: str) -> Mapping[str, Any] | None:
        """The data of the latest entry of kind `segment`."""
        query = sa.select(ENTRIES.c.data).where(ENTRIES.c.job == job, ENTRIES.c.kind == "segment")
        data = tx.execute(query.order_by(ENTRIES.c.n.desc()).limit(1)).scalar()
        return None if data is None else cast(Mapping[str, Any], json.loads(data))


class CrashRecords:
    """The exposed jobs of all processes of one database, with the deaths that each has seen.

    A job is *exposed* while its work runs in code that can take the process down. The rows are committed
    before that work begins, so they outlive the process. `api.jobs.suspects` decides when.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def deaths(self, job: str) -> int:
        """Processes that died while this job was exposed, since it last progressed."""
        query = sa.select(EXPOSED.c.deaths).where(EXPOSED.c.job == job)
        with self._database.engine.connect() as tx:
            return tx.execute(query).scalar_one_or_none() or 0

    def expose(self, executor: str, job: str) -> None:
        """Record that a job's work is about to begin."""
        with self._database.transaction() as tx:
            updated = tx.execute(
                sa.update(EXPOSED).where(EXPOSED.c.job == job).values(executor=executor)
            )
            if not updated.rowcount:
                tx.execute(sa.insert(EXPOSED).values(job=job, executor=executor, deaths=0))

    def withdraw(self, executor: str, job: str) -> None:
        """Record that a job's work has left the process."""
        with self._database.transaction() as tx:
            self._remove(tx, (EXPOSED.c.executor == executor) & (EXPOSED.c.job == job))

    def keep_only(self, executor: str, jobs: frozenset[str]) -> None:
        """Withdraw all jobs of the process but these."""
        with self._database.transaction() as tx:
            self._remove(tx, (EXPOSED.c.executor == executor) & EXPOSED.c.job.not_in(jobs))

    def count_deaths(self, living: Iterable[str | None]) -> list[tuple[str, int]]:
        """Count the deaths of all other processes. Returns the jobs that were exposed, with their deaths so
        far."""
        dead = EXPOSED.c.executor.is_not(None) & EXPOSED.c.executor.not_in(list(living))
        update = sa.update(EXPOSED).where(dead).values(executor=None, deaths=EXPOSED.c.deaths + 1)
        with self._database.transaction() as tx:
            rows = tx.execute(update.returning(EXPOSED.c.job, EXPOSED.c.deaths)).all()
        return sorted((row.job, row.deaths) for row in rows)

    def count_crash(self, job: str) -> int:
        """Count the death of a process in which only this job was. Returns their number, since it last
        progressed."""
        update = sa.update(JOBS).where(JOBS.c.id == job).values(crashes=JOBS.c.crashes + 1)
        with self._database.transaction() as tx:
            crashes = tx.execute(update.returning(JOBS.c.crashes)).scalar_one_or_none()
        return crashes or 0

    def clear(self, tx: Tx, job: str) -> None:
        """Forget the deaths of a job that has progressed: it did not cause them."""
        tx.execute(sa.update(JOBS).where(JOBS.c.id == job).values(crashes=0))
        tx.execute(sa.update(EXPOSED).where(EXPOSED.c.job == job).values(deaths=0))

    def _remove(self, tx: Tx, which: sa.ColumnElement[bool]) -> None:
        tx.execute(sa.delete(EXPOSED).where(which, EXPOSED.c.deaths == 0))
        tx.execute(sa.update(EXPOSED).where(which).values(executor=None))


class IdempotencyKeys:
    """Which job or batch a client's key has created, in one database; `now` gives the time in Unix seconds. A
    fingerprint of the request tells whether it is the same."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database, self._now = database, now

    def get(self, owner: str, key: str, fingerprint: str) -> str | None:
        """The id that a key has created; None if it is new. Raises ApiError `idempotency_key_reused` if it
        was used for another request."""
        query = sa.select(KEYS).where(KEYS.c.tenant == owner, KEYS.c.key == key)
        with self._database.engine.connect() as tx:
            row = tx.execute(query).one_or_none()
        if row is not None and row.fingerprint != fingerprint:
            text = "this Idempotency-Key was used for another request before"
            raise ApiError("idempotency_key_reused", text)
        return None if row is None else str(row.job)

    def insert(self, tx: Tx, owner: str, key: str, fingerprint: str, job: str) -> None:
        """Raises IntegrityError if the owner has used the key before."""
        row = {"key": key, "fingerprint": fingerprint, "job": job, "created_at": self._now()}
        tx.execute(sa.insert(KEYS).values(tenant=owner, **row))

    def delete_before(self, when: float) -> None:
        with self._database.transaction() as tx:
            tx.execute(sa.delete(KEYS).where(KEYS.c.created_at < when))


class Heartbeats:
    """One row for each live process (executor) of a database, with the work that it is doing. A beat is a
    counter: its readers measure by their own clocks. `place` tells where this process has its blobs."""

    def __init__(self, database: Database, place: str | None = None) -> None:
        self._database, self.place = database, place

    def beat(self, executor: str, work: Iterable[str]) -> None:
        """Increment the counter and record the ids of the work in progress."""
        text = json.dumps(sorted(work))
        with self._database.transaction() as tx:
            updated = tx.execute(
                sa.update(WORKERS)
                .where(WORKERS.c.executor == executor)
                .values(beat=WORKERS.c.beat + 1, work=text, place=self.place)
            )
            if not updated.rowcount:
                row = {"executor": executor, "beat": 1, "work": text, "place": self.place}
                tx.execute(sa.insert(WORKERS).values(**row))

    def all(self) -> dict[str, tuple[int, frozenset[str]]]:
        """Each executor's counter and work ids."""
        with self._database.engine.connect() as tx:
            rows = tx.execute(sa.select(WORKERS))
            return {row.executor: (row.beat, frozenset(json.loads(row.work))) for row in rows}

    def elsewhere(self) -> dict[str, int]:
        """The counters of executors whose blobs are at another place than this process's."""
        query = sa.select(WORKERS.c.executor, WORKERS.c.beat).where(WORKERS.c.place != self.place)
        with self._database.engine.connect() as tx:
            return {row.executor: row.beat for row in tx.execute(query)}

    def delete(self, executor: str) -> None:
        with self._database.transaction() as tx:
            tx.execute(sa.delete(WORKERS).where(WORKERS.c.executor == executor))

    def probe(self) -> None:
        """Commit a row and its deletion. Raises OutputError or DBAPIError if nothing can be written."""
        executor = f"probe-{uuid4().hex}"
        with self._database.transaction() as tx:
            tx.execute(sa.insert(WORKERS).values(executor=executor, beat=0, work="[]"))
            tx.execute(sa.delete(WORKERS).where(WORKERS.c.executor == executor))


def _job(row: Any) -> Job:
    error = (row.error_code, row.error_message) if row.error_code else None
    callback = None
    if row.hook_url:
        callback = Callback(row.hook_url, row.hook_secret, row.hook_state, row.hook_tries)
    # Rows of earlier versions have no bound.
    return record_of(
        Job,
        row,
        label=row.label and bounded(row.label),
        options=bounded_options(json.loads(row.options)),
        error=error,
        callback=callback,
        warnings=tuple(bounded_warnings(json.loads(row.warnings))) if row.warnings else (),
    )
