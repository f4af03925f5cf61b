"""F24 to F33: what two replicas share becomes unreachable, slow, full or wrong while they do a hundred jobs.

One replica is in a network of its own, the other beside the database and the object storage. Callbacks and
clients go to either. Each storm lasts its time while work remains, and must cost no job:

- every accepted job ends right, on both replicas, and each of its groups is told once;
- every callback comes at least once, and is signed;
- no group is in work in two processes for longer than a lease and a renewal;
- a replica without its database says so at `/ready`, refuses new jobs with Retry-After, and answers others.
"""

from __future__ import annotations

import math
import random
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.asr.storage import emulator
from tests.faults.harness import Inconclusive, NotRun, Server, Wrong, holds, right, until
from tests.faults.network import FAIR, Link, Weather, link
from tests.faults.receiver import SECRET, Receiver
from tests.faults.replicas import AGAIN, script
from tests.faults.storage import Cluster, cluster

JOBS, GROUPS, CONCURRENCY = 100, 12, 4

LEASE_S, RENEWAL_S = 10.0, 2.0
"""Of `api.jobs.store` and `api.jobs.worker`."""

NOTICED_S = 30.0
"""Until a replica knows that its database is away."""

REFUSED_S = 30.0
"""A request's wait for the answer that the database is away."""

AT_ONCE = 50
"""Clients that submit a job each while the database is away: more than a server has threads."""

CLOCK = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@dataclass
class Scene:
    """What a storm may disturb: `far` is the replica behind the link, `near` the other one."""

    net: Link
    database: Cluster
    far: Server
    near: Server
    disk: Path  # of the database
    clocks: dict[str, Path]  # a file for each, whose text is how far it is moved


Storm = Callable[[Scene, float], str]


def disturbed(storm: Storm, seconds: float, long: bool, rng: random.Random) -> str:
    """Run a storm of some seconds over jobs that outlast it."""
    jobs = JOBS
    # Enough for one replica during the storm. In short ones both may work, after a quarter of the jobs.
    pace_s = max(0.2, 1.3 * seconds * CONCURRENCY / (jobs * GROUPS))
    with ExitStack() as stack:
        faked = _faked if storm is database_clock_moved else lambda clock: {}
        scene, receiver, log = stack.enter_context(_scene(rng, faked))
        stack.enter_context(_with_faults(scene))
        hook = {"webhook_url": receiver.url, "webhook_secret": SECRET}
        both = (scene.near, scene.far)
        made = {_submit(both[n % 2], f"job{n}", pace_s, **hook): f"job{n}" for n in range(jobs)}
        until(lambda: len(_lines(log)) > jobs // 4, 120, "no progress")
        said = storm(scene, seconds)
        if not any(scene.near.job(id)["finished_at"] is None for id in made):
            raise Inconclusive("no work was left after the storm")
        for server in both:
            until(partial(_is_ready, server), 60, "a replica does not become ready again")
        patience_s = 240 + 2.6 * seconds
        for id, text in made.items():
            job = scene.near.ended(id, patience_s)
            holds(job["state"] == "succeeded", f"{text} is {job['state']}: {job['error']}")
            for server in both:
                said_by = server.text(id)
                holds(said_by == right(text, GROUPS), f"{text} has another text: {said_by[:99]}")
            told = scene.near.http.get(f"/v1/jobs/{id}/events").text.count("event: segment")
            holds(told == GROUPS, f"{text} tells of {told} groups")
        wanted = {f"msg_{id}.1" for id in made}
        until(lambda: receiver.told.keys() >= wanted, 120, "a callback was lost")
        holds(receiver.told.keys() == wanted, "a callback of no job")
        holds(not receiver.unsigned, f"{len(receiver.unsigned)} callbacks are not signed")
        again, together_s = _overlaps(_lines(log), jobs * GROUPS)
        more = receiver.told.total() - len(wanted)
    return (
        f"{said}; {jobs} jobs right; {again} of {jobs * GROUPS} groups begun again, two processes at one for "
        f"{together_s:.1f} s at most; {more} callbacks came twice"
    )


# -- storms: each returns what it has seen -------------------------------------------------------------


def cut_from_database(scene: Scene, seconds: float) -> str:
    with _weather(scene, scene.net.database, Weather(cut=True)):
        end = time.monotonic() + seconds
        seen = _away(scene) if seconds > 2 * NOTICED_S - 1 else "too short to be noticed"
        time.sleep(max(0.0, end - time.monotonic()))
    return f"cut from its database for {seconds:g} s: {seen}"


def cut_from_objects(scene: Scene, seconds: float) -> str:
    with _weather(scene, scene.net.objects, Weather(cut=True)):
        time.sleep(seconds)
        took_s, answer = _timed(lambda: _post(scene.far))
        holds(answer in AGAIN, f"a job that cannot be stored is answered {answer}")
    return f"cut from its objects for {seconds:g} s: a new job {answer} after {took_s:.0f} s"


def packets_lost(scene: Scene, seconds: float) -> str:
    lossy = Weather(lost=0.1)
    with _weather(scene, scene.net.database, lossy), _weather(scene, scene.net.objects, lossy):
        time.sleep(seconds)
    return f"10 % of packets lost for {seconds:g} s"


def packets_late(scene: Scene, seconds: float) -> str:
    late = Weather(late_s=1.0)
    with _weather(scene, scene.net.database, late), _weather(scene, scene.net.objects, late):
        time.sleep(seconds)
    return f"answers 2 s late for {seconds:g} s"


def database_killed(scene: Scene, seconds: float) -> str:
    for _ in range(3):
        scene.database.crash()
        time.sleep(seconds / 6)
        holds(_ready(scene.near) == _ready(scene.far) == 503, "ready without a database")
        scene.database.start()
        time.sleep(seconds / 6)
    return f"PostgreSQL killed three times, away for {seconds / 6:g} s"


def disk_full(scene: Scene, seconds: float) -> str:
    """Of the database alone. PostgreSQL ends where its log has no room, and an operator starts it again."""
    ballast = scene.disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass
    time.sleep(seconds)
    status, ready = _post(scene.near), _ready(scene.near)
    holds(ready == 503, f"/ready answers {ready} where the database's disk is full")
    holds(status in (503, 507), f"a job that cannot be stored is answered {status}")
    ballast.unlink()
    ran = scene.database.running()
    if not ran:
        scene.database.crash()
        scene.database.start()
    return f"its disk full for {seconds:g} s: ready {ready}, a new job {status}, " + (
        "PostgreSQL went on" if ran else "PostgreSQL had ended"
    )


def clock_moved(scene: Scene, seconds: float, whose: str = "replica") -> str:
    """An hour forward, and back again."""
    for moved in ("+3600", "+0"):
        scene.clocks[whose].write_text(moved)
        time.sleep(seconds / 2)
    return f"the {whose}'s clock an hour ahead for {seconds / 2:g} s"


def database_clock_moved(scene: Scene, seconds: float) -> str:
    return clock_moved(scene, seconds, "database")


# -- the scene -----------------------------------------------------------------------------------------


@contextmanager
def _scene(
    rng: random.Random, faked: Callable[[Path], dict[str, str]]
) -> Iterator[tuple[Scene, Receiver, Path]]:
    with ExitStack() as stack:
        net = stack.enter_context(link())
        net.rng = rng
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clocks = {name: folder / f"clock-{name}" for name in ("database", "replica")}
        for clock in clocks.values():
            clock.write_text("+0")
            clock.chmod(0o644)
        folder.chmod(0o755)
        disk = stack.enter_context(_small_disk(folder / "disk"))
        faked_env = faked(clocks["database"])
        database = stack.enter_context(cluster(disk, net.database, faked_env))
        s3 = stack.enter_context(emulator.running(net.objects))
        s3.make_bucket("jobs")
        receiver = Receiver(net.here)
        stack.callback(receiver.close)
        url = database.url.replace("127.0.0.1", net.database)
        shared = ("--database", url, "--blobs", "s3://jobs/service", "--log", str(folder / "log"))
        options = (*shared, "--concurrency", str(CONCURRENCY))
        near = Server(folder / "near", *options, env=s3.environment)
        inside = ("--host", net.inside, "--clock", str(clocks["replica"]))
        far = Server(
            folder / "far",
            *options,
            *inside,
            host=net.inside,
            prefix=net.prefix,
            env=s3.environment,
        )
        for server in (near, far):
            stack.callback(server.http.close)
            stack.callback(server.stop)
            server.start()
        yield Scene(net, database, far, near, disk, clocks), receiver, folder / "log"


@contextmanager
def _with_faults(scene: Scene) -> Iterator[None]:
    """What is wrong, with the last faults that the replicas have logged."""
    try:
        yield
    except Wrong as error:
        logs = [server.folder / "faults.log" for server in (scene.near, scene.far)]
        last = [line for log in logs for line in log.read_text().splitlines()[-6:]]
        raise Wrong(f"{error}; {last}") from error


@contextmanager
def _small_disk(where: Path) -> Iterator[Path]:
    where.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs", str(where)]
    if subprocess.run(mounted, check=False).returncode:
        raise NotRun("no disk of its own can be mounted for the database")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def _faked(clock: Path) -> dict[str, str]:
    """For a process whose clock is moved by the text of a file; times that are waited stay right."""
    if not CLOCK.is_file():
        raise NotRun("clocks are moved by Debian's package faketime")
    return {
        "LD_PRELOAD": str(CLOCK),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@contextmanager
def _weather(scene: Scene, address: str, weather: Weather) -> Iterator[None]:
    scene.net.weather[address] = weather
    try:
        yield
    finally:
        scene.net.weather[address] = FAIR


# -- requests ------------------------------------------------------------------------------------------


def _submit(server: Server, text: str, pace_s: float, **fields: str) -> str:
    answer = server.submit(text, GROUPS, pace_s, key=text, **fields)
    holds(answer.status_code == 202, f"a job is answered {answer.status_code} before the storm")
    return str(answer.json()["id"])


def _post(server: Server) -> int:
    """A job that is not wanted: 0 if nobody answers. Whoever is to come again is told when."""
    with httpx.Client(base_url=server.url, timeout=REFUSED_S, trust_env=False) as http:
        try:
            answer = http.post("/v1/jobs", files={"file": ("a.wav", script("unwanted", 1, 0.01))})
        except httpx.HTTPError:
            return 0
    holds(answer.status_code != 503 or "retry-after" in answer.headers, "503 without Retry-After")
    return answer.status_code


def _ready(server: Server) -> int:
    try:
        return server.http.get("/ready").status_code
    except httpx.HTTPError:
        return 0


def _is_ready(server: Server) -> bool:
    return _ready(server) == 200


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    found = act()
    return time.monotonic() - began, found


def _away(scene: Scene) -> str:
    """What clients of a replica see without its database, and those of the other one."""
    took_s, _ = _timed(
        lambda: until(lambda: _ready(scene.far) == 503, NOTICED_S, "ready without its database")
    )
    slowest_s, over = 0.0, threading.Event()

    def look() -> None:
        nonlocal slowest_s
        while not over.wait(0.2):
            slowest_s = max(slowest_s, _timed(lambda: scene.far.http.get("/health"))[0])

    looking = threading.Thread(target=look)
    looking.start()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        answers = list(clients.map(lambda _: _timed(lambda: _post(scene.far)), range(AT_ONCE)))
    over.set()
    looking.join()
    statuses = {status for _, status in answers}
    holds(statuses == {503}, f"new jobs are answered {statuses}")
    holds(slowest_s < 5, f"/health takes {slowest_s:.0f} s beside {AT_ONCE} clients")
    holds(_ready(scene.near) == 200, "the other replica is not ready")
    last_s = max(took for took, _ in answers)
    return (
        f"/ready 503 after {took_s:.0f} s, {AT_ONCE} new jobs at once 503 with Retry-After within "
        f"{last_s:.0f} s, /health within {slowest_s:.1f} s"
    )


# -- what was done -------------------------------------------------------------------------------------


def _lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.is_file() else []


def _overlaps(lines: Sequence[Sequence[str]], total: int) -> tuple[int, float]:
    """How many groups were begun again, and for how many seconds two processes were at one. Raises Wrong if
    one was never done, or for longer than a lease and the renewal that tells of its loss."""
    spans: defaultdict[tuple[str, str], list[list[Any]]] = defaultdict(list)
    for pid, what, job, k, at in lines:
        if what == "begin":
            spans[job, k].append([pid, float(at), math.inf])
        else:
            last = next(span for span in reversed(spans[job, k]) if span[0] == pid)
            last[2] = float(at)
    most_s = 0.0
    for found in spans.values():
        for n, (pid, _, end) in enumerate(found):
            for other, begin, until_s in found[n + 1 :]:
                if other != pid:
                    most_s = max(most_s, min(end, until_s) - begin)
    holds(len(spans) >= total, f"{total - len(spans)} groups were never done")
    holds(most_s <= LEASE_S + RENEWAL_S, f"two processes were at one group for {most_s:.1f} s")
    return sum(len(found) - 1 for found in spans.values()), most_s
