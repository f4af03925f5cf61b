"""F8: a new version with other workflow steps is deployed while jobs run.

On SQLite the old process ends before the new one starts; on PostgreSQL they overlap.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from benchmarks.faults.harness import (
    PATIENCE_S,
    Inconclusive,
    NotRun,
    Server,
    holds,
    right,
    server,
    until,
)
from benchmarks.faults.receiver import SECRET, Receiver
from benchmarks.faults.storage import database

NEXT = ("--version", "jobs-next")
"""A version whose workflow begins with a step that the previous one does not have."""

GROUPS, PACE_S = 6, 0.5

ENDED_S = 30.0
"""Time for the workflows of jobs that have ended; work that is lost is noticed after 60 s only."""

BESIDE_S = 20.0
"""Time for the new version to take over the jobs in the old one's queue."""


def deploy_new_version(long: bool, rng: random.Random) -> str:
    """A new version while jobs run, are queued, and wait for a webhook."""
    said, jobs = [_in_turn(12 if long else 5)], 12 if long else 5
    try:
        with database() as url, tempfile.TemporaryDirectory() as folder:
            said.append(_beside(jobs, url, Path(folder)))
    except NotRun as error:
        said.append(f"beside each other not tried ({error})")
    return "; ".join(said)


def _in_turn(jobs: int) -> str:
    receiver = Receiver([500, 204])
    try:
        with server("--concurrency", "2", "--schedule", "0", "15", "15") as s:
            s.start()
            hook = {"webhook_url": receiver.url, "webhook_secret": SECRET}
            called = s.submit("call", 1, 0.01, None, **hook).json()["id"]
            made = [called] + _submitted(s, jobs)
            until(lambda: len(receiver.seen) == 1, PATIENCE_S, "no webhook call")
            _at_work(s)
            s.stop()
            left = s.rows("select status from workflow_status where status != 'SUCCESS'")
            counts = {status: left.count((status,)) for (status,) in left}
            if not {"PENDING", "ENQUEUED", "DELAYED"} <= counts.keys():
                raise Inconclusive(f"the old one has left no work of every kind: {counts}")
            s.start(*NEXT)
            again = _right(s, made[1:])
            until(lambda: len(receiver.seen) == 2, PATIENCE_S, "the second try never comes")
            until(
                lambda: s.job(called)["webhook"]["state"] == "delivered", PATIENCE_S, "no callback"
            )
            # DBOS records the end of a workflow after the job's own end.
            until(lambda: not s.rows(_STRANDED), ENDED_S, "work is left on the old version")
    finally:
        receiver.close()
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"SQLite, in turn: {told} left by the old one; all done by the new, {again} groups again"


def _beside(jobs: int, url: str, folder: Path) -> str:
    import psycopg

    options = ("--database", url, "--concurrency", "2")
    old, new = Server(folder, *options), Server(folder, *options)
    try:
        began = time.monotonic()
        old.start()
        # The old version's jobs must run longer than the new version takes to start.
        made = _submitted(old, jobs, max(PACE_S, (time.monotonic() - began) / 3))
        _at_work(old)
        new.start(*NEXT)
        until(
            lambda: len({line[0] for line in new.log()}) == 2, BESIDE_S, "the new one has no work"
        )
        open_ = sum(old.job(id)["state"] == "running" for id in made)
        old.stop()
        if open_ < 3:
            raise Inconclusive(f"{open_} jobs ran as the old one was told to leave")
        again = _right(new, made)
        with psycopg.connect(url) as connection:
            query = _STRANDED.replace("from workflow", "from dbos.workflow")
            until(
                lambda: not connection.execute(query).fetchall(),
                ENDED_S,
                "work is left on the old version",
            )
    finally:
        for s in (old, new):
            s.stop()
            s.http.close()
    return f"PostgreSQL, beside each other: SIGTERM with {open_} running; {jobs} right, {again} groups again"


_STRANDED = (
    "select workflow_uuid, status, application_version from workflow_status "
    "where status in ('PENDING', 'ENQUEUED', 'DELAYED')"
)


def _submitted(s: Server, jobs: int, pace_s: float = PACE_S) -> list[str]:
    return [s.submit(f"job{i}", GROUPS, pace_s, f"key{i}").json()["id"] for i in range(jobs)]


def _at_work(s: Server) -> None:
    before = len(s.log())
    until(lambda: len(s.log()) > before + 2, PATIENCE_S, "no progress")


def _right(s: Server, made: list[str]) -> int:
    """Check that the new workflow finished all jobs; return the number of groups that were repeated."""
    for i, id in enumerate(made):
        job = s.ended(id)
        holds(job["state"] == "succeeded", f"{id} is {job['state']}: {job['error']}")
        holds(s.text(id) == right(f"job{i}", GROUPS), f"{id} has another text")
    begun = [(job, k) for _, what, job, k in s.log() if what == "begin" and job in made]
    again = len(begun) - len(made) * GROUPS
    holds(len(set(begun)) == len(made) * GROUPS, "a group was never done")
    holds(again <= 4, f"{again} groups were done again, more than ran")
    greeted = {job for _, what, job, _ in s.log() if what == "greet"}
    holds(bool(greeted & set(made)), "no job was run by the new workflow")
    return again
