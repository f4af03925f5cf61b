"""Workers: they end when the queue is empty, and give back what they have when they are told to leave."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from forescribe.api.server import end_when_idle
from tests.faults.harness import NotRun, Server, right, until
from tests.faults.storage import database


def ended_at(looks) -> int:
    """When a worker ends that waits for 10 s without jobs and looks once a second: `looks` are the states of
    its model and what the database says."""
    now, found, life = [0], iter(looks), SimpleNamespace(state="ready")

    def pause(seconds: float) -> None:
        now[0] += round(seconds)
        life.state, jobs[0] = next(found)

    def open_jobs() -> int:
        if isinstance(jobs[0], Exception):
            raise jobs[0]
        return jobs[0]

    jobs, ended = [0], []
    end_when_idle(life, open_jobs, lambda: ended.append(1), 10.0, lambda: now[0], pause)
    assert ended == [1]
    return now[0]


def test_a_worker_ends_when_no_job_was_open_for_long_enough() -> None:
    away = OperationalError("select", {}, Exception("gone"))
    nothing = [("ready", 0)] * 12
    assert ended_at(nothing) == 10
    for busy in (("ready", 3), ("loading", 0), ("ready", away)):
        assert ended_at([*nothing[:9], busy, *nothing]) == 20


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
        assert not list((folder / "one" / "copies").iterdir())
    finally:
        for server in servers:
            server.stop()
            server.http.close()
