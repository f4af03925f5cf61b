"""The job database: SQLite in a file or PostgreSQL, by the same statements.

Knows connections, transactions and their faults; does not know what rows mean.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite

from forescribe.asr.errors import CapacityError, Code, OutputError, UsageError

from .reach import Reach
from .tables import FOLDERS, META, PLACES

Tx = sa.Connection

CHECKPOINT_TRIES = 100
"""Attempts to truncate SQLite's log, 50 ms apart: every reader delays it."""

PROBES: Mapping[str, str] = MappingProxyType(
    {
        "connect_timeout": "10",
        "keepalives": "1",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "10000",
    }
)
"""How soon a connection to PostgreSQL counts as lost, in seconds and the last in milliseconds: by libpq's
defaults a statement would wait 15 minutes for a server that a partition hides, and a silent connection two
hours. The query of the URL takes precedence."""

SLOW_S = 5.0
"""Without an answer, until other requests for a connection are refused at once."""

STUCK_S = 60.0
"""Until a connection that is in use counts as lost: transactions take milliseconds, and a server that is
frozen, or a proxy that has lost its own, acknowledges packets for ever."""

_AWAY = ("25006", "40", "53", "55P03", "57", "58", "SQLITE_BUSY")
"""Beginnings of codes of errors that pass. Of PostgreSQL: read only, deadlocks, too few resources, locks and
statements that took too long, a server that begins or ends, errors of its system."""

_FULL = ("SQLITE_FULL", "53100")
_UNWRITABLE = ("SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")
_PERMANENT = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "28", "3D")
"""Beginnings of codes of errors at the start that stay until the configuration changes: a wrong path, user or
database name."""


class Database:
    """A SQLAlchemy engine with the tables of jobs."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Database:
        """Open a database and create missing tables. A new file of SQLite is for one process at a time.

        Raises UsageError if it cannot be opened or has jobs of an earlier version, CapacityError if the cause
        may pass by itself: a server that is down, a full disk.
        """
        try:
            address = _address(url)
            engine = sa.create_engine(address, pool_pre_ping=True, poolclass=_Pool)
            if engine.dialect.name == "sqlite":
                event.listen(engine, "connect", _configure_sqlite)
            try:
                _create_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            return cls(engine)
        except (sa.exc.SQLAlchemyError, ImportError) as error:
            passes = isinstance(error, sa.exc.OperationalError) and not _error_name(
                error
            ).startswith(_PERMANENT)
            kind = CapacityError if passes else UsageError
            cause = getattr(error, "orig", None) or error
            raise kind(f"the jobs' database cannot be opened: {cause}") from error

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction. Raises OutputError if the database's disk is full or read-only."""
        with database_disk_errors(), self.engine.begin() as tx:
            if self.engine.dialect.name == "sqlite":
                # Python's driver begins with the first write, so what was read before it could change.
                tx.exec_driver_sql("BEGIN IMMEDIATE")
            yield tx

    def available(self) -> bool:
        """Whether the database answers."""
        try:
            with self.engine.connect() as tx:
                tx.execute(sa.select(1))
            return True
        except sa.exc.DBAPIError:
            return False

    def accepts_writes(self) -> bool:
        """Whether a row can be committed; it is deleted again."""
        probe = f"probe-{uuid4().hex}"
        try:
            with self.transaction() as tx:
                tx.execute(sa.insert(FOLDERS).values(job=probe))
                tx.execute(sa.delete(FOLDERS).where(FOLDERS.c.job == probe))
        except (sa.exc.SQLAlchemyError, OutputError):
            return False
        return True

    def belongs_to(self, place: str) -> bool:
        """Whether the files of this database's jobs are at a place: there, where its first process had them,
        or anywhere while there are none."""
        with self.transaction() as tx:
            insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
            here = insert(PLACES).values(what="files", place=place)
            tx.execute(here.on_conflict_do_nothing())  # waits for others that insert it
            known = tx.execute(sa.select(PLACES.c.place).with_for_update()).scalar_one()
            if known != place and not tx.execute(sa.select(FOLDERS.c.job).limit(1)).first():
                tx.execute(sa.update(PLACES).values(place=place))
                return True
        return bool(known == place)

    def lost(self, error: sa.exc.DBAPIError) -> bool:
        """Whether the error means that the database went away: the connection was cut, the server is down or
        overloaded, others lock it, or it is a replica that takes no writes yet."""
        passes = _error_name(error).startswith(_AWAY)
        return error.connection_invalidated or passes or not self.available()

    def truncate_log(self) -> None:
        """Remove deleted rows from SQLite's write-ahead log too, once no reader uses it."""
        if self.engine.dialect.name != "sqlite":
            return
        with self.engine.connect() as tx:
            for _ in range(CHECKPOINT_TRIES):
                busy, *_ = tx.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
                if not busy:
                    return
                time.sleep(0.05)

    def close(self) -> None:
        self.engine.dispose()


class _Pool(sa.QueuePool):
    """Connections, each of which answers before it is used. Who asks for one cuts those that are stuck."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "timeout": SLOW_S})
        self._reach = Reach(_unanswered, lambda error: True, SLOW_S)
        self._taken = dict[Any, float]()

    def _do_get(self) -> sa.pool.ConnectionPoolEntry:
        now = time.monotonic()
        for entry, since_s in list(self._taken.items()):
            if now - since_s > STUCK_S:
                with suppress(Exception):  # SQLite has no socket; others may be closed by now
                    with socket.socket(fileno=os.dup(entry.driver_connection.fileno())) as line:
                        line.shutdown(socket.SHUT_RDWR)  # after `close` its reader would wait on
        entry = super()._do_get()
        self._taken[entry] = now
        return entry

    def _do_return_conn(self, record: sa.pool.ConnectionPoolEntry) -> None:
        self._taken.pop(record, None)
        super()._do_return_conn(record)

    def connect(self) -> sa.PoolProxiedConnection:
        """Raises OperationalError where there is none, at once while others wait for the server."""
        with self._reach.asking():
            try:
                return super().connect()
            except Exception as error:
                raise _unanswered(error) from error


def _unanswered(cause: Exception | None = None) -> sa.exc.OperationalError:
    return sa.exc.OperationalError(None, None, cause or TimeoutError(), connection_invalidated=True)


def database_time(tx: Tx) -> float:
    """The database's clock, in Unix seconds."""
    if tx.dialect.name == "postgresql":
        query = "SELECT extract(epoch FROM clock_timestamp())"
    else:
        query = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    return float(tx.exec_driver_sql(query).scalar_one())


@contextmanager
def database_disk_errors() -> Iterator[None]:
    """Raise disk errors of the database as OutputError, as `api.errors.disk_errors` does for files."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        name = _error_name(error)
        if name not in _FULL and not name.startswith(_UNWRITABLE):
            raise
        code: Code = "storage_full" if name in _FULL else "unwritable_output"
        text = "the jobs' database cannot be written: free some space, or check its disk"
        raise OutputError(text, code=code) from error


def _create_tables(engine: sa.Engine) -> None:
    """Create missing tables. Several processes may do so at once. Raises UsageError for the jobs of an
    earlier version."""
    with engine.begin() as tx:
        if engine.dialect.name == "postgresql":
            lock = sa.func.pg_advisory_xact_lock(sa.func.hashtext("forescribe_tables"))
            tx.execute(sa.select(lock))
        else:
            tx.exec_driver_sql("BEGIN IMMEDIATE")  # as in `transaction`
        _replace_earlier(tx)
        META.create_all(tx)


def _replace_earlier(tx: Tx) -> None:
    """Drop the tables of an earlier version, if there are no jobs in them. Raises UsageError."""
    found = sa.MetaData()
    found.reflect(tx, only=lambda name, _: name.startswith("forescribe_"))
    if all(
        META.tables[name].columns.keys() <= found.tables[name].columns.keys()
        for name in META.tables.keys() & found.tables
    ):
        return
    if tx.execute(sa.select(found.tables["forescribe_jobs"].c.id).limit(1)).first():
        raise UsageError(
            "the jobs in this database were written by an earlier version of forescribe, which this one "
            "does not read: let that version finish them, fetch their results and delete them, or give "
            "another data_dir, or an empty database_url and another blobs_url"
        )
    found.drop_all(tx)


def _error_name(error: sa.exc.DBAPIError) -> str:
    """SQLite's name, or PostgreSQL's code."""
    names = (getattr(error.orig, name, None) for name in ("sqlite_errorname", "sqlstate"))
    return str(next(filter(None, names), ""))


def _address(url: str) -> sa.URL:
    """The parts of a URL. Raises UsageError, without the part of a password such as `p@ss:word` that was
    taken for the server or its port."""
    scheme, _, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):  # SQLAlchemy's default is another driver
        url = f"postgresql+psycopg://{rest}"
    with suppress(ValueError):
        address = sa.make_url(url)
        if "@" not in (address.host or ""):
            probes = PROBES if address.get_backend_name() == "postgresql" else {}
            return address.set(query={**probes, **address.query})
    raise UsageError(
        "the jobs' database cannot be opened: the server or the port in database_url cannot be read; write "
        "`@`, `:` and `/` in its password as %40, %3A and %2F"
    )


def _configure_sqlite(connection: Any, record: object) -> None:
    """Write-ahead log, and deleted rows are overwritten. Writers wait for each other."""
    connection.isolation_level = "IMMEDIATE"
    connection.execute("PRAGMA busy_timeout=30000")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")
