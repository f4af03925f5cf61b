"""A disk that is full or takes no writes, a database that is away: nothing is lost, no job is to blame."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from forescribe.api.errors import disk_errors
from forescribe.api.jobs import database, files
from forescribe.api.jobs.database import Database, _configure_sqlite, database_disk_errors
from forescribe.api.jobs.files import DiskFiles
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import FOLDERS
from forescribe.api.process import PASSING
from forescribe.api.server import configure_logs
from forescribe.asr.errors import CapacityError, OutputError, StorageError, UsageError
from tests.api.conftest import memo, until
from tests.api.jobs.application import JOBS, ended, submit
from tests.api.jobs.application import files as on_disk


@pytest.fixture
def full(client, monkeypatch):
    """While it is set, neither files nor rows can be written: real errors of both."""
    state = threading.Event()
    state.looks = 0  # type: ignore[attr-defined]
    copy, begin = files._copy, Database.transaction

    def refused(data, file) -> None:
        if state.is_set():
            state.looks += 1
            raise OSError(errno.ENOSPC, "no space")
        copy(data, file)

    def probe(self: DiskFiles) -> None:
        with disk_errors():
            refused(b"", BytesIO())

    @contextmanager
    def transaction(self: Database):
        with database_disk_errors(), begin(self) as tx:
            tx.exec_driver_sql("PRAGMA max_page_count=1000000000")
            yield tx
            if state.is_set():
                state.looks += 1
                tx.exec_driver_sql("PRAGMA max_page_count=1")
                tx.exec_driver_sql("create table filler as select zeroblob(1000000)")

    monkeypatch.setattr(files, "_copy", refused)
    monkeypatch.setattr(DiskFiles, "probe", probe)
    monkeypatch.setattr(Database, "transaction", transaction)
    yield state
    state.clear()


@pytest.mark.parametrize("moment", ["queued", "running"])
def test_a_full_disk_is_waited_for_however_long(
    client, held, transcriber, full, moment, monkeypatch
) -> None:
    """Without the samples, which may be what fills it."""
    serving, samples = client.app.state.serving, []
    decoded = serving.decoded

    async def recorded(file):
        samples.append(await decoded(file))
        return samples[-1]

    monkeypatch.setattr(serving, "decoded", recorded)
    job = submit(client, memo(3)).json()["id"]
    if moment == "running":
        until(lambda: not transcriber.engine.idle)
        assert not samples[-1].file.closed
    full.set()
    held.set()
    until(lambda: full.looks > 12)  # a step has four tries
    until(lambda: all(each.file.closed for each in samples), seconds=5)
    assert client.get(f"{JOBS}/{job}").json()["finished_at"] is None
    refused = submit(client, memo(3))
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "storage_full")
    full.clear()
    assert ended(client, job)["state"] == "succeeded"
    assert client.get(f"{JOBS}/{job}/result").json()["text"]
    assert len(client.get(JOBS).json()["data"]) == 1


@pytest.mark.parametrize("role", ["plan", "group-0", "spoken", "result"])
def test_each_file_of_a_run_waits_for_room(client, monkeypatch, role) -> None:
    """A full disk at each place where a run opens a file: half a file is not left, and nothing is lost."""
    full, looks, copy = threading.Event(), list[str](), files._copy

    def refused(data, file) -> None:
        name = Path(file.name).name
        if full.is_set() and name.startswith(role):
            looks.append(name)
            file.write(data[:1])
            raise OSError(errno.ENOSPC, "no space")
        copy(data, file)

    def probe(self: DiskFiles) -> None:
        if full.is_set():
            raise OutputError("no space", code="storage_full")

    monkeypatch.setattr(files, "_copy", refused)
    monkeypatch.setattr(DiskFiles, "probe", probe)
    full.set()
    job = submit(client, memo(2), diarize="true").json()["id"]
    until(lambda: len(looks) > 0)
    time.sleep(0.1)
    assert client.get(f"{JOBS}/{job}").json()["finished_at"] is None
    full.clear()
    assert ended(client, job)["state"] == "succeeded"
    store = client.app.state.jobs.store
    stored = {path.name for path in (store.files.root / job).iterdir()}
    assert stored == set(store.jobs.get(job).files.values())


def test_a_full_disk_of_the_database_fails_no_job_however_often_it_looks_free(client) -> None:
    """A probe of a few bytes may find room where a run does not."""
    walk = client.app.state.jobs.worker.walk
    assert walk.writable()
    with pytest.raises(OutputError) as full, database_disk_errors():
        raise OperationalError("INSERT", None, Mock(sqlite_errorname="SQLITE_FULL"))
    assert walk.outage(full.value)
    assert not walk.outage(OutputError("no room for the samples", code="storage_full"))


@pytest.mark.parametrize("role", ["audio", "form", "row"])
def test_a_job_that_cannot_be_stored_is_refused_and_can_be_sent_again(
    client, full, monkeypatch, role
) -> None:
    copy = files._copy

    def refused(data, file) -> None:
        full.set() if Path(file.name).name.startswith(role) else full.clear()
        copy(data, file)
        if role == "row" and "form" in file.name:
            full.set()

    monkeypatch.setattr(files, "_copy", refused)
    key = {"Idempotency-Key": "once"}
    answer = submit(client, memo(2), headers=key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert int(answer.headers["retry-after"]) > 0
    monkeypatch.setattr(files, "_copy", copy)
    full.clear()
    store = client.app.state.jobs.store
    store.sweep(-60.0)  # the row of its folder could not be deleted either
    assert store.files.jobs() == set() and client.get(JOBS).json()["data"] == []
    job = submit(client, memo(2), headers=key)
    assert job.status_code == 202 and ended(client, job.json()["id"])["state"] == "succeeded"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/cancel", None),
        ("POST", "/retry", None),
        ("POST", "/diarize", None),
        ("PATCH", "", {"label": "another"}),
        ("PUT", "/corrections", {"segments": []}),
        ("DELETE", "/corrections", None),
        ("DELETE", "", None),
    ],
)
def test_no_call_is_lost_in_a_full_disk(client, held, full, method, path, body) -> None:
    """507, and the job is as it was; with room again the same call is done."""
    job = submit(client, memo(2)).json()["id"]
    at = f"{JOBS}/{job}"
    if path not in ("/cancel", "/retry"):
        held.set()
        ended(client, job)
    elif path == "/retry":
        client.post(f"{at}/cancel")
        until(lambda: not client.app.state.jobs.worker.running())
    headers = {}
    if method == "PUT":
        headers["If-Match"] = client.get(f"{at}/corrections").headers["etag"]
    before = client.get(at).json()
    full.set()
    answer = client.request(method, f"{at}{path}", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    full.clear()
    now = client.get(at).json()
    assert before["state"] in (now["state"], "queued") and before["label"] == now["label"]
    again = client.request(method, f"{at}{path}", json=body, headers=headers)
    assert again.status_code in (200, 202, 204), again.text
    held.set()
    if method != "DELETE" or path:
        ended(client, job)


def test_a_recording_that_never_fits_is_not_waited_for(client, monkeypatch) -> None:
    """There is room, but not for its samples."""

    async def decoded(file):
        raise OutputError("no room for the samples", code="storage_full")

    job = submit(client, memo(2))
    assert job.status_code == 202
    ended(client, job.json()["id"])
    serving = client.app.state.serving
    whole = serving.decoded
    answers = iter([whole])

    async def only_first(file):
        return await next(answers, decoded)(file)

    monkeypatch.setattr(serving, "decoded", only_first)
    other = submit(client, memo(3)).json()["id"]
    over = ended(client, other)
    assert over["state"] == "failed" and over["error"]["code"] == "storage_full"


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "storage_full"), (errno.EROFS, "unwritable_output")]
)
def test_what_the_disk_refuses_leaves_no_half_file(tmp_path, monkeypatch, number, code) -> None:
    disk = DiskFiles(tmp_path)

    def fsync(_: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OutputError) as caught:
        disk.put("job", "plan", b"text")
    assert caught.value.code == code
    assert list((tmp_path / "job").iterdir()) == []


def test_a_commit_and_a_file_are_on_disk(tmp_path, monkeypatch) -> None:
    connection, synced = sqlite3.connect(tmp_path / "jobs.db"), []
    _configure_sqlite(connection, None)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    folder = tmp_path / "files"
    name = DiskFiles(folder).put("job", "plan", b"text")
    assert synced == [str(folder / "job" / name), str(folder / "job"), str(folder)]


def fault(name: str | None = None, state: str | None = None) -> OperationalError:
    made = sqlite3.OperationalError("refused")
    made.sqlite_errorname = name
    if state is not None:
        made.sqlstate = state
    return OperationalError("insert", {}, made)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (fault("SQLITE_FULL"), "storage_full"),
        (fault("SQLITE_READONLY"), "unwritable_output"),
        (fault("SQLITE_IOERR_WRITE"), "unwritable_output"),
        (fault("SQLITE_CANTOPEN"), "unwritable_output"),
        (fault(state="53100"), "storage_full"),
    ],
)
def test_what_the_databases_disk_refuses_has_a_code(error, code) -> None:
    with pytest.raises(OutputError) as caught, database_disk_errors():
        raise error
    assert caught.value.code == code


def test_other_faults_of_the_database_stay_what_they_are(tmp_path) -> None:
    with pytest.raises(OperationalError), database_disk_errors():
        raise fault("SQLITE_ERROR")
    store = Store.open(tmp_path)
    assert store.database.lost(fault(state="25006")) and store.database.lost(fault(state="57P03"))
    for state in ("57014", "55P03", "58030", "53200", "40P01"):
        assert store.database.lost(fault(state=state))
    assert not store.database.lost(fault("SQLITE_ERROR"))
    assert not store.database.lost(fault(state="42P01"))
    gone = OperationalError("select", {}, Exception(), connection_invalidated=True)
    assert store.database.lost(gone) and store.writable()
    with store.database.engine.connect() as tx:
        tx.exec_driver_sql("PRAGMA query_only=ON")
        tx.rollback()
    assert not store.writable() and store.database.available()
    store.close()


def test_a_file_of_sqlite_that_others_lock_is_a_database_that_is_away(tmp_path) -> None:
    """By a statement that waits for the lock, and where such statements have all connections."""
    store, pool = Store.open(tmp_path), []
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        with store.database.engine.connect() as tx:  # the pool's only connection until here
            assert tx.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 30_000
            tx.exec_driver_sql("PRAGMA busy_timeout=0")
        with pytest.raises(OperationalError) as locked, store.transaction():
            pass
        assert store.database.lost(locked.value)
    while True:
        try:
            pool.append(store.database.engine.connect())
        except OperationalError as none_free:
            assert store.database.lost(none_free)
            break
    for tx in pool:
        tx.close()
    assert store.database.available() and store.writable()
    store.close()


def test_a_deleted_row_leaves_the_log_of_sqlite_too(tmp_path) -> None:
    store, place = Store.open(tmp_path), FOLDERS.c.job == "confidential"
    with store.transaction() as tx:
        tx.execute(sa.insert(FOLDERS).values(job="confidential"))
    with store.transaction() as tx:
        tx.execute(sa.delete(FOLDERS).where(place))
    assert b"confidential" in on_disk(tmp_path)
    store.database.truncate_log()
    assert b"confidential" not in on_disk(tmp_path)
    store.close()


def test_a_store_whose_files_cannot_be_written_says_so(tmp_path, monkeypatch) -> None:
    store = Store.open(tmp_path)
    for error in (OutputError("full"), StorageError("the object storage does not answer")):
        monkeypatch.setattr(store.files, "probe", Mock(side_effect=error))
        assert not store.writable() and store.database.accepts_writes()
    store.close()


def test_a_server_that_is_away_at_the_start_may_come_back(monkeypatch) -> None:
    with pytest.raises(CapacityError, match="cannot be opened"):
        Database.open("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")
    with pytest.raises(UsageError):
        Database.open("sqlite:////no/such/folder/jobs.db")
    with pytest.raises(UsageError):
        Database.open("mongodb://x")
    for place in ("p@9c41@host", "p@9c41:b@host", "9c41@host:port"):
        with pytest.raises(UsageError, match="cannot be read; write") as refused:
            Database.open(f"postgresql://nobody:{place}/none")
        assert "9c41" not in str(refused.value)


@pytest.mark.slow
def test_a_service_whose_database_is_away_ends_with_a_line_and_a_status() -> None:
    code = """
from forescribe.api.workers import bound, run
from forescribe.api.settings import Settings
settings = Settings(port=0, data_dir="{folder}",
                    database_url="postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")
run(settings, bound(settings))
"""
    root = Path(__file__).parents[3]
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code.replace("{folder}", folder)],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == PASSING, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("forescribe: ")]
    assert "the jobs' store" in line and "Traceback" not in done.stderr


def test_a_server_that_a_partition_hides_is_given_up_within_half_a_minute() -> None:
    """libpq's defaults are those of the kernel: 15 minutes for a statement, two hours in silence."""
    query = database._address("postgres://user@db.internal/jobs?tcp_user_timeout=5000").query
    idle, interval, count = (
        int(query[f"keepalives_{name}"]) for name in ("idle", "interval", "count")
    )
    assert query["keepalives"] == "1" and idle + interval * count <= 30
    assert query["tcp_user_timeout"] == "5000"  # the operator's own
    assert int(database._address("postgresql://db/jobs").query["tcp_user_timeout"]) <= 30_000
    assert not database._address("sqlite:///jobs.db").query


OPENING = """
import os, sys
from unittest.mock import Mock
from forescribe.api.jobs.service import Jobs
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
for number in range(5):
    settings = Settings(model="random", data_dir=f"{sys.argv[1]}/{number}")
    serving = Serving(settings, None, Mock(), Mock())
    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            Jobs.open(settings, serving).store.close()
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)
"""


@pytest.mark.slow
def test_several_processes_may_open_a_new_database_at_once(tmp_path) -> None:
    run = [sys.executable, "-c", OPENING, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_connections_log_nothing_where_a_service_ends(tmp_path, caplog) -> None:
    """SQLAlchemy keeps its own pools silent, not those of other packages."""
    configure_logs()
    with caplog.at_level("INFO"):
        Store.open(tmp_path).close()
    assert not caplog.records
