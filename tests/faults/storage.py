"""A PostgreSQL of its own for tests.

    with database() as url:
        ...

`python -m tests.faults.storage COMMAND...` runs a command, pytest for one, with FORESCRIBE_TEST_PG.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.faults.harness import NotRun


class Cluster:
    """PostgreSQL in a folder, on loopback and at an address `beside` it, without a password."""

    def __init__(
        self, folder: Path, user: str | None, beside: str | None, env: Mapping[str, str]
    ) -> None:
        self.folder, self.user, self.beside, self.env = folder, user, beside, env
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://forescribe@127.0.0.1:{self.port}/postgres"
        self._do("initdb", "-A", "trust", "-U", "forescribe")
        if beside is not None:
            with (folder / "pg_hba.conf").open("a") as allowed:
                allowed.write(f"host all all {beside}/24 trust\n")
        self.start()

    def start(self) -> None:
        named = ",".join(filter(None, ("127.0.0.1", self.beside)))
        where = f"-c listen_addresses={named} -c unix_socket_directories='' -p {self.port}"
        self._do("pg_ctl", "-w", "-o", where, "-l", str(self.folder / "server.log"), "start")

    def crash(self) -> None:
        """Kill all processes of the cluster; the next start recovers from the log."""
        self._do("pg_ctl", "-w", "-m", "immediate", "stop")

    def running(self) -> bool:
        pid = self.folder / "postmaster.pid"
        return pid.is_file() and Path(f"/proc/{pid.read_text().split()[0]}").is_dir()

    def _do(self, program: str, *options: str) -> None:
        done = subprocess.run(
            [program, "-D", str(self.folder), *options],
            user=self.user,
            cwd="/",
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # its child processes would keep a pipe open
            stderr=subprocess.DEVNULL,
        )
        if done.returncode:
            raise NotRun(f"{program} answers {done.returncode}; see {self.folder}")


@contextmanager
def cluster(
    within: Path | None = None,
    beside: str | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Cluster]:
    """Run a cluster, in a folder of `within`, also for the network of the address `beside`. Raises NotRun if
    PostgreSQL is not installed."""
    missing = [name for name in ("initdb", "pg_ctl") if shutil.which(name) is None]
    if missing:
        raise NotRun(f"{', '.join(missing)}: not on the path; install PostgreSQL's server")
    user = "postgres" if os.getuid() == 0 else None  # PostgreSQL refuses to run as root
    with tempfile.TemporaryDirectory(dir=within) as folder:
        if user is not None:
            shutil.chown(folder, user)
        made = Cluster(Path(folder), user, beside, env)
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


if __name__ == "__main__":
    with cluster() as made:
        given = os.environ | {"FORESCRIBE_TEST_PG": made.url}
        status = subprocess.run(sys.argv[1:], env=given, check=False).returncode
    sys.exit(status)
