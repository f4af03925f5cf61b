"""F3: PostgreSQL stops during work. F7: a full disk. F14: deletion leaves no text behind.

    with cluster() as server:
        url = server.url
        server.crash()
        server.start()

F3 uses a cluster of its own, which it can crash.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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

BACK_S = 60.0
"""Seconds within which work must continue after the database is back."""


class Cluster:
    """PostgreSQL in a folder, on loopback, without a password."""

    def __init__(self, folder: Path, user: str | None) -> None:
        self.folder, self.user = folder, user
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://forescribe@127.0.0.1:{self.port}/postgres"
        self._do("initdb", "-A", "trust", "-U", "forescribe")
        self.start()

    def start(self) -> None:
        where = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories='' -p {self.port}"
        self._do("pg_ctl", "-w", "-o", where, "-l", str(self.folder / "server.log"), "start")

    def crash(self) -> None:
        """Kill all processes of the cluster; the next start recovers from the log."""
        self._do("pg_ctl", "-w", "-m", "immediate", "stop")

    def _do(self, program: str, *options: str) -> None:
        done = subprocess.run(
            [program, "-D", str(self.folder), *options],
            user=self.user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # its child processes would keep a pipe open
            stderr=subprocess.DEVNULL,
        )
        if done.returncode:
            raise NotRun(f"{program} answers {done.returncode}; see {self.folder}")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a cluster. Raises NotRun if PostgreSQL is not installed."""
    missing = [name for name in ("initdb", "pg_ctl") if shutil.which(name) is None]
    if missing:
        raise NotRun(f"{', '.join(missing)}: not on the path; install PostgreSQL's server")
    user = "postgres" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    with tempfile.TemporaryDirectory() as folder:
        if user is not None:
            shutil.chown(folder, user)
        made = Cluster(Path(folder), user)
        try:
            yield made
        finally:
            made.crash()


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of a new database, on the server of FORESCRIBE_TEST_PG or on a temporary cluster.
    Raises NotRun if there is neither."""
    import psycopg

    url = os.environ.get("FORESCRIBE_TEST_PG")
    if not url:
        with cluster() as made:
            yield made.url
        return
    name = f"forescribe_{os.getpid()}_{time.time_ns()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
    yield f"{url.rsplit('/', 1)[0]}/{name}"


def stop_database(long: bool, rng: random.Random) -> str:
    """PostgreSQL crashes twice; a process is killed while it is down."""
    import psycopg

    crashes, jobs, groups, pace_s = (6, 12, 30, 0.5) if long else (2, 6, 16, 0.5)
    with cluster() as postgres, tempfile.TemporaryDirectory() as folder:
        options = ("--database", postgres.url, "--concurrency", "2")
        pair = [Server(Path(folder), *options) for _ in range(2)]
        first, second = pair

        def open_work() -> list[tuple[str, str]]:
            with psycopg.connect(postgres.url) as connection:
                query = "select workflow_uuid, status from dbos.workflow_status"
                return connection.execute(
                    query + " where status in ('PENDING', 'ENQUEUED', 'DELAYED')"
                ).fetchall()

        try:
            for s in pair:
                s.start()
            made = [
                first.submit(f"job{i}", groups, pace_s, f"key{i}").json()["id"] for i in range(jobs)
            ]
            until(
                lambda: len({line[0] for line in first.log()}) == 2, PATIENCE_S, "one has no work"
            )
            hits, away_s = 0, 0.0
            for n in range(crashes):
                before = len(first.log())
                until(lambda: len(first.log()) > before + 4, PATIENCE_S, "no progress")  # noqa: B023
                hits += any(status == "PENDING" for _, status in open_work())
                postgres.crash()
                gone_s = rng.uniform(5.0, 9.0)  # the retries of a step take 3.5 s
                away_s += gone_s
                if n == 1:
                    second.kill()
                time.sleep(gone_s)
                postgres.start()
            back = time.monotonic()
            # The remaining work takes less than that, so that a stall is noticed.
            seconds = BACK_S + jobs * groups * pace_s / 2
            until(lambda: not open_work(), seconds, f"after {seconds:.0f} s work stands still")
            wall_s = time.monotonic() - back
            for i, id in enumerate(made):
                job = first.ended(id)
                holds(job["state"] == "succeeded", f"{id} is {job['state']}: {job['error']}")
                holds(first.text(id) == right(f"job{i}", groups), f"{id} has another text")
                seen = first.http.get(f"/v1/jobs/{id}/events").text.count("event: segment")
                holds(seen == groups, f"{id} tells of {seen} groups")
            begun = Counter((job, k) for _, what, job, k in first.log() if what == "begin")
            again = sum(begun.values()) - jobs * groups
            bound = crashes * 4 + 2 * 2
            holds(again <= bound, f"{again} groups were done again, more than {bound}")
        finally:
            for s in pair:
                s.stop()
                s.http.close()
    if hits < crashes:
        raise Inconclusive(f"{crashes - hits} of {crashes} crashes hit no work under way")
    return (
        f"away {crashes} times, {away_s:.0f} s together, a process killed meanwhile; {jobs} jobs "
        f"right, all done {wall_s:.0f} s after it was back; {again} groups done again (bound {bound})"
    )


def fill_disk(long: bool, rng: random.Random) -> str:
    """A full disk: new jobs are refused, and the running job continues when there is space again."""
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


def delete_in_every_state(long: bool, rng: random.Random) -> str:
    """DELETE in every state: the text is found nowhere on disk."""
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
    """The files that contain the marker."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p.relative_to(folder)) for p in paths if marker.encode() in p.read_bytes()]
