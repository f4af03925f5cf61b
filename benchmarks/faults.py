"""Faults: what becomes of jobs when processes are killed, disks fill up, clients leave and clocks jump.

    python -m benchmarks.faults                # a few kills each, seconds to a minute
    python -m benchmarks.faults --long F1 F9   # twenty kills over 500 groups; these faults only

Real processes, real signals, a real database; only the model is a fake with known text
(benchmarks/fault_server.py), but for F5. What was done is read from a log written with O_APPEND. A run in
which no fault hit work under way proves nothing and says so: *inconclusive*. Numbers as in docs/jobs.md.
Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from benchmarks import provenance
from benchmarks.fault_database import database, f3
from benchmarks.fault_deploy import f8
from benchmarks.fault_engine import f5
from benchmarks.fault_harness import (
    PATIENCE_S,
    Inconclusive,
    NotRun,
    Row,
    Server,
    Wrong,
    holds,
    right,
    server,
    until,
)
from benchmarks.fault_load import f13
from benchmarks.fault_phases import f19, f20
from benchmarks.fault_receiver import SECRET, Receiver

# -- the faults ---------------------------------------------------------------------------------------


def f1(long: bool, rng: random.Random) -> str:
    """SIGKILL at random times; every accepted job is right, finished groups are not done again."""
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


def f2(long: bool, rng: random.Random) -> str:
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
            # What a stopped process is doing, and what it takes up before it sees that it was replaced.
            holds(again <= 3 * 4, f"{again} groups were done again")
        finally:
            for s in pair:
                s.stop()
                s.http.close()
    if not hit:
        raise Inconclusive("the kill hit no work under way")
    return f"stopped for 14 s, then killed; {jobs} jobs all right, {again} groups done again"


def f4(long: bool, rng: random.Random) -> str:
    """SIGKILL between blob, commit and answer; a retry with the same key gives one job."""
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
            holds(not left, f"{len(left)} blobs are nobody's")
            seen.append(place)
    return f"killed behind {' and '.join(seen)}: one job each, no orphan blob"


def f7(long: bool, rng: random.Random) -> str:
    """A full disk refuses what comes in, and a job goes on when there is room again."""
    with tempfile.TemporaryDirectory() as mount:
        command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mount]
        if subprocess.run(command, capture_output=True).returncode:
            raise NotRun("tmpfs cannot be mounted here")
        s = Server(Path(mount) / "data")
        try:
            s.start()
            id = s.submit("full", 6, 1.0, "key").json()["id"]
            until(lambda: len(s.log()) >= 2, PATIENCE_S, "no progress")
            filler = Path(mount) / "filler"
            with filler.open("wb") as file:
                try:
                    while True:
                        file.write(b"x" * 65536)
                        file.flush()
                except OSError:
                    pass
            refused = s.submit("more" * 20_000, 1, 0.0)
            holds(refused.status_code == 507, f"a full disk answers {refused.status_code}")
            time.sleep(8)
            filler.unlink()
            holds(not list((s.folder / "blobs" / "drafts").iterdir()), "a partial blob is left")
            job = s.ended(id)
            if job["state"] == "failed":
                done = s.rows("select count(*) from forescribe_refs where role = 'group'")[0][0]
                holds(s.http.post(f"/v1/jobs/{id}/retry").status_code == 202, "not to be retried")
                job = s.ended(id)
                how = f"failed as {done} groups were done, retried"
            else:
                how = "went on by itself"
            holds(job["state"] == "succeeded" and s.text(id) == right("full", 6), "wrong text")
        finally:
            s.stop()
            s.http.close()
            subprocess.run(["umount", "-l", mount], capture_output=True)
    return f"507 and no partial blob; the job under way {how}, text right"


def f9(long: bool, rng: random.Random) -> str:
    """Cancel while queued, and in the lane: told within 2 s, no later write."""
    slowest = 0.0
    with server("--concurrency", "1") as s:
        s.start()
        first = s.submit("first", 50, 0.2).json()["id"]
        second = s.submit("second", 2, 0.01).json()["id"]
        until(lambda: len(s.log()) >= 3, PATIENCE_S, "no progress")
        for id in (second, first):
            began = time.monotonic()
            state = s.http.post(f"/v1/jobs/{id}/cancel").json()["state"]
            slowest = max(slowest, time.monotonic() - began)
            holds(state == "cancelled", f"cancel answers {state}")
        time.sleep(1)
        before = (s.job(first), s.rows("select count(*) from forescribe_refs"))
        third = s.submit("third", 2, 0.01).json()["id"]  # the only place is free again
        holds(s.ended(third)["state"] == "succeeded", "the place was not freed")
        after = (
            s.job(first),
            s.rows(f"select count(*) from forescribe_refs where job != '{third}'"),
        )
        holds(before == after, "something was written after the cancel")
        lines = [line for line in s.log() if line[2] == second]
        holds(not lines, "a queued job was begun after its cancel")
    holds(slowest < 2, f"it took {slowest:.1f} s")
    return f"queued and in the lane: cancelled within {slowest:.2f} s, place freed, no later write"


def f10(long: bool, rng: random.Random) -> str:
    """A receiver that fails, hangs, redirects, leaves; a restart between tries."""
    inside, said = Receiver([200]), []
    plans: list[tuple[str, list[int | str], str, int]] = [
        ("500, hang, then 204", [500, "hang", 204], "delivered", 3),
        ("a redirect inside", [inside.url], "failed", 4),
        ("410", [410], "gone", 1),
    ]
    try:
        for name, answers, state, tries in plans:
            receiver = Receiver(answers)
            with server("--schedule", "0", "3", "3", "3") as s:
                s.start()
                hook = {"webhook_url": receiver.url, "webhook_secret": SECRET}
                id = s.submit("call", 1, 0.01, None, **hook).json()["id"]
                s.ended(id)
                if tries == 3:
                    until(lambda: len(receiver.seen) == 1, PATIENCE_S, "nobody calls")  # noqa: B023
                    s.kill()
                    s.start()
                until(lambda: s.job(id)["webhook"]["state"] != "pending", PATIENCE_S, "no end")  # noqa: B023
                told = s.job(id)["webhook"]
                holds(told["state"] == state, f"{name}: {told}")
                holds(len(receiver.seen) >= tries, f"{name}: {len(receiver.seen)} tries")
                holds(len({h["webhook-id"] for h, _ in receiver.seen}) == 1, f"{name}: ids differ")
                holds(receiver.signed(), f"{name}: a signature is wrong")
                said.append(f"{name}: {state}")
            receiver.close()
        holds(not inside.seen, "a redirect was followed")
        with server("--setting", "webhook_networks=[]") as s:
            s.start()
            private = {"webhook_url": inside.url, "webhook_secret": SECRET}
            id = s.submit("call", 1, 0.01, None, **private).json()["id"]
            s.ended(id)
            until(lambda: s.job(id)["webhook"]["state"] == "failed", PATIENCE_S, "no end")
            holds(not inside.seen, "a private address was called")
            said.append("private address: not called")
    finally:
        inside.close()
    return "; ".join(said)


def f11(long: bool, rng: random.Random) -> str:
    """Uploads: the server killed in mid-PATCH, two writers, a wrong offset, too much."""
    audio = json.dumps({"text": "whole", "groups": 2, "pace_s": 0.01}).encode().ljust(40 << 20)
    tus = {"Tus-Resumable": "1.0.0"}
    body = {**tus, "Content-Type": "application/offset+octet-stream"}
    with server() as s:
        s.start()
        made = s.http.post("/v1/uploads", headers={**tus, "Upload-Length": str(len(audio))})
        place = made.headers["location"]

        def offset() -> int:
            return int(s.http.head(place, headers=tus).headers["upload-offset"])

        def patch(at: int, data: Any) -> httpx.Response:
            return s.http.patch(place, headers={**body, "Upload-Offset": str(at)}, content=data)

        def slowly() -> Iterator[bytes]:
            for at in range(0, len(audio), 1 << 20):
                yield audio[at : at + (1 << 20)]
                time.sleep(0.05)
                if at == 30 << 20:
                    s.kill()

        try:
            patch(0, slowly())
            raise Wrong("the server was to be killed")
        except httpx.HTTPError:
            pass
        s.start()
        at = offset()
        holds(0 < at < len(audio), f"nothing of the first piece was kept ({at})")
        holds(patch(at + 1, b"x").status_code == 409, "a wrong offset")
        holds(patch(at, b"x" * (len(audio) - at + 1)).status_code == 413, "too much")
        holds(offset() == at, "a refused piece was kept")
        statuses: list[int] = []
        go = threading.Event()

        def first() -> Iterator[bytes]:
            yield audio[at : at + 1000]
            go.wait(30)
            yield audio[at + 1000 :]

        writer = threading.Thread(target=lambda: statuses.append(patch(at, first()).status_code))
        writer.start()
        time.sleep(2)
        second = httpx.patch(
            s.url + place, headers={**body, "Upload-Offset": str(at)}, content=b"y", trust_env=False
        )
        go.set()
        writer.join()
        holds(second.status_code == 423, f"a second writer has {second.status_code}")
        holds(statuses == [204] and offset() == len(audio), f"the first has {statuses}")
        id = s.http.post(
            "/v1/jobs", data={"upload_id": place.split("/")[-1]}, files={"x": b""}
        ).json()
        if "id" not in id:
            id = s.http.post("/v1/jobs", files={"upload_id": (None, place.split("/")[-1])}).json()
        holds(s.ended(id["id"])["state"] == "succeeded", "the job of the upload")
        heard = hashlib.sha256(s.http.get(f"/v1/jobs/{id['id']}/audio").content).digest()
        holds(heard == hashlib.sha256(audio).digest(), "the hash differs")
    return f"killed in mid-PATCH, {at >> 20} of 40 MiB kept, hash right after; 409, 413, 423"


def f14(long: bool, rng: random.Random) -> str:
    """DELETE in every state; a search of all bytes on disk finds nothing."""
    marker, states = "MARKERZQXJ", []
    with server() as s:
        s.start()
        for groups, pace_s, moment in (
            (50, 0.1, "running"),
            (2, 0.01, "succeeded"),
            (50, 0.1, "cancelled"),
        ):
            id = s.submit(marker, groups, pace_s, None, prompt=marker).json()["id"]
            if moment == "succeeded":
                s.ended(id)
            else:
                lines = len(s.log())
                until(lambda: len(s.log()) > lines + 2, PATIENCE_S, "no progress")  # noqa: B023
            if moment == "cancelled":
                s.http.post(f"/v1/jobs/{id}/cancel")
            holds(len(found(s.folder, marker)) > 1, "nothing to be found: the search is blind")
            holds(s.http.delete(f"/v1/jobs/{id}").status_code == 204, f"DELETE while {moment}")
            left = found(s.folder, marker)
            holds(not left, f"deleted while {moment}: the text is in {', '.join(left)}")
            states.append(moment)
        holds(s.http.get("/v1/jobs").json()["data"] == [], "a job is left")
    return f"deleted while {', '.join(states)}: no byte of the text in database, WAL, blobs or log"


def found(folder: Path, marker: str) -> list[str]:
    """Files with the marker in their bytes."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p.relative_to(folder)) for p in paths if marker.encode() in p.read_bytes()]


def f17(long: bool, rng: random.Random) -> str:
    """A PENDING row that its living process does not run (set in the table) is queued again."""
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


Fault = Callable[[bool, random.Random], str]

FAULTS: Mapping[str, Fault | str] = {
    "F1": f1,
    "F2": f2,
    "F3": f3,
    "F4": f4,
    "F5": f5,
    "F6": "the decoder's child has tests of its own, tests/api/speech/test_decoding.py",
    "F7": f7,
    "F8": f8,
    "F9": f9,
    "F10": f10,
    "F11": f11,
    "F12": "bombs and false headers are the decoder's: tests/api/speech/test_decoding.py",
    "F13": f13,
    "F14": f14,
    "F15": "Ray Serve is no part of this service: the model runs in its process",
    "F16": "clocks are arguments: tests/api/jobs/test_keeper.py",
    "F17": f17,
    "F18": "tests/api/test_schema.py, tests/api/jobs/test_jobs_machine.py",
    "F19": f19,
    "F20": f20,
}


def run(name: str, long: bool, seed: int) -> Row:
    fault, began = FAULTS[name], time.monotonic()
    if isinstance(fault, str):
        return Row(name, "not run", fault)
    try:
        what, held = fault(long, random.Random(seed)), "yes"
    except Wrong as error:
        what, held = str(error), "no"
    except Inconclusive as error:
        what, held = str(error), "inconclusive"
    except NotRun as error:
        what, held = str(error), "not run"
    return Row(name, held, what, round(time.monotonic() - began, 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    parser.add_argument(
        "--long",
        action="store_true",
        help="more kills, more jobs, more load: minutes for each fault",
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    unknown = set(asked.faults) - FAULTS.keys()
    if unknown:
        parser.error(f"unknown fault {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    print(f"seed {asked.seed}", flush=True)
    rows = []
    for name in asked.faults or FAULTS:
        rows.append(run(name, asked.long, asked.seed))
        row = rows[-1]
        print(f"{row.fault:4} {row.held:12} {row.wall_s:6.1f} s  {row.what}", flush=True)
    told = {**provenance.record("benchmarks.faults"), "seed": asked.seed, "long": asked.long}
    print(json.dumps({**told, "faults": [asdict(row) for row in rows]}))
    sys.exit(any(row.held in ("no", "inconclusive") for row in rows))


if __name__ == "__main__":
    main()
