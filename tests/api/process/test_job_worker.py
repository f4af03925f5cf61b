"""Workers: they end when the queue is empty, and give back what they have when they are told to leave."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from forescribe.api.server import EndWhenIdle
from tests.faults.harness import NotRun, Server, right, until
from tests.faults.storage import database


def idle(open_jobs, life=None):
    """A worker that ends after 10 s without jobs, its clock, and how often it was ended."""
    now, ended = [0.0], []
    life = life or SimpleNamespace(state="ready")
    made = EndWhenIdle(life, open_jobs, lambda: ended.append(1), 10.0, lambda: now[0])
    return made, now, ended


def test_a_worker_ends_when_no_job_was_open_for_long_enough() -> None:
    counts = iter([0, 0, 3, 0, 0, 0])
    made, now, ended = idle(lambda: next(counts))
    for at, over in ((0, False), (9, False), (11, False), (12, False), (21, False), (22, True)):
        now[0] = at
        assert made.look() is over, at
    assert ended == [1]


def test_a_model_that_loads_and_a_database_that_is_away_are_not_idle() -> None:
    life = SimpleNamespace(state="loading")
    away = OperationalError("select", {}, Exception("gone"))

    def fail() -> int:
        raise away

    made, now, ended = idle(lambda: 0, life)
    for at in (0, 60):
        now[0] = at
        assert not made.look()
    life.state = "ready"
    made.open_jobs = fail
    for at in (61, 120):
        now[0] = at
        assert not made.look()
    made.open_jobs = lambda: 0
    assert not made.look() and not ended
    now[0] = 130
    assert made.look() and ended


@pytest.mark.slow
def test_a_worker_that_is_told_to_leave_gives_its_jobs_back() -> None:
    """Real processes on PostgreSQL and objects: a front end, two workers, SIGTERM in mid-job."""
    try:
        with database() as url, tempfile.TemporaryDirectory() as name:
            _leave(url, Path(name))
    except NotRun as error:
        pytest.skip(str(error))


def _leave(url: str, folder: Path) -> None:
    (folder / "bucket").mkdir()
    shared = ("--database", url, "--blobs", f"file://{folder / 'bucket'}", "--log")
    servers = [Server(folder / n, *shared, str(folder / "log")) for n in ("front", "one", "two")]
    front, one, two = servers

    def lines() -> list[list[str]]:
        path = folder / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def begun(server: Server) -> int:
        assert server.process is not None
        return sum(line[:2] == [str(server.process.pid), "begin"] for line in lines())

    try:
        front.start("--front-end")
        one.start("--worker")
        ids = [front.submit(f"job{n}", 6, 1.0).json()["id"] for n in range(2)]
        until(lambda: begun(one) >= 4, 120, "the worker does nothing")
        assert one.process is not None
        one.process.send_signal(
            signal.SIGTERM
        )  # before `two` starts: that may take as long as the jobs
        one.process.wait(30)  # drain_s is 0 here
        two.start("--worker")
        held = [line for line in lines() if line[0] == str(one.process.pid) and line[1] == "begin"]
        for n, id in enumerate(ids):
            assert front.ended(id)["state"] == "succeeded"
            assert front.text(id) == right(f"job{n}", 6)
        assert begun(two) and not begun(front)
        every = [tuple(line[2:]) for line in lines() if line[1] == "begin"]
        assert (
            len(every) - len(set(every)) <= 2 and held
        )  # the group of each job that was under way
        rows = two.http.get("/metrics").text
        assert "forescribe_jobs_open 0.0" in rows
        assert not list((folder / "one" / "objects" / "copies").iterdir())
    finally:
        for server in servers:
            server.stop()
            server.http.close()
