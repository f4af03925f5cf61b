"""F1, F4: killed processes."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import httpx

from tests.faults.harness import (
    PATIENCE_S,
    Inconclusive,
    Server,
    Wrong,
    holds,
    right,
    server,
    until,
)


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
