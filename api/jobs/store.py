"""Rows: jobs, what they refer to, what happened to them, who asked with which key, who is alive.

    store = Store(database(url), blobs)
    with store.writing() as tx:              # one transaction; the engine's queue is in the same database
        store.insert(tx, new, audio)
        engine.enqueue(tx, work)

SQLite in a file or PostgreSQL, by the same statements. What a run writes is bound to its number, so
that who was cancelled or replaced meanwhile writes nothing. Holds no text of a transcript.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import event

from forescribe.asr.errors import CapacityError, Code, OutputError, UsageError

from .blobs import Blobs
from .records import ENDED, Entry, EntryKind, Hook, HookState, Job, Kind, New, State

meta = sa.MetaData()

JOBS = sa.Table(
    "forescribe_jobs",
    meta,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("label", sa.String),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("finished_at", sa.Float),
    sa.Column("total_s", sa.Float, nullable=False),
    sa.Column("done_s", sa.Float, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("error_code", sa.String),
    sa.Column("error_message", sa.String),
    sa.Column("hook_url", sa.String),
    sa.Column("hook_secret", sa.String),
    sa.Column("hook_state", sa.String),
    sa.Column("hook_tries", sa.Integer, nullable=False, default=0),
    sa.Column("crashes", sa.Integer, nullable=False, default=0),
    sa.Column("warnings", sa.Text),  # of the transcript; NULL: none, or none yet
    sa.Index("forescribe_jobs_of", "tenant", "created_at", "id"),
    sa.Index("forescribe_jobs_state", "state"),
)

REFS = sa.Table(
    "forescribe_refs",
    meta,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("role", sa.String, primary_key=True),  # audio, form, plan, group, spoken, result
    sa.Column("k", sa.Integer, primary_key=True),
    sa.Column("blob", sa.String, nullable=False, index=True),
)

ENTRIES = sa.Table(
    "forescribe_entries",
    meta,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
)

KEYS = sa.Table(
    "forescribe_idempotency",
    meta,
    sa.Column("tenant", sa.String, primary_key=True),
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("fingerprint", sa.String, nullable=False),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

WORKERS = sa.Table(
    "forescribe_workers",
    meta,
    sa.Column("executor", sa.String, primary_key=True),
    sa.Column("beat", sa.Integer, nullable=False),
    sa.Column("work", sa.Text, nullable=False),
)

EXPOSED = sa.Table(
    "forescribe_exposed",
    meta,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("executor", sa.String),  # in whose process its work is now, in what could kill it
    sa.Column("alone", sa.Boolean, nullable=False),  # with nobody beside it
    sa.Column("deaths", sa.Integer, nullable=False),  # of processes with it inside, since it got on
)

Tx = sa.Connection

TRIES = 100
"""Of emptying SQLite's log, 50 ms apart: every reader holds it up."""


def database(url: str) -> sa.Engine:
    """The engine of a database that has its tables. Raises UsageError where it cannot be opened,
    CapacityError where that may pass: a server that is away, a full disk."""
    try:
        engine = sa.create_engine(_with_driver(url), pool_pre_ping=True)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _local)
        meta.create_all(engine)
        _add_columns(engine)
        return engine
    except (sa.exc.SQLAlchemyError, ImportError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        passes = isinstance(error, sa.exc.OperationalError) and not _nobodys(error)
        kind = CapacityError if passes else UsageError
        raise kind(f"the jobs' database cannot be opened: {cause}") from error


def _nobodys(error: sa.exc.OperationalError) -> bool:
    """Whether only somebody who changes something can cure it: a path or a name that is none."""
    name = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    return str(name).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "28", "3D"))


def _add_columns(engine: sa.Engine) -> None:
    """Columns that a database of an earlier version lacks. All may be NULL, so that it can go on beside."""
    there = {column["name"] for column in sa.inspect(engine).get_columns(JOBS.name)}
    if "warnings" not in there:
        known = "IF NOT EXISTS " if engine.dialect.name == "postgresql" else ""
        with engine.begin() as tx:
            tx.exec_driver_sql(f"ALTER TABLE {JOBS.name} ADD COLUMN {known}warnings TEXT")


def _with_driver(url: str) -> str:
    """PostgreSQL by the driver that is here; SQLAlchemy would take another."""
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else url


def _local(connection: Any, record: object) -> None:
    """WAL, and what is deleted is overwritten. Writers wait for each other."""
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA foreign_keys=ON")


_AWAY = frozenset({"25006", "57P01", "57P02", "57P03", "53300"})
"""PostgreSQL's codes: read only, shutting down, crashed, starting, too many connections."""

_FULL = ("SQLITE_FULL", "53100")
_UNWRITABLE = ("SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")


@contextmanager
def keeping() -> Iterator[None]:
    """What the database's disk refuses, as an OutputError, as `blobs.storing` does."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        code = _refused(error)
        if code is None:
            raise
        text = "the jobs' database cannot be written: free some space, or see to its disk"
        raise OutputError(text, code=code) from error


def _refused(error: sa.exc.DBAPIError) -> Code | None:
    name = getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None)
    if name in _FULL:
        return "storage_full"
    return "unwritable_output" if str(name).startswith(_UNWRITABLE) else None


def after(tx: Tx, act: Callable[[], None]) -> None:
    """To be done once the transaction is committed, not before and not otherwise."""
    tx.info["after"].append(act)


class Store:
    """The rows, and with them the blobs: one is deleted with the last row that refers to it."""

    def __init__(
        self, engine: sa.Engine, blobs: Blobs, clock: Callable[[], float] = time.time
    ) -> None:
        self.engine, self.blobs, self.clock = engine, blobs, clock

    @classmethod
    def at(cls, folder: Path, url: str | None = None) -> Store:
        """In a folder, with its own database or another. Raises UsageError."""
        engine = database(url or f"sqlite:///{folder / 'jobs.db'}")
        return cls(engine, Blobs(folder / "blobs"))

    @contextmanager
    def writing(self) -> Iterator[Tx]:
        """A transaction. What `after` was told is done once it is committed. Raises OutputError where the
        database's disk is full or cannot be written."""
        with keeping(), self.engine.begin() as tx:
            tx.info["after"] = told = list[Callable[[], None]]()
            yield tx
        for act in told:
            act()

    def there(self) -> bool:
        """Whether the database answers."""
        try:
            with self.engine.connect() as tx:
                tx.execute(sa.select(1))
            return True
        except sa.exc.DBAPIError:
            return False

    def writable(self) -> bool:
        """Whether something can be written: rows, which are taken back, and a blob of a byte."""
        probe = f"probe-{uuid4().hex}"
        try:
            with self.writing() as tx:
                tx.execute(sa.insert(WORKERS).values(executor=probe, beat=0, work="[]"))
                tx.execute(sa.delete(WORKERS).where(WORKERS.c.executor == probe))
            self.blobs.probe()
            return True
        except (sa.exc.DBAPIError, OutputError):
            return False

    def lost(self, error: sa.exc.DBAPIError) -> bool:
        """Whether the fault is that the database went away: it was cut off, is not back yet, or is one that
        follows another and takes no writes so far."""
        state = getattr(error.orig, "sqlstate", None) or ""
        return error.connection_invalidated or state in _AWAY or not self.there()

    def close(self) -> None:
        self.engine.dispose()

    # -- jobs -------------------------------------------------------------------------------------

    def insert(self, tx: Tx, new: New) -> Job:
        hook = new.hook
        tx.execute(
            sa.insert(JOBS).values(
                id=new.id,
                tenant=new.tenant,
                state="queued",
                run=1,
                kind="transcribe",
                label=new.label,
                created_at=self.clock(),
                total_s=new.total_s,
                done_s=0.0,
                options=json.dumps(dict(new.options)),
                hook_url=hook and hook.url,
                hook_secret=hook and hook.secret,
                hook_state=hook and hook.state,
                hook_tries=0,
                crashes=0,
            )
        )
        self.log(tx, new.id, "state", {"state": "queued"})
        return self._one(tx, new.id)

    def job(self, id: str, tenant: str | None = None) -> Job | None:
        """None where there is none, or it is not this tenant's."""
        with self.engine.connect() as tx:
            return self._job(tx, id, tenant)

    def jobs(
        self, tenant: str, limit: int, after: str | None = None, state: str | None = None
    ) -> tuple[list[Job], bool]:
        """The latest first, from behind `after` on, and whether there are more."""
        query = sa.select(JOBS).where(JOBS.c.tenant == tenant)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        with self.engine.connect() as tx:
            if after is not None:
                last = self._job(tx, after, tenant)
                if last is None:
                    return [], False
                query = query.where(
                    sa.tuple_(JOBS.c.created_at, JOBS.c.id) < sa.tuple_(last.created_at, last.id)
                )
            query = query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc()).limit(limit + 1)
            found = [_job(row) for row in tx.execute(query)]
        return found[:limit], len(found) > limit

    def open_jobs(self) -> list[Job]:
        """Of all tenants: queued or running."""
        with self.engine.connect() as tx:
            rows = tx.execute(sa.select(JOBS).where(JOBS.c.state.in_(("queued", "running"))))
            return [_job(row) for row in rows]

    def waiting_s(self, tenant: str | None = None) -> tuple[int, float]:
        """Open jobs and their audio that is still to be done."""
        own = [job for job in self.open_jobs() if tenant is None or job.tenant == tenant]
        return len(own), sum(max(0.0, job.total_s - job.done_s) for job in own)

    def again(self, tx: Tx, id: str, kind: Kind) -> Job:
        """A new run of an ended job."""
        job = self._one(tx, id)
        assert job.ended
        self.forgive(tx, id)
        values = {"run": job.run + 1, "state": "queued", "kind": kind}
        if job.hook is not None:
            values |= {"hook_state": "pending", "hook_tries": 0}
        cleared = dict.fromkeys(("started_at", "finished_at", "error_code", "error_message"))
        self._set(tx, id, **values, **cleared)
        self.log(tx, id, "state", {"state": "queued"})
        return self._one(tx, id)

    def restart(self, tx: Tx, id: str) -> Job:
        """A new run of an open job, counted as a process that it took down: it must get on before many."""
        self._set(tx, id, run=JOBS.c.run + 1, state="queued", crashes=JOBS.c.crashes + 1)
        self.log(tx, id, "state", {"state": "queued"})
        return self._one(tx, id)

    def begin(self, tx: Tx, id: str, run: int) -> Job | None:
        """Running from now on; None where the run is not the job's any more."""
        job = self.mine(tx, id, run)
        if job is not None and job.state == "queued":
            self._set(tx, id, state="running", started_at=self.clock())
            self.log(tx, id, "state", {"state": "running"})
        return job

    def mine(self, tx: Tx, id: str, run: int) -> Job | None:
        """The job, locked, if this run may still write."""
        query = sa.select(JOBS).where(JOBS.c.id == id, JOBS.c.run == run).with_for_update()
        row = tx.execute(query).one_or_none()
        job = None if row is None else _job(row)
        return None if job is None or job.ended else job

    def end(self, tx: Tx, id: str, state: State, error: tuple[str, str] | None = None) -> Job:
        """The job has come to its end. Terminal; only a new run opens it again."""
        code, message = error or (None, None)
        self._set(
            tx, id, state=state, finished_at=self.clock(), error_code=code, error_message=message
        )
        self.log(tx, id, "state", {"state": state})
        return self._one(tx, id)

    def progress(self, tx: Tx, id: str, done_s: float) -> None:
        """So much of its audio is behind us."""
        self._set(tx, id, done_s=done_s)
        self.log(tx, id, "progress", {"done_s": round(done_s, 3)})
        self.forgive(tx, id)

    def warn(self, tx: Tx, id: str, warnings: Sequence[Mapping[str, Any]]) -> None:
        """What its transcript says is doubtful, instead of what it said before."""
        self._set(tx, id, warnings=json.dumps(list(warnings)) if warnings else None)

    def hook(self, tx: Tx, id: str, state: HookState, tries: int) -> None:
        """How the callback went."""
        self._set(tx, id, hook_state=state, hook_tries=tries)

    def choose(self, tx: Tx, id: str, options: Mapping[str, Any]) -> None:
        """Other options, for the next run."""
        self._set(tx, id, options=json.dumps(dict(options)))

    def erase(self, id: str) -> None:
        """Nothing is left of the job: rows, and the blobs that nobody else refers to."""
        with self.blobs.dropping():
            with self.writing() as tx:
                names = self._names(tx, REFS.c.job == id)
                for table in (REFS, ENTRIES, KEYS, EXPOSED):
                    tx.execute(sa.delete(table).where(table.c.job == id))
                tx.execute(sa.delete(JOBS).where(JOBS.c.id == id))
                lonely = self._lonely(tx, names)
            for name in lonely:
                self.blobs.delete(name)
        self.overwrite()

    def overwrite(self) -> None:
        """What SQLite's log still holds of deleted rows goes too, once nobody reads in it."""
        if self.engine.dialect.name != "sqlite":
            return
        with self.engine.connect() as tx:
            for _ in range(TRIES):
                busy, *_ = tx.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
                if not busy:
                    return
                time.sleep(0.05)

    def _job(self, tx: Tx, id: str, tenant: str | None = None) -> Job | None:
        query = sa.select(JOBS).where(JOBS.c.id == id)
        if tenant is not None:
            query = query.where(JOBS.c.tenant == tenant)
        row = tx.execute(query).one_or_none()
        return None if row is None else _job(row)

    def _one(self, tx: Tx, id: str) -> Job:
        job = self._job(tx, id)
        assert job is not None
        return job

    def _set(self, tx: Tx, id: str, **values: Any) -> None:
        tx.execute(sa.update(JOBS).where(JOBS.c.id == id).values(**values))

    # -- references -------------------------------------------------------------------------------

    def refer(self, tx: Tx, job: str, role: str, blob: str, k: int = 0) -> str | None:
        """The job has this blob now; the one that it had in its place, if it had another."""
        old = self.held(tx, job, role, k)
        if old is None:
            tx.execute(sa.insert(REFS).values(job=job, role=role, k=k, blob=blob))
        elif old != blob:
            tx.execute(
                sa.update(REFS)
                .where(REFS.c.job == job, REFS.c.role == role, REFS.c.k == k)
                .values(blob=blob)
            )
            return old
        return None

    def ref(self, job: str, role: str, k: int = 0) -> str | None:
        with self.engine.connect() as tx:
            return self.held(tx, job, role, k)

    def refs(self, job: str, role: str) -> list[str]:
        """By k."""
        query = sa.select(REFS.c.blob).where(REFS.c.job == job, REFS.c.role == role)
        with self.engine.connect() as tx:
            return list(tx.execute(query.order_by(REFS.c.k)).scalars())

    def drop(self, job: str, role: str) -> None:
        """The job does without these blobs."""
        with self.blobs.dropping():
            with self.writing() as tx:
                own = (REFS.c.job == job) & (REFS.c.role == role)
                names = self._names(tx, own)
                tx.execute(sa.delete(REFS).where(own))
                lonely = self._lonely(tx, names)
            for name in lonely:
                self.blobs.delete(name)

    def collect(self, names: Iterable[str]) -> None:
        """Deletes those of the blobs that no row refers to."""
        with self.blobs.dropping():
            with self.engine.connect() as tx:
                lonely = self._lonely(tx, names)
            for name in lonely:
                self.blobs.delete(name)

    def sweep(self) -> int:
        """Deletes blobs that no row refers to, as a process that died between the two leaves them.
        How many there were."""
        with self.blobs.dropping():
            names = set(self.blobs.names())
            with self.engine.connect() as tx:
                lonely = self._lonely(tx, names)
            for name in lonely:
                self.blobs.delete(name)
        return len(lonely)

    def held(self, tx: Tx, job: str, role: str, k: int = 0) -> str | None:
        """As `ref`, within a transaction."""
        query = sa.select(REFS.c.blob).where(REFS.c.job == job, REFS.c.role == role, REFS.c.k == k)
        return tx.execute(query).scalar_one_or_none()

    def _names(self, tx: Tx, which: sa.ColumnElement[bool]) -> set[str]:
        return set(tx.execute(sa.select(REFS.c.blob).where(which)).scalars())

    def _lonely(self, tx: Tx, names: Iterable[str]) -> list[str]:
        referred = self._names(tx, sa.true())
        return [name for name in names if name not in referred]

    # -- the log of a job -------------------------------------------------------------------------

    def log(self, tx: Tx, job: str, kind: EntryKind, data: Mapping[str, Any]) -> None:
        last = tx.execute(sa.select(sa.func.max(ENTRIES.c.n)).where(ENTRIES.c.job == job)).scalar()
        n = 1 if last is None else last + 1
        tx.execute(sa.insert(ENTRIES).values(job=job, n=n, kind=kind, data=json.dumps(dict(data))))

    def entries(self, job: str, after: int = 0) -> list[Entry]:
        query = sa.select(ENTRIES).where(ENTRIES.c.job == job, ENTRIES.c.n > after)
        with self.engine.connect() as tx:
            rows = tx.execute(query.order_by(ENTRIES.c.n))
            return [Entry(row.n, row.kind, json.loads(row.data)) for row in rows]

    def last_segment(self, tx: Tx, job: str) -> Mapping[str, Any] | None:
        """The data of the latest entry of that kind."""
        query = sa.select(ENTRIES.c.data).where(ENTRIES.c.job == job, ENTRIES.c.kind == "segment")
        data = tx.execute(query.order_by(ENTRIES.c.n.desc()).limit(1)).scalar()
        return None if data is None else cast(Mapping[str, Any], json.loads(data))

    # -- idempotency ------------------------------------------------------------------------------

    def claimed(self, tenant: str, key: str) -> tuple[str, str] | None:
        """The fingerprint and the job of a key that was used before."""
        query = sa.select(KEYS).where(KEYS.c.tenant == tenant, KEYS.c.key == key)
        with self.engine.connect() as tx:
            row = tx.execute(query).one_or_none()
        return None if row is None else (row.fingerprint, row.job)

    def claim(self, tx: Tx, tenant: str, key: str, fingerprint: str, job: str) -> None:
        """Raises IntegrityError where the key was used before."""
        tx.execute(
            sa.insert(KEYS).values(
                tenant=tenant, key=key, fingerprint=fingerprint, job=job, created_at=self.clock()
            )
        )

    def forget_keys(self, before: float) -> None:
        with self.writing() as tx:
            tx.execute(sa.delete(KEYS).where(KEYS.c.created_at < before))

    # -- who is alive -----------------------------------------------------------------------------

    def beat(self, executor: str, work: Iterable[str]) -> None:
        """A sign of life, with the ids of the work under way."""
        text = json.dumps(sorted(work))
        with self.writing() as tx:
            done = tx.execute(
                sa.update(WORKERS)
                .where(WORKERS.c.executor == executor)
                .values(beat=WORKERS.c.beat + 1, work=text)
            )
            if not done.rowcount:
                tx.execute(sa.insert(WORKERS).values(executor=executor, beat=1, work=text))

    def workers(self) -> dict[str, tuple[int, frozenset[str]]]:
        """Executors with their beats and their work."""
        with self.engine.connect() as tx:
            rows = tx.execute(sa.select(WORKERS))
            return {row.executor: (row.beat, frozenset(json.loads(row.work))) for row in rows}

    def bury(self, executor: str) -> None:
        with self.writing() as tx:
            tx.execute(sa.delete(WORKERS).where(WORKERS.c.executor == executor))

    # -- whose work may have killed its process ---------------------------------------------------

    def deaths(self, job: str) -> int:
        """Of processes with this job inside, since it last got on."""
        query = sa.select(EXPOSED.c.deaths).where(EXPOSED.c.job == job)
        with self.engine.connect() as tx:
            return tx.execute(query).scalar_one_or_none() or 0

    def expose(self, executor: str, job: str, *, alone: bool) -> None:
        """On record, before its work begins."""
        with self.writing() as tx:
            done = tx.execute(
                sa.update(EXPOSED)
                .where(EXPOSED.c.job == job)
                .values(executor=executor, alone=alone)
            )
            if not done.rowcount:
                row = {"job": job, "executor": executor, "alone": alone, "deaths": 0}
                tx.execute(sa.insert(EXPOSED).values(**row))

    def accompany(self, executor: str) -> None:
        """Nobody is alone in that process any more."""
        with self.writing() as tx:
            tx.execute(sa.update(EXPOSED).where(EXPOSED.c.executor == executor).values(alone=False))

    def unexpose(self, executor: str, job: str) -> None:
        with self.writing() as tx:
            self._take_out(tx, (EXPOSED.c.executor == executor) & (EXPOSED.c.job == job))

    def withdraw(self, executor: str, inside: frozenset[str]) -> None:
        """Of that process, only these are inside."""
        with self.writing() as tx:
            own = EXPOSED.c.executor == executor
            self._take_out(tx, own & EXPOSED.c.job.not_in(inside))

    def charge(self, living: Iterable[str | None]) -> list[tuple[str, int]]:
        """Counts the deaths of all other processes: the jobs that were inside, with their deaths so far.
        One that was alone in there is to blame, which its row counts."""
        with self.writing() as tx:
            dead = EXPOSED.c.executor.is_not(None) & EXPOSED.c.executor.not_in(list(living))
            rows = tx.execute(sa.select(EXPOSED).where(dead).with_for_update()).all()
            for row in rows:
                if row.alone:
                    self._set(tx, row.job, crashes=JOBS.c.crashes + 1)
                tx.execute(
                    sa.update(EXPOSED)
                    .where(EXPOSED.c.job == row.job)
                    .values(executor=None, alone=False, deaths=row.deaths + 1)
                )
        return [(row.job, row.deaths + 1) for row in rows]

    def forgive(self, tx: Tx, job: str) -> None:
        """It got on: whatever has killed its processes, it was not this."""
        self._set(tx, job, crashes=0)
        tx.execute(sa.update(EXPOSED).where(EXPOSED.c.job == job).values(deaths=0, alone=False))

    def _take_out(self, tx: Tx, which: sa.ColumnElement[bool]) -> None:
        tx.execute(sa.delete(EXPOSED).where(which, EXPOSED.c.deaths == 0))
        tx.execute(sa.update(EXPOSED).where(which).values(executor=None, alone=False))

    # -- what is too old --------------------------------------------------------------------------

    def ended_before(self, when: float) -> list[str]:
        query = sa.select(JOBS.c.id).where(JOBS.c.state.in_(ENDED), JOBS.c.finished_at < when)
        with self.engine.connect() as tx:
            return list(tx.execute(query).scalars())

    def heard_before(self, when: float) -> list[str]:
        """Jobs that succeeded before then, and still have their audio."""
        query = (
            sa.select(JOBS.c.id)
            .join(REFS, (REFS.c.job == JOBS.c.id) & (REFS.c.role == "audio"))
            .where(JOBS.c.state == "succeeded", JOBS.c.finished_at < when)
        )
        with self.engine.connect() as tx:
            return list(tx.execute(query).scalars())


def _job(row: Any) -> Job:
    error = (row.error_code, row.error_message) if row.error_code else None
    hook = None
    if row.hook_url:
        hook = Hook(row.hook_url, row.hook_secret, row.hook_state, row.hook_tries)
    return Job(
        id=row.id,
        tenant=row.tenant,
        state=row.state,
        run=row.run,
        kind=row.kind,
        label=row.label,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        total_s=row.total_s,
        done_s=row.done_s,
        options=json.loads(row.options),
        error=error,
        hook=hook,
        crashes=row.crashes,
        warnings=tuple(json.loads(row.warnings)) if row.warnings else (),
    )
