"""The job store: a database and a blob folder, opened together, with one object for each table.

    store = Store.open(folder)
    with store.transaction() as tx:
        store.jobs.insert(tx, new)                      # a queued row is the queue
    job = store.jobs.claim("process 1", beside=())      # the next one, for `LEASE_S` unless it is renewed

A job that is worked on has a lease: the process that claimed it, and until when. Leases and callbacks are
measured by the database's clock, so no machine's clock matters. Every write of a run is bound to its `Claim`,
so that a run that was cancelled or replaced, or whose process was taken for dead, writes nothing. Does not
know HTTP or what blobs hold.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from forescribe.asr.errors import OutputError, StorageError

from ..errors import ApiError
from .blobs import Blobs, BlobStore
from .database import Database, Place, Tx, database_time, not_before, one_page
from .references import References
from .tables import (
    ENDED,
    ENTRIES,
    JOBS,
    KEYS,
    REFERENCES,
    UNFINISHED,
    Callback,
    CallbackState,
    Claim,
    EntryKind,
    Job,
    Kind,
    LogEntry,
    NewJob,
    State,
    bounded,
    bounded_options,
)

LEASE_S = 10.0
"""How long a process has a job unless it renews its lease."""

ALONE = 2
"""Deaths of its processes after which a job is done while its process does no other."""

MAX_CRASHES = 3
"""Deaths of its processes, without progress in between, after which a job fails."""


class Store:
    """One object for each table, over one database and one blob store."""

    def __init__(
        self, database: Database, blobs: BlobStore, clock: Callable[[], float] = time.time
    ) -> None:
        self.database, self.blobs, self.clock = database, blobs, clock
        self.log = EventLog(database)
        self.jobs = JobTable(database, self.log, self.now)
        self.references = References(database, blobs)
        self.keys = IdempotencyKeys(database, self.now)

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
            self.blobs.probe()
        except (OutputError, StorageError):
            return False
        return self.database.accepts_writes()

    def erase(self, id: str) -> None:
        """Delete all rows of a job, and the blobs that only this job refers to. SQLite's log has them until
        `Database.truncate_log`."""
        deletions = [sa.delete(table).where(table.c.job == id) for table in (ENTRIES, KEYS)]
        self.references.drop_all(id, *deletions, sa.delete(JOBS).where(JOBS.c.id == id))

    def close(self) -> None:
        self.blobs.close()
        self.database.close()


class JobTable:
    """The rows of jobs in one database: reading, the queue, and the transitions between their states. `now`
    gives the time in Unix seconds."""

    def __init__(self, database: Database, log: EventLog, now: Callable[[], float]) -> None:
        self._database, self._log, self._now = database, log, now

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
            jobs = [_job(row) for row in tx.execute(one_page(query, after, limit))]
        return jobs[:limit], len(jobs) > limit

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

    # -- the queue --------------------------------------------------------------------------------

    def claim(
        self, worker: str, *, beside: Collection[str], take_over: bool = True
    ) -> tuple[Job, bool] | None:
        """The next job for this process, which works on those `beside`, and whether it was taken over from
        another one. `take_over`: also those whose lease is over. A job with too many crashes has ended, with
        the code `crashed`. None without a job, and if the next one is to be done while there is no other."""
        with self._database.engine.connect() as tx:  # SQLite's one writer is not disturbed by looks
            if (
                tx.execute(_claimable(database_time(tx), beside, take_over).limit(1)).first()
                is None
            ):
                return None
        with self._database.transaction() as tx:
            now = database_time(tx)
            next_one = _claimable(now, beside, take_over).limit(1)
            row = tx.execute(next_one.with_for_update(skip_locked=True)).one_or_none()
            if row is None:
                return None
            job, taken_over = _job(row), row.claimed_by is not None
            if job.crashes >= MAX_CRASHES:
                text = f"{job.crashes} processes died while they worked on this job"
                return self.fail(tx, job, "crashed", text), taken_over
            if job.crashes >= ALONE and beside:
                return None
            lease: dict[str, Any] = {"claimed_by": worker, "claimed_until": now + LEASE_S}
            if job.state == "running":
                self._update(tx, job.id, **lease)
                return self._required(tx, job.id), taken_over
            lease["started_at"] = not_before(tx, self._now(), JOBS.c.created_at)
            return self._enter(tx, job.id, "running", **lease), taken_over

    def renew(self, worker: str) -> set[tuple[str, int]]:
        """Renew the leases of a process; returns its jobs with the numbers of their runs."""
        with self._database.transaction() as tx:
            own = (JOBS.c.claimed_by == worker) & (JOBS.c.state == "running")
            update = sa.update(JOBS).where(own).values(claimed_until=database_time(tx) + LEASE_S)
            return {
                (row.id, row.run) for row in tx.execute(update.returning(JOBS.c.id, JOBS.c.run))
            }

    def enter(self, tx: Tx, id: str) -> None:
        """Work begins that can take the process down: a crash, until it progresses or is given back."""
        self._update(tx, id, crashes=JOBS.c.crashes + 1)

    def release(self, claim: Claim, *, entered: bool = False) -> None:
        """Leave a job to whoever claims it next, without a crash."""
        with self._database.transaction() as tx:
            if self.held(tx, claim) is not None:
                crashes = JOBS.c.crashes - int(entered)
                self._update(tx, claim.job, claimed_by=None, claimed_until=None, crashes=crashes)

    def expire_leases(self) -> None:
        """The leases of all processes are over: those that had them are gone."""
        with self._database.transaction() as tx:
            tx.execute(sa.update(JOBS).values(claimed_until=None))

    def held(self, tx: Tx, claim: Claim) -> Job | None:
        """The job, locked, if the claim may still write; else None."""
        query = sa.select(JOBS).where(
            JOBS.c.id == claim.job,
            JOBS.c.run == claim.run,
            JOBS.c.claimed_by == claim.worker,
            JOBS.c.state == "running",
        )
        row = tx.execute(query.with_for_update()).one_or_none()
        return None if row is None else _job(row)

    def claim_callback(self, lease_s: float) -> Job | None:
        """An ended job whose callback is due, which is this process's to deliver for so many seconds."""
        with self._database.engine.connect() as tx:
            if tx.execute(_due(database_time(tx))).first() is None:
                return None
        with self._database.transaction() as tx:
            now = database_time(tx)
            row = tx.execute(_due(now).with_for_update(skip_locked=True)).one_or_none()
            if row is not None:
                self._update(tx, row.id, hook_at=now + lease_s)
            return None if row is None else _job(row)

    def set_callback(self, job: Job, state: CallbackState, wait_s: float = 0.0) -> None:
        """Record the result of a delivery attempt; while it is `pending`, the next one is due in `wait_s`."""
        assert job.callback is not None
        with self._database.transaction() as tx:
            same = (
                (JOBS.c.id == job.id) & (JOBS.c.run == job.run) & (JOBS.c.hook_state == "pending")
            )
            values = {"hook_state": state, "hook_tries": job.callback.tries + 1}
            due = database_time(tx) + wait_s
            tx.execute(sa.update(JOBS).where(same).values(hook_at=due, **values))

    # -- transitions ------------------------------------------------------------------------------

    def insert(self, tx: Tx, new: NewJob) -> Job:
        row = {
            "id": new.id,
            "tenant": new.owner,
            "state": "queued",
            "run": 1,
            "kind": "transcribe",
            "label": new.label,
            "created_at": self._now(),
            "total_s": new.total_s,
            "done_s": 0.0,
            "options": json.dumps(bounded_options(new.options)),
            "hook_url": new.callback and new.callback.url,
            "hook_secret": new.callback and new.callback.secret,
            "hook_state": new.callback and new.callback.state,
            "trace": new.trace,
        }
        tx.execute(sa.insert(JOBS).values(**row))
        self._log.append(tx, new.id, "state", {"state": "queued"})
        return self._required(tx, new.id)

    def locked(self, tx: Tx, id: str) -> Job | None:
        """The job in any state, locked; None if it has been erased."""
        row = tx.execute(sa.select(JOBS).where(JOBS.c.id == id).with_for_update()).one_or_none()
        return None if row is None else _job(row)

    def end(self, tx: Tx, id: str, state: State, error: tuple[str, str] | None = None) -> Job:
        """End the job; its callback is due. Only a new run opens it again."""
        code, message = error or (None, None)
        message = message and bounded(message)
        finished_at = not_before(tx, self._now(), JOBS.c.created_at, JOBS.c.started_at)
        free: dict[str, Any] = {"claimed_by": None, "claimed_until": None, "hook_at": None}
        return self._enter(
            tx, id, state, finished_at=finished_at, error_code=code, error_message=message, **free
        )

    def fail(self, tx: Tx, job: Job, code: str, message: str) -> Job:
        """End a job that has failed; if only its diarization has, it keeps its transcript."""
        state: State = "succeeded" if job.kind == "diarize" else "failed"
        return self.end(tx, job.id, state, (code, message))

    def new_run(self, tx: Tx, id: str, kind: Kind) -> Job:
        """Queue an ended job again."""
        job = self._required(tx, id)
        assert job.ended
        values: dict[str, Any] = {"run": job.run + 1, "kind": kind, "crashes": 0}
        if job.callback is not None:
            values |= {"hook_state": "pending", "hook_tries": 0}
        cleared = dict.fromkeys(("started_at", "finished_at", "error_code", "error_message"))
        return self._enter(tx, id, "queued", **values, **cleared)

    # -- single values ----------------------------------------------------------------------------

    def progressed(self, tx: Tx, id: str) -> None:
        """Forget the crashes of a job: it did not cause them."""
        self._update(tx, id, crashes=0)

    def set_progress(self, tx: Tx, id: str, done_s: float) -> None:
        """Record how many seconds of audio are done."""
        self._update(tx, id, done_s=done_s, crashes=0)
        self._log.append(tx, id, "progress", {"done_s": round(done_s, 3)})

    def set_warnings(self, tx: Tx, id: str, warnings: Sequence[Mapping[str, Any]]) -> None:
        """Replace the warnings by those of the transcript, which are bounded."""
        self._update(tx, id, warnings=json.dumps(warnings) if warnings else None)

    def set_options(self, tx: Tx, id: str, options: Mapping[str, Any]) -> None:
        """Replace the options for the next run."""
        self._update(tx, id, options=json.dumps(dict(options)))

    def rename(self, tx: Tx, id: str, label: str) -> None:
        self._update(tx, id, label=label)

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


def _claimable(now: float, beside: Collection[str], take_over: bool) -> sa.Select[Any]:
    """Jobs without a lease, or whose lease is over, in the order in which they are done."""
    free: sa.ColumnElement[bool] = JOBS.c.claimed_until.is_(None)
    if take_over:
        free |= JOBS.c.claimed_until < now
    query = sa.select(JOBS).where(JOBS.c.state.in_(UNFINISHED), free)
    if beside:
        query = query.where(JOBS.c.id.not_in(beside))
    return query.order_by(JOBS.c.created_at, JOBS.c.id)


def _due(now: float) -> sa.Select[Any]:
    """The job whose callback has been due for longest."""
    due = JOBS.c.hook_at.is_(None) | (JOBS.c.hook_at <= now)
    pending = (JOBS.c.hook_state == "pending") & JOBS.c.state.in_(ENDED)
    return sa.select(JOBS).where(pending, due).order_by(JOBS.c.hook_at).limit(1)


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


class IdempotencyKeys:
    """Which job a client's key has created, in one database; `now` gives the time in Unix seconds. A
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


def _job(row: Any) -> Job:
    error = (row.error_code, row.error_message) if row.error_code else None
    callback = None
    if row.hook_url:
        callback = Callback(row.hook_url, row.hook_secret, row.hook_state, row.hook_tries)
    read: dict[str, Any] = {
        "owner": row.tenant,
        "options": json.loads(row.options),
        "error": error,
        "callback": callback,
        "warnings": tuple(json.loads(row.warnings)) if row.warnings else (),
    }
    columns = row._mapping
    return Job(**read, **{f.name: columns[f.name] for f in fields(Job) if f.name not in read})
