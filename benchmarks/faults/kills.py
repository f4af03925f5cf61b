"""F1, F2, F4, F17: killed and stopped processes, and jobs that lost their workflow."""

from __future__ import annotations

import random
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from benchmarks.faults.harness import (
    PATIENCE_S,
    Inconclusive,
    Server,
    Wrong,
    holds,
    right,
    server,
    until,
)
from benchmarks.faults.storage import database


def kill_at_random_times(long: bool, rng: random.Random) -> str:
    """SIGKILL at random times: every accepted job succeeds, and finished groups are not repeated."""
    kills, jobs, groups, pace_s = (20, 25, 20, 0.4) if long else (3, 4, 8, 0.3)
    with server() as s:
        s.start()
        made = [s.submit(f"job{i}", groups, pace_s, f"key{i}").json()["id"] for i in range(jobs)]
        hits = 0
        for _ in range(kills):
            _got_on(s, made)
            time.sleep(rng.uniform(0, 2 * pace_s))
            s.kill()
            hits += any(state not in ("succeeded",) for (state,) in s.rows(_STATES))
            s.start()
        for i, id in enumerate(made):
            holds(s.ended(id)["state"] == "succeeded", f"{id} has not succeeded")
            holds(s.text(id) == right(f"job{i}", groups), f"{id} has another text")
        begun = Counter((job, k) for _, what, job, k in s.log() if what == "begin")
        again = sum(begun.values()) - jobs * groups
        holds(len(begun) == jobs * groups, "a group was never done")
        holds(again <= hits * 4, f"{again} groups were done again, more than {hits * 4}")
        refs = s.rows(
            "select count(*), count(distinct job || k) from forescribe_refs where role='group'"
        )
        holds(refs == [(jobs * groups, jobs * groups)], f"records of groups: {refs}")
        holds(s.rows("pragma integrity_check") == [("ok",)], "the database is damaged")
    if not hits:
        raise Inconclusive("no kill hit work under way")
    return (
        f"{hits} of {kills} kills hit work; {jobs} jobs, {jobs * groups} groups, all right; "
        f"{again} groups done again (bound {hits * 4})"
    )


def _got_on(s: Server, made: list[str]) -> None:
    before = len(s.log())
    until(lambda: len(s.log()) > before + 2 or _all_ended(s, made), PATIENCE_S, "no progress")


_STATES = "select state from forescribe_jobs"


def _all_ended(s: Server, made: list[str]) -> bool:
    return all(s.job(id)["finished_at"] for id in made)


def stop_one_of_two(long: bool, rng: random.Random) -> str:
    """Two processes on PostgreSQL: one is stopped for longer than its heartbeat, then one is killed."""
    jobs, groups = 4, 12
    with database() as url, tempfile.TemporaryDirectory() as folder:
        options = ("--database", url, "--concurrency", "2")
        pair = [Server(Path(folder), *options) for _ in range(2)]
        try:
            for s in pair:
                s.start()
            first, second = pair
            made = [
                first.submit(f"job{i}", groups, 1.5, f"key{i}").json()["id"] for i in range(jobs)
            ]
            until(
                lambda: len({line[0] for line in first.log()}) == 2, PATIENCE_S, "one has no work"
            )
            assert first.process is not None and second.process is not None
            second.process.send_signal(signal.SIGSTOP)
            time.sleep(14)
            second.process.send_signal(signal.SIGCONT)
            time.sleep(4)
            hit = any(first.job(id)["finished_at"] is None for id in made)
            second.kill()
            for i, id in enumerate(made):
                holds(first.ended(id)["state"] == "succeeded", f"{id} has not succeeded")
                holds(first.text(id) == right(f"job{i}", groups), f"{id} has another text")
                seen = first.http.get(f"/v1/jobs/{id}/events").text.count("event: segment")
                holds(seen == groups, f"{id} tells of {seen} groups")
            begun = Counter((job, k) for _, what, job, k in first.log() if what == "begin")
            again = sum(begun.values()) - jobs * groups
            # Work of the stopped process, and what it begins before it notices that it was replaced.
            holds(again <= 3 * 4, f"{again} groups were done again")
        finally:
            for s in pair:
                s.stop()
                s.http.close()
    if not hit:
        raise Inconclusive("the kill hit no work under way")
    return f"stopped for 14 s, then killed; {jobs} jobs all right, {again} groups done again"


def kill_during_acceptance(long: bool, rng: random.Random) -> str:
    """SIGKILL between blob, commit and answer: a retry with the same key creates one job."""
    seen = []
    for place in ("blob", "commit"):
        with server() as s:
            s.start("--die-at", place)
            try:
                s.submit("once", 2, 0.01, "key")
                raise Wrong("the server has answered")
            except httpx.HTTPError:
                pass
            assert s.process is not None
            holds(s.process.wait(30) == -signal.SIGKILL, "it was not killed")
            s.start()
            id = s.submit("once", 2, 0.01, "key").json()["id"]
            holds(
                s.ended(id)["state"] == "succeeded" and s.text(id) == right("once", 2), "wrong text"
            )
            holds(len(s.http.get("/v1/jobs").json()["data"]) == 1, "two jobs of one key")
            s.http.delete(f"/v1/jobs/{id}")
            left = list((s.folder / "blobs").glob("??/*"))
            holds(not left, f"{len(left)} blobs without a job")
            seen.append(place)
    return f"killed behind {' and '.join(seen)}: one job each, no orphan blob"


def lose_workflow(long: bool, rng: random.Random) -> str:
    """A PENDING workflow that its process does not run (set in the table) is queued again."""
    with server() as s:
        s.start()
        id = s.submit("lost", 3, 0.01).json()["id"]
        s.ended(id)
        with sqlite3.connect(s.folder / "jobs.db", timeout=30) as db:
            db.execute("update forescribe_jobs set state='running', finished_at=null")
            db.execute("delete from forescribe_refs where role in ('result', 'spoken')")
            db.execute("delete from operation_outputs where function_id >= 4")
            db.execute("update workflow_status set status='PENDING'")
        began = time.monotonic()
        job = s.ended(id)
        wall_s = time.monotonic() - began
        holds(job["state"] == "succeeded" and s.text(id) == right("lost", 3), "it was not done")
        stuck = [
            line for line in s.http.get("/metrics").text.splitlines() if "jobs_stuck_total" in line
        ]
        holds(stuck[-1].endswith(" 1.0"), f"the metric says {stuck}")
        holds(wall_s < 90, f"it took {wall_s:.0f} s")
    return f"queued again by its own process, done {wall_s:.0f} s after it was lost, text right"
