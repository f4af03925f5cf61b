"""A PostgreSQL of its own for tests. F14: deletion leaves no text behind.

    with database() as url:
        ...

`python -m tests.faults.storage COMMAND...` runs a command, pytest for one, with FORESCRIBE_TEST_PG.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.harness import (
    PATIENCE_S,
    NotRun,
    holds,
    server,
    until,
)


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
    return f"deleted while {', '.join(states)}: no byte of the text in database, WAL, files or log"


def found(folder: Path, marker: str) -> list[str]:
    """The files that contain the marker."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p.relative_to(folder)) for p in paths if marker.encode() in p.read_bytes()]


if __name__ == "__main__":
    with cluster() as made:
        given = os.environ | {"FORESCRIBE_TEST_PG": made.url}
        status = subprocess.run(sys.argv[1:], env=given, check=False).returncode
    sys.exit(status)
