"""F21: two replicas and two workers on PostgreSQL and object storage, killed at random.

One replica does jobs itself, the other one is a front end. Each process has a folder of its own; they share
the database and the objects (a folder, through the same client as S3). Clients behave as behind a load
balancer: any replica gets any request, and what fails is sent to the other one. Uploads arrive in pieces
while their replica dies.

A kill of a process that does jobs costs at most one group of each of its C jobs.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.faults.harness import PATIENCE_S, Inconclusive, Server, Wrong, holds, right, until
from tests.faults.receiver import SECRET, Receiver
from tests.faults.storage import database

CONCURRENCY = 2
"""Jobs of each process that does jobs."""

PATCH_BYTES = 96 << 10

AGAIN = frozenset({408, 423, 429, 503})
"""Answers after which a client tries again."""

TUS = {"Tus-Resumable": "1.0.0"}


@dataclass
class Balancer:
    """Sends each request to the next replica, and to the other one if that fails."""

    replicas: list[Server]
    retried: int = 0
    _turns: Iterator[int] = field(default_factory=itertools.count)

    def request(
        self, method: str, path: str, ok: Callable[[httpx.Response], bool] | None = None, **how: Any
    ) -> httpx.Response:
        """The answer, once one of them gives it."""
        end = time.monotonic() + PATIENCE_S
        while True:
            server = self.replicas[next(self._turns) % len(self.replicas)]
            try:
                answer = server.http.request(method, path, **how)
                if answer.status_code not in AGAIN and (ok is None or ok(answer)):
                    return answer
            except httpx.HTTPError:
                pass
            self.retried += 1
            if time.monotonic() > end:
                raise Wrong(f"{method} {path} is never answered")
            time.sleep(0.1)

    def json(self, path: str) -> Any:
        return self.request("GET", path, lambda answer: answer.status_code == 200).json()

    def submit(self, text: str, groups: int, pace_s: float, **fields: str) -> str:
        """A job's id; the key makes it one job however often it is sent."""
        return self.send(text, script(text, groups, pace_s), **fields)

    def upload(self, text: str, groups: int, pace_s: float, size: int) -> str:
        """The same by a resumable upload of `size` bytes."""
        data = script(text, groups, pace_s).ljust(size)  # JSON ends in any white space
        return self.send_in_pieces(text, data)

    def send(self, key: str, audio: bytes, **fields: str) -> str:
        return self._accepted(key, data=fields, files={"file": ("a.wav", audio)})

    def send_in_pieces(self, key: str, data: bytes) -> str:
        created = self.request(
            "POST", "/v1/uploads", headers={**TUS, "Upload-Length": str(len(data))}
        )
        place = created.headers["location"]
        while (at := self._offset(place)) < len(data):
            headers = {
                **TUS,
                "Content-Type": "application/offset+octet-stream",
                "Upload-Offset": str(at),
            }
            piece = data[at : at + PATCH_BYTES]
            self.request(
                "PATCH",
                place,
                lambda a: a.status_code in (204, 409),
                headers=headers,
                content=piece,
            )
        id = place.rsplit("/", 1)[1]
        return self._accepted(key, files={"upload_id": (None, id)})

    def _offset(self, place: str) -> int:
        answer = self.request("HEAD", place, lambda a: a.status_code == 200, headers=TUS)
        return int(answer.headers["upload-offset"])

    def _accepted(self, key: str, **how: Any) -> str:
        headers = {"Idempotency-Key": key}
        answer = self.request(
            "POST", "/v1/jobs", lambda a: a.status_code == 202, headers=headers, **how
        )
        return str(answer.json()["id"])


def script(text: str, groups: int, pace_s: float) -> bytes:
    return json.dumps({"text": text, "groups": groups, "pace_s": pace_s}).encode()


def kill_replicas_and_workers(long: bool, rng: random.Random) -> str:
    """SIGKILL of any of the four while work remains: nothing lost, every job right, called back once."""
    kills, jobs, groups, pace_s, uploads = (20, 24, 16, 1.5, 8) if long else (4, 6, 6, 1.0, 2)
    with ExitStack() as stack:
        url = stack.enter_context(database())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "bucket").mkdir()
        receiver = Receiver()
        stack.callback(receiver.close)
        servers = [_server(folder, url, name) for name in ("one", "two", "three", "four")]
        for s in servers:
            stack.callback(s.http.close)
            stack.callback(s.stop)
        killed: list[str] = []
        for s, options in zip(servers, ROLES, strict=True):
            s.start(*options, alive=False)
        for s in servers:
            until(s.alive, PATIENCE_S, "a process does not start")
        balancer = Balancer(servers[:2])
        made: dict[str, tuple[str, int]] = {}
        hook = {"webhook_url": receiver.url, "webhook_secret": SECRET}
        for n in range(jobs):
            made[balancer.submit(f"job{n}", groups, pace_s, **hook)] = (f"job{n}", groups)
        sender = _Sender(balancer, uploads, pace_s)
        sender.start()
        hits = Counter[str]()
        for n in range(kills):
            before = len(_log(folder))
            until(lambda: len(_log(folder)) > before + 2, PATIENCE_S, "no progress")  # noqa: B023
            time.sleep(rng.uniform(0, 2 * pace_s))
            victim = rng.randrange(len(servers)) if n else 2
            process = servers[victim].process
            assert process is not None
            servers[victim].kill()
            killed.append(str(process.pid))
            hits[NAMES[victim]] += 1
            if _finished(balancer, made):
                raise Inconclusive(f"no work was left at kill {n + 1}")
            servers[victim].start(*ROLES[victim], alive=False)
        for s in servers:
            until(s.alive, PATIENCE_S, "a process does not start again")
        sender.join(PATIENCE_S)
        holds(not sender.is_alive() and sender.error is None, f"uploads: {sender.error}")
        made |= sender.made
        for id, (text, count) in made.items():
            until(lambda: _job(balancer, id)["finished_at"] is not None, PATIENCE_S, f"{id} stands")  # noqa: B023
            job = _job(balancer, id)
            holds(job["state"] == "succeeded", f"{text} is {job['state']}: {job['error']}")
            for s in servers[:2]:  # any replica answers for any job
                holds(s.text(id) == right(text, count), f"{text} has another text")
            told = balancer.request("GET", f"/v1/jobs/{id}/events").text.count("event: segment")
            holds(told == count, f"{text} tells of {told} groups")
        until(
            lambda: all(
                _job(balancer, id)["webhook"]["state"] == "delivered" for id in list(made)[:jobs]
            ),
            PATIENCE_S,
            "a callback was lost",
        )
        total = sum(count for _, count in made.values())
        again = _again(_log(folder), killed, kills - hits[NAMES[1]], total)
        objects = _objects(folder, url)
    told_kills = ", ".join(f"{name} {count}" for name, count in sorted(hits.items()))
    return (
        f"{kills} kills while work remained ({told_kills}); {len(made)} jobs right on both replicas, "
        f"{uploads} of them uploaded in pieces; {total} groups, "
        f"{again}; {balancer.retried} requests sent again; {objects}"
    )


ROLES: tuple[tuple[str, ...], ...] = ((), ("--front-end",), ("--worker",), ("--worker",))
NAMES = ("replica", "front end", "worker 1", "worker 2")


class _Sender(threading.Thread):
    """A client that uploads recordings in pieces, one after the other."""

    def __init__(self, balancer: Balancer, count: int, pace_s: float) -> None:
        super().__init__(daemon=True)
        self.balancers = [Balancer([replica]) for replica in balancer.replicas]  # sticky sessions
        self.count, self.pace_s = count, pace_s
        self.made: dict[str, tuple[str, int]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for n in range(self.count):
                size = (2 << 20) + 12345 * n
                id = self.balancers[n % 2].upload(f"upload{n}", 3, self.pace_s, size)
                self.made[id] = (f"upload{n}", 3)
        except BaseException as error:
            self.error = error


def _server(folder: Path, url: str, name: str) -> Server:
    own = folder / name
    own.mkdir()
    options = ("--database", url, "--blobs", f"file://{folder / 'bucket'}")
    shared = ("--concurrency", str(CONCURRENCY), "--log", str(folder / "log"))
    return Server(own, *options, *shared)


def _log(folder: Path) -> list[list[str]]:
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.is_file() else []


def _job(balancer: Balancer, id: str) -> dict[str, Any]:
    found: dict[str, Any] = balancer.json(f"/v1/jobs/{id}")
    return found


def _finished(balancer: Balancer, made: dict[str, tuple[str, int]]) -> bool:
    return all(_job(balancer, id)["finished_at"] is not None for id in made)


def _again(log: list[list[str]], killed: list[str], kills: int, total: int) -> str:
    """Check how many groups were done again; `kills` counts those of processes that do jobs."""
    begun: dict[tuple[str, str], list[str]] = {}
    for pid, what, job, k, _ in log:
        if what == "begin":
            begun.setdefault((job, k), []).append(pid)
    holds(len(begun) == total, f"{total - len(begun)} groups were never done")
    repeated = [pid for pids in begun.values() for pid in pids[:-1]]
    lost = sum(pid in killed for pid in repeated)
    displaced = len(repeated) - lost
    most_lost = kills * CONCURRENCY
    said = f"{lost} done again because of kills (bound {most_lost}), {displaced} for other reasons"
    holds(lost <= most_lost and not displaced, said)
    return said


def _objects(folder: Path, url: str) -> str:
    """After a sweep: the store holds the folders of jobs, and what their rows name."""
    from forescribe.api.jobs.service import open_objects
    from forescribe.api.jobs.store import Store

    files = open_objects(f"file://{folder / 'bucket'}", folder / "sweeper", 1 << 30)
    store = Store.open(folder / "sweeper", url, files)
    try:
        orphans = len(files.jobs())
        store.sweep(-60.0)
        store.sweep_files()
        with store.database.engine.connect() as tx:
            rows = tx.exec_driver_sql("select id, files from forescribe_jobs").all()
        named = {f"{id}/{name}" for id, names in rows for name in names.values()}
        stored = {entry.key.partition("/")[2] for entry in files.objects.list("jobs")}
        orphans -= len(files.jobs())
        holds(files.jobs() == {id for id, _ in rows}, "folders without a job after a sweep")
    finally:
        store.close()
    holds(named <= stored, f"{len(named - stored)} files are lost")
    said = f"{len(stored)} objects, {len(stored - named)} of them in no row"
    return f"{said}; {orphans} folders left by dead processes and swept"
