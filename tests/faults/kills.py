"""F1, F4, F22: killed processes."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence

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
from tests.faults.replicas import Balancer


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
        begun = Counter((job, k) for _, what, job, k, _ in s.log() if what == "begin")
        again = sum(begun.values()) - jobs * groups
        holds(len(begun) == jobs * groups, "a group was never done")
        holds(again <= hits * 4, f"{again} groups were done again, more than {hits * 4}")
        names = [json.loads(names) for (names,) in s.rows("select files from forescribe_jobs")]
        stored = sum(role.startswith("group-") for each in names for role in each)
        holds(stored == jobs * groups, f"{stored} groups are recorded")
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


def kill_within_groups(long: bool, rng: random.Random) -> str:
    """SIGKILL again and again before a group is done: no machine's end counts against a job."""
    if long:  # as 20 s to an hour of audio
        kills, gap_s = 30, (5.0, 15.0)
        scripts = [(rng.choice((1, 1, 2, 4, 15)), rng.uniform(0.5, 6.0)) for _ in range(20)]
    else:
        kills, gap_s = 4, (1.0, 2.0)
        scripts = [(2, 6.0)] * 6
    with server() as s:
        s.start()
        sender = _Sender(s, scripts)
        sender.start()
        hits = 0
        for _ in range(kills):
            before, end = len(s.log()), time.monotonic() + 5  # those done alone begin later
            while len(s.log()) == before and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(rng.uniform(*gap_s))
            s.kill()
            hits += any(state == "running" for (state,) in s.rows(_STATES))
            s.start()
        sender.join(PATIENCE_S)
        holds(len(sender.made) == len(scripts), f"{len(sender.made)} jobs were accepted")
        for n, (id, (groups, _)) in enumerate(zip(sender.made, scripts, strict=True)):
            job = s.ended(id)
            holds(job["state"] == "succeeded", f"job{n} is {job['state']}: {job['error']}")
            holds(s.text(id) == right(f"job{n}", groups), f"job{n} has another text")
        begun = Counter((job, k) for _, what, job, k, _ in s.log() if what == "begin")
        most = max(begun.values())
    if most < 3:
        raise Inconclusive(f"no group was begun more than {most} times")
    return (
        f"{hits} of {kills} kills hit jobs; one group was begun {most} times; {len(scripts)} jobs, all "
        "right"
    )


class _Sender(threading.Thread):
    """A client that submits jobs, half of them as resumable uploads, while its server dies."""

    def __init__(self, s: Server, scripts: Sequence[tuple[int, float]]) -> None:
        super().__init__(daemon=True)
        self.client, self.scripts = Balancer([s]), scripts
        self.made: list[str] = []

    def run(self) -> None:
        for n, (groups, pace_s) in enumerate(self.scripts):
            if n % 2:
                self.made.append(self.client.upload(f"job{n}", groups, pace_s, 200_000))
            else:
                self.made.append(self.client.submit(f"job{n}", groups, pace_s))


def kill_during_acceptance(long: bool, rng: random.Random) -> str:
    """SIGKILL between file, commit and answer: a retry with the same key creates one job."""
    seen = []
    for place in ("file", "commit"):
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
            left = [path for path in (s.folder / "files").iterdir() if path.is_dir()]
            holds(not left, f"{len(left)} folders without a job")
            seen.append(place)
    return f"killed behind {' and '.join(seen)}: one job each, no file is left over"
