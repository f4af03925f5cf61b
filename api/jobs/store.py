"""The job store: a database and a place of files, opened together.

Queued rows are the queue. A job that is worked on has a lease of its own: the process that claimed it, and
until when. Leases and callbacks are measured by the database's clock, so no machine's clock matters. Every
write of a run is bound to its `Claim`, so that a run that was cancelled or replaced, or whose process was
taken for dead, writes nothing. Does not know HTTP or what files hold.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from forescribe.asr.errors import AudioError, OutputError, StorageError

from .database import Database, Tx, database_time
from .files import DiskFiles, Files
from .tables import (
    ENDED,
    ENTRIES,
    FOLDERS,
    JOBS,
    UNFINISHED,
    CallbackState,
    Claim,
    EntryKind,
    Job,
    Kind,
    LogEntry,
    State,
    bounded,
)

LEASE_S = 10.0
"""How long a process has a job unless it renews its lease."""

BESIDE = 2
"""Deaths of processes that had other work too, without progress in between, after which a job is done while
its process does nothing else."""

ALONE_AFTER_S: Sequence[float] = (20.0, 40.0)
"""How long a process must have been well before it does such a job for the first time, and for the second:
one that machines take away every few seconds says nothing about its jobs. A job fails at the second death."""

ORPHAN_S = 3600.0
"""How long a recording may take from its first byte on the disk to its row."""

Lonely = Literal["lonely"]
"""The next job is to be done while its process does nothing else."""

T = TypeVar("T")


class Store:
    """The rows and the files of jobs.

    Each folder of files has a row from before its first file until after its last: `reserve`, then the
    files, then `accept` in the transaction that inserts the job; `erase`, then `remove`. What a process left
    that died in between is swept. Acceptance and sweep write the same row, so the second one is refused.

    A job's row names its files by their roles; reading raises FileNotFoundError where there is none (any
    more).
    """

    def __init__(
        self, database: Database, files: Files, clock: Callable[[], float] = time.time
    ) -> None:
        self.database, self.files, self.clock = database, files, clock
        self.jobs = JobTable(database, self.now)

    @classmethod
    def open(cls, folder: Path, url: str | None = None, files: Files | None = None) -> Store:
        """The store in a folder, with its own SQLite database or the one at `url`, and its own files or
        others. Raises UsageError, CapacityError."""
        database = Database.open(url or f"sqlite:///{folder / 'jobs.db'}")
        return cls(database, files or DiskFiles(folder / "files"))

    def now(self) -> float:
        """Unix seconds."""
        return self.clock()

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction. Raises OutputError if the database's disk is full or read-only."""
        return self.database.transaction()

    def writable(self) -> bool:
        """Whether a row can be committed and a file written."""
        try:
            self.files.probe()
        except (OutputError, StorageError):
            return False
        return self.database.accepts_writes()

    def close(self) -> None:
        self.files.trim(0.0)
        self.database.close()

    # -- files by their roles ---------------------------------------------------------------------

    def read(self, job: Job, role: str) -> Any:
        """The JSON of a role."""
        if role not in job.files:
            raise FileNotFoundError(f"the job has no {role}")
        return json.loads(self.files.read(job.id, job.files[role]))

    def audio(self, job: Job) -> Path:
        """A local file with the audio, to be opened at once. Raises AudioError `missing_file` if it is not
        kept any more."""
        if "audio" not in job.files:
            raise AudioError("the job's audio is not kept any more", code="missing_file")
        return self.files.local(job.id, job.files["audio"])

    def save(self, id: str, role: str, text: str, refer: Callable[[Tx, str], T]) -> T:
        """Store a file, and have `refer` write its name into the job's row. If that raises, the file is
        deleted: the run may be over because the job is being erased."""
        name = self.files.put(id, role, text.encode())
        try:
            with self.transaction() as tx:
                return refer(tx, name)
        except BaseException:
            with suppress(Exception):  # the database may be away, and may have the name: it stays
                job = self.jobs.get(id)
                if job is None or name not in job.files.values():
                    self.files.delete(id, name)
            raise

    def drop(self, id: str, roles: re.Pattern[str]) -> None:
        """Delete the files of some roles, and their names."""
        with self.transaction() as tx:
            job = self.jobs.locked(tx, id)
            if job is None:
                return
            kept = {role: name for role, name in job.files.items() if not roles.fullmatch(role)}
            self.jobs.update(tx, id, files=kept)
        for name in set(job.files.values()) - set(kept.values()):
            self.files.delete(id, name)

    # -- folders ----------------------------------------------------------------------------------

    def reserve(self, id: str) -> None:
        """Files of a job will be written, which is accepted within `ORPHAN_S`."""
        with self.transaction() as tx:
            tx.execute(sa.insert(FOLDERS).values(job=id, at=database_time(tx)))

    def accept(self, tx: Tx, job: Job) -> Job:
        """Insert and queue a job whose folder is reserved and whose files are stored. Raises IntegrityError
        if its owner has used its key before, OutputError if it took too long."""
        ours = (FOLDERS.c.job == job.id) & (FOLDERS.c.at > 0)
        if not tx.execute(sa.update(FOLDERS).where(ours).values(at=None)).rowcount:
            raise OutputError("the recording took too long to be stored; send it again")
        return self.jobs.insert(tx, job)

    def discard(self, id: str) -> None:
        """Delete the folder of a job that was not accepted."""
        with self.transaction() as tx:
            ours = (FOLDERS.c.job == id) & FOLDERS.c.at.is_not(None)
            mine = tx.execute(sa.update(FOLDERS).where(ours).values(at=0.0)).rowcount
        if mine:
            self.remove(id)

    def erase(self, id: str) -> None:
        """Delete all rows and files of a job. SQLite's log has them until `Database.truncate_log`."""
        with self.transaction() as tx:
            tx.execute(sa.delete(JOBS).where(JOBS.c.id == id))  # waits for a run that writes to it
            tx.execute(sa.delete(ENTRIES).where(ENTRIES.c.job == id))
            tx.execute(sa.update(FOLDERS).where(FOLDERS.c.job == id).values(at=0.0))
        self.remove(id)

    def remove(self, id: str) -> None:
        """Delete the folder of a job that was erased or not accepted."""
        self.files.delete_all(id)
        with self.transaction() as tx:
            tx.execute(sa.delete(FOLDERS).where(FOLDERS.c.job == id))

    def sweep(self, older_s: float = ORPHAN_S) -> None:
        """Remove the folders of jobs that were erased, or not accepted within `older_s` seconds."""
        with self.transaction() as tx:
            late = FOLDERS.c.at <= database_time(tx) - older_s
            tx.execute(sa.update(FOLDERS).where(late).values(at=0.0))
            doomed = tx.execute(sa.select(FOLDERS.c.job).where(FOLDERS.c.at == 0.0)).scalars().all()
        for id in doomed:
            self.remove(id)

    def sweep_files(self) -> None:
        """Delete folders that have no row: a process was suspended over a file while its job was erased, and
        died. Lists all files."""
        listed = self.files.jobs()  # before the rows: a folder's row is there first
        with self.database.engine.connect() as tx:
            known = set(tx.execute(sa.select(FOLDERS.c.job)).scalars())
        for id in listed - known:
            self.files.delete_all(id)


class JobTable:
    """The rows of jobs in one database, and their logs, which clients can follow: reading, the queue, and the
    transitions between states. `now` gives the time in Unix seconds."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        self._database, self._now = database, now

    # -- reading ----------------------------------------------------------------------------------

    def get(self, id: str, owner: str | None = None) -> Job | None:
        """The job; None if it does not exist or belongs to another owner."""
        query = sa.select(JOBS).where(JOBS.c.id == id)
        return self._first(query if owner is None else query.where(JOBS.c.owner == owner))

    def with_key(self, owner: str, key: str) -> Job | None:
        """The job that an Idempotency-Key has created."""
        return self._first(sa.select(JOBS).where(JOBS.c.owner == owner, JOBS.c.key == key))

    def page(
        self, owner: str, limit: int, after: Job | None = None, state: str | None = None
    ) -> tuple[list[Job], bool]:
        """Up to `limit` jobs, the latest first, behind another one; and whether there are more."""
        query = sa.select(JOBS).where(JOBS.c.owner == owner)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        order = (JOBS.c.created_at, JOBS.c.id)
        if after is not None:
            place = sa.literal(after.created_at), sa.literal(after.id)
            query = query.where(sa.tuple_(*order) < sa.tuple_(*place))
        jobs = self._read(query.order_by(*(each.desc() for each in order)).limit(limit + 1))
        return jobs[:limit], len(jobs) > limit

    def oldest_s(self) -> float:
        """The age of the oldest unfinished job; 0 without one."""
        query = sa.select(sa.func.min(JOBS.c.created_at)).where(JOBS.c.state.in_(UNFINISHED))
        with self._database.engine.connect() as tx:
            created_at = tx.execute(query).scalar_one()
        return 0.0 if created_at is None else max(0.0, self._now() - created_at)

    def backlog(self, owner: str | None = None) -> tuple[int, float]:
        """The number of unfinished jobs, and their remaining seconds of audio."""
        left_s = JOBS.c.total_s - JOBS.c.done_s
        left_s = sa.func.sum(sa.case((left_s > 0.0, left_s), else_=0.0))
        query = sa.select(sa.func.count(), left_s).where(JOBS.c.state.in_(UNFINISHED))
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        with self._database.engine.connect() as tx:
            count, seconds = tx.execute(query).one()
        return count, seconds or 0.0

    def ended_before(self, when: float) -> list[Job]:
        over = JOBS.c.state.in_(ENDED), JOBS.c.finished_at < when
        return self._read(sa.select(JOBS).where(*over))

    def with_audio_succeeded_before(self, when: float) -> list[Job]:
        """Jobs that succeeded before `when` and still have their audio."""
        over = JOBS.c.state == "succeeded", JOBS.c.finished_at < when
        audio = sa.cast(JOBS.c.files, sa.String).contains('"audio":')
        return self._read(sa.select(JOBS).where(*over, audio))

    def entries(self, id: str, after: int = 0) -> list[LogEntry]:
        """The entries of a job's log numbered above `after`, in order."""
        query = sa.select(ENTRIES).where(ENTRIES.c.job == id, ENTRIES.c.n > after)
        with self._database.engine.connect() as tx:
            rows = tx.execute(query.order_by(ENTRIES.c.n))
            return [LogEntry(**row._mapping) for row in rows]

    # -- the queue --------------------------------------------------------------------------------

    def claim(
        self, worker: str, *, beside: Collection[str], calm_s: float = math.inf, alone: bool = True
    ) -> tuple[Job, bool] | Lonely | None:
        """The next job for this process, which works on those `beside`, and whether it was taken over from
        another one. It counts the death of that one, if the job was at risk. A job with too many has ended,
        with the code `crashed`.

        Args:
            calm_s: for how long the process has been well: the jobs of others are taken over after `LEASE_S`,
                those that are to be done alone after `ALONE_AFTER_S`.
            alone: whether it has nothing else in hand; if not, the answer may be `lonely`.
        """
        with self._database.engine.connect() as tx:  # SQLite's one writer is not disturbed by looks
            if not tx.execute(_claimable(database_time(tx), beside, calm_s)).first():
                return None
        with self._database.transaction() as tx:
            now = database_time(tx)
            query = _claimable(now, beside, calm_s).with_for_update(skip_locked=True)
            job = _job(tx.execute(query))
            if job is None:
                return None
            taken_over = job.claimed_by is not None
            deaths = {  # with that of the process that had it: who leaves a job at risk is dead
                "deaths_beside": job.deaths_beside + (job.risk == "beside"),
                "deaths_alone": job.deaths_alone + (job.risk == "alone"),
            }
            if deaths["deaths_alone"] >= len(ALONE_AFTER_S):
                text = f"{sum(deaths.values())} processes died while they worked on this job"
                return self.fail(tx, job, "crashed", text), taken_over
            if deaths["deaths_beside"] >= BESIDE and not alone:
                return "lonely"
            lease: dict[str, Any] = {"claimed_by": worker, "claimed_until": now + LEASE_S}
            self.update(tx, job.id, **lease, **deaths, risk=None)
            if job.state == "queued":
                return self._enter(tx, job.id, "running", started_at=self._now()), taken_over
            return self._required(tx, job.id), taken_over

    def renew(self, claim: Claim) -> bool:
        """Renew a job's lease; False if it has ended, or another process has it."""
        with self._database.transaction() as tx:
            until = database_time(tx) + LEASE_S
            update = sa.update(JOBS).where(_held(claim)).values(claimed_until=until)
            return bool(tx.execute(update).rowcount)

    def release(self, claim: Claim) -> None:
        """Leave a job to whoever claims it next. No death is counted."""
        free: dict[str, Any] = {"claimed_by": None, "claimed_until": None, "risk": None}
        with self._database.transaction() as tx:
            tx.execute(sa.update(JOBS).where(_held(claim)).values(**free))

    def expire_leases(self) -> None:
        """The leases of all processes are over: those that had them are gone."""
        with self._database.transaction() as tx:
            tx.execute(sa.update(JOBS).values(claimed_until=None))

    def held(self, tx: Tx, claim: Claim) -> Job | None:
        """The job, locked, if the claim may still write; else None."""
        return _job(tx.execute(sa.select(JOBS).where(_held(claim)).with_for_update()))

    def claim_callback(self, lease_s: float) -> Job | None:
        """An ended job whose callback is due, which is this process's to deliver for so many seconds."""
        with self._database.engine.connect() as tx:
            if tx.execute(_due(database_time(tx))).first() is None:
                return None
        with self._database.transaction() as tx:
            now = database_time(tx)
            job = _job(tx.execute(_due(now).with_for_update(skip_locked=True)))
            if job is not None:
                self.update(tx, job.id, hook_at=now + lease_s)
            return job

    def set_callback(self, job: Job, state: CallbackState, wait_s: float = 0.0) -> None:
        """Record the result of a delivery attempt; while it is `pending`, the next one is due in `wait_s`."""
        with self._database.transaction() as tx:
            run = (JOBS.c.id == job.id) & (JOBS.c.run == job.run)
            update = sa.update(JOBS).where(run, JOBS.c.hook_state == "pending")
            due = database_time(tx) + wait_s
            tx.execute(update.values(hook_state=state, hook_tries=job.hook_tries + 1, hook_at=due))

    # -- transitions ------------------------------------------------------------------------------

    def insert(self, tx: Tx, job: Job) -> Job:
        """Queue a new job, whose time of creation is now."""
        job = replace(job, created_at=self._now())
        tx.execute(sa.insert(JOBS).values(**asdict(job)))
        self._append(tx, job.id, "state", {"state": job.state})
        return job

    def locked(self, tx: Tx, id: str) -> Job | None:
        """The job in any state, locked; None if it has been erased."""
        return _job(tx.execute(sa.select(JOBS).where(JOBS.c.id == id).with_for_update()))

    def end(self, tx: Tx, id: str, state: State, error: tuple[str, str] | None = None) -> Job:
        """End the job; its callback is due. Only a new run opens it again."""
        code, message = error or (None, "")
        why = {"error_code": code, "error_message": bounded(message) or None}
        free = dict.fromkeys(("claimed_by", "claimed_until", "risk", "hook_at"))
        return self._enter(tx, id, state, finished_at=self._now(), **why, **free)

    def fail(self, tx: Tx, job: Job, code: str, message: str) -> Job:
        """End a job that has failed; if only its diarization has, it keeps its transcript."""
        state: State = "succeeded" if job.kind == "diarize" else "failed"
        return self.end(tx, job.id, state, (code, message))

    def new_run(self, tx: Tx, job: Job, kind: Kind, options: Mapping[str, Any]) -> Job:
        """Queue an ended job again."""
        assert job.ended
        self.forget_deaths(tx, job.id)
        if job.hook_url is not None:
            self.update(tx, job.id, hook_state="pending", hook_tries=0)
        anew = dict.fromkeys(("error_code", "error_message", "started_at", "finished_at"))
        anew |= {"run": job.run + 1, "kind": kind, "options": dict(options)}
        return self._enter(tx, job.id, "queued", **anew)

    def forget_deaths(self, tx: Tx, id: str) -> None:
        """The job progresses: it did not cause them."""
        self.update(tx, id, deaths_beside=0, deaths_alone=0, risk=None)

    def set_progress(self, tx: Tx, id: str, done_s: float) -> None:
        """Record how many seconds of audio are done."""
        self.update(tx, id, done_s=done_s)
        self._append(tx, id, "progress", {"done_s": round(done_s, 3)})

    def add_segments(self, tx: Tx, id: str, k: int, count: int, file: str) -> None:
        """Log the segments of a group, which are in a file."""
        own = (ENTRIES.c.job == id) & (ENTRIES.c.kind == "segment")
        query = sa.select(ENTRIES.c.data).where(own).order_by(ENTRIES.c.n.desc()).limit(1)
        last = tx.execute(query).scalar() if k else None
        first = last["first"] + last["count"] if last else 0
        self._append(tx, id, "segment", {"k": k, "first": first, "count": count, "file": file})

    def forget_keys(self, when: float) -> None:
        """Forget the Idempotency-Keys of jobs created before `when`."""
        old = (JOBS.c.created_at < when) & JOBS.c.key.is_not(None)
        with self._database.transaction() as tx:
            tx.execute(sa.update(JOBS).where(old).values(key=None, fingerprint=None))

    def update(self, tx: Tx, id: str, **values: Any) -> None:
        """Replace single values."""
        tx.execute(sa.update(JOBS).where(JOBS.c.id == id).values(**values))

    def _enter(self, tx: Tx, id: str, state: State, **values: Any) -> Job:
        """Set the state and log the transition."""
        self.update(tx, id, state=state, **values)
        self._append(tx, id, "state", {"state": state})
        return self._required(tx, id)

    def _append(self, tx: Tx, id: str, kind: EntryKind, data: dict[str, Any]) -> None:
        last = tx.execute(sa.select(sa.func.max(ENTRIES.c.n)).where(ENTRIES.c.job == id)).scalar()
        tx.execute(sa.insert(ENTRIES).values(job=id, n=(last or 0) + 1, kind=kind, data=data))

    def _required(self, tx: Tx, id: str) -> Job:
        job = _job(tx.execute(sa.select(JOBS).where(JOBS.c.id == id)))
        assert job is not None
        return job

    def _first(self, query: sa.Select[Any]) -> Job | None:
        return next(iter(self._read(query)), None)

    def _read(self, query: sa.Select[Any]) -> list[Job]:
        with self._database.engine.connect() as tx:
            return [Job(**row._mapping) for row in tx.execute(query)]


def _job(found: sa.CursorResult[Any]) -> Job | None:
    row = found.one_or_none()
    return None if row is None else Job(**row._mapping)


def _claimable(now: float, beside: Collection[str], calm_s: float) -> sa.Select[Any]:
    """The next job without a lease, or whose lease is over."""
    free: sa.ColumnElement[bool] = JOBS.c.claimed_until.is_(None)
    if calm_s >= LEASE_S:
        free |= JOBS.c.claimed_until < now
    died_beside = JOBS.c.deaths_beside + sa.case((JOBS.c.risk == "beside", 1), else_=0)
    died_alone = JOBS.c.deaths_alone + sa.case((JOBS.c.risk == "alone", 1), else_=0)
    calm = sum(calm_s >= wait_s for wait_s in ALONE_AFTER_S)
    may = (died_beside < BESIDE) | (died_alone < calm) | (died_alone >= len(ALONE_AFTER_S))
    query = sa.select(JOBS).where(JOBS.c.state.in_(UNFINISHED), free, may)
    if beside:
        query = query.where(JOBS.c.id.not_in(beside))
    return query.order_by(JOBS.c.created_at, JOBS.c.id).limit(1)


def _held(claim: Claim) -> sa.ColumnElement[bool]:
    """Whether the row is that of a claim which still holds."""
    run = (JOBS.c.id == claim.job) & (JOBS.c.run == claim.run) & (JOBS.c.state == "running")
    return run & (JOBS.c.claimed_by == claim.worker)


def _due(now: float) -> sa.Select[Any]:
    """The job whose callback has been due for longest."""
    due = JOBS.c.hook_at.is_(None) | (JOBS.c.hook_at <= now)
    pending = (JOBS.c.hook_state == "pending") & JOBS.c.state.in_(ENDED)
    return sa.select(JOBS).where(pending, due).order_by(JOBS.c.hook_at).limit(1)
