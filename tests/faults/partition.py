"""F24: PostgreSQL crashes, and a partition hides it from one of two services."""

from __future__ import annotations

import random
import socket
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.faults.harness import PATIENCE_S, Server, holds, right, until
from tests.faults.storage import cluster

HIDDEN_S = 30.0
"""Longer than a statement waits for its server (`database.PROBES`), and than a lease."""


class Proxy(threading.Thread):
    """Forwards connections to a port, but no byte while it is `hidden`."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.target, self.hidden = port, threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.target)) as server,
        ):
            back = threading.Thread(target=self._forward, args=(server, client), daemon=True)
            back.start()
            self._forward(client, server)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                while self.hidden.is_set():
                    time.sleep(0.05)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def lose_the_database(long: bool, rng: random.Random) -> str:
    """A partition and crashes of PostgreSQL while jobs run: none is lost or fails, each group counts once."""
    jobs, groups, pace_s, rounds = (12, 12, 2.0, 3) if long else (6, 8, 2.0, 1)
    with ExitStack() as stack:
        database = stack.enter_context(cluster())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        proxy = Proxy(database.port)
        stack.callback(proxy.listening.close)
        proxy.start()
        hidden = database.url.replace(f":{database.port}/", f":{proxy.port}/")
        servers = [
            Server(folder, "--database", url, "--concurrency", "2")
            for url in (hidden, database.url)
        ]
        for s in servers:
            stack.callback(s.http.close)
            stack.callback(s.stop)
            s.start()
        first, second = servers
        made = {first.submit(f"job{n}", groups, pace_s).json()["id"]: n for n in range(jobs)}
        for _ in range(rounds):
            _progressed(second)
            proxy.hidden.set()
            time.sleep(HIDDEN_S)
            proxy.hidden.clear()
            _progressed(second)
            database.crash()
            time.sleep(rng.uniform(1.0, 5.0))
            database.start()
        for id, n in made.items():
            job = second.ended(id)
            holds(job["state"] == "succeeded", f"job{n} is {job['state']}: {job['error']}")
            holds(second.text(id) == right(f"job{n}", groups), f"job{n} has another text")
            told = second.http.get(f"/v1/jobs/{id}/events").text.count("event: segment")
            holds(told == groups, f"job{n} tells of {told} groups")
        until(lambda: first.http.get("/v1/jobs").status_code == 200, PATIENCE_S, "it stays away")
        begun = sum(line[1] == "begin" for line in second.log())
    return (
        f"{rounds} partitions of {HIDDEN_S:g} s and {rounds} crashes; {jobs} jobs right, each group told "
        f"once; {begun - jobs * groups} of {jobs * groups} groups begun again"
    )


def _progressed(s: Server) -> None:
    before = len(s.log())
    until(lambda: len(s.log()) > before + 4, PATIENCE_S, "no progress")
