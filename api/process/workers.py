"""Workers: one service process for each device, behind one address.

    forescribe serve --workers 2            # cuda:0 and cuda:1

A supervisor binds the address, starts the processes with it, and starts one that has died again, later
each time it dies young. The socket is one for all: what waits to be accepted is lost with no worker.
Jobs are worker 0's: the others hand such requests to it (`api.process.forward`). Keys' limits by
the minute and the queue's bounds are each worker's own. Holds no model and no thread.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from forescribe.asr.errors import ForescribeError, UsageError

from ..settings import Settings
from .forward import Worker as Seat
from .listening_socket import BACKLOG, bound
from .model_loads import LASTING
from .server import GRACE_S, serve

log = logging.getLogger("forescribe.api")

LOOK_S = 0.5
"""How often the supervisor looks whether it is told to stop."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Before a worker that has died young is started again: twice as long each time."""

GROWN_S = 60.0
"""A worker that has lived so long did not die of its start."""

HOPELESS = LASTING
"""A worker's exit status where it would fail again however often it is started: what it was told makes no
sense, its model cannot be loaded, or its jobs cannot be kept."""


class Process(Protocol):
    """Of `multiprocessing`, what is used."""

    @property
    def sentinel(self) -> int: ...

    @property
    def exitcode(self) -> int | None: ...

    def start(self) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


@dataclass
class Worker:
    """A place in the house, and who has it."""

    index: int
    process: Process | None = None
    started_s: float = 0.0
    due_s: float = 0.0  # when it may be started
    wait_s: float = FIRST_WAIT_S  # before the next start, if it dies young


@dataclass
class Supervisor:
    """Keeps `count` processes alive until it is told to stop. `make` gives one for an index."""

    make: Callable[[int], Process]
    count: int
    grace_s: float
    clock: Callable[[], float] = time.monotonic
    stopping: bool = False
    hopeless: bool = False  # one has said that it never will start
    workers: list[Worker] = field(default_factory=list)

    def run(self) -> None:
        self.workers = [Worker(index) for index in range(self.count)]
        try:
            while not (self.stopping or self.hopeless):
                self.look()
                self.rest()
        finally:
            self.end()

    def look(self) -> None:
        """Buries who has died, starts who is due."""
        now = self.clock()
        for worker in self.workers:
            process = worker.process
            if process is not None and process.exitcode is not None:
                process.join()
                self.hopeless = self.hopeless or process.exitcode == HOPELESS
                grown = now - worker.started_s >= GROWN_S
                worker.wait_s = FIRST_WAIT_S if grown else worker.wait_s
                worker.process, worker.due_s = None, now + worker.wait_s
                worker.wait_s = min(LONGEST_WAIT_S, 2 * worker.wait_s)
                log.error(
                    '{"event": "worker died", "worker": %d, "exit": %d}',
                    worker.index,
                    process.exitcode,
                )
            if worker.process is None and now >= worker.due_s and not self.hopeless:
                worker.process, worker.started_s = self.make(worker.index), now
                worker.process.start()

    def rest(self) -> None:
        """Until one dies, or a moment has passed."""
        wait([w.process.sentinel for w in self.workers if w.process is not None], LOOK_S)

    def stop(self, sig: int, frame: FrameType | None) -> None:
        """A signal's handler. The second signal does not wait for the workers to drain."""
        if self.stopping:
            for worker in self.workers:
                if worker.process is not None:
                    worker.process.kill()
        self.stopping = True

    def end(self) -> None:
        """All are told to drain, and waited for; who does not end in time is ended."""
        alive = [worker.process for worker in self.workers if worker.process is not None]
        for process in alive:
            process.terminate()
        end_s = self.clock() + self.grace_s
        for process in alive:
            process.join(max(0.0, end_s - self.clock()))
            if process.exitcode is None:
                process.kill()
                process.join()


def run(settings: Settings, listening: socket.socket | None = None) -> None:
    """Serves with `settings.workers` processes until SIGINT or SIGTERM. Raises UsageError where there
    are not so many devices, or the address cannot be had."""
    places = devices(settings)
    with (
        tempfile.TemporaryDirectory(prefix="forescribe-") as folder,
        listening or bound(settings) as shared,
    ):
        context = multiprocessing.get_context("spawn")

        def make(index: int) -> Process:
            own = settings.model_copy(update={"device": places[index], "workers": 1})
            given = (Seat(index, settings.workers, folder), own.model_dump(), shared)
            return context.Process(target=work, args=given, name=f"worker-{index}")

        grace_s = settings.announce_s + settings.drain_s + 2 * GRACE_S
        supervisor = Supervisor(make, settings.workers, grace_s)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, supervisor.stop)
        port = shared.getsockname()[1]
        log.info('{"event": "workers", "count": %d, "port": %d}', settings.workers, port)
        supervisor.run()
        if supervisor.hopeless:
            raise UsageError("a worker cannot start; why is said above")


def devices(settings: Settings, count: Callable[[str], int] | None = None) -> list[str]:
    """A device for each worker. Raises UsageError where there are too few."""
    wanted, workers = settings.device.lower(), settings.workers
    if settings.share_device:
        return [settings.device] * workers
    kind = _kind(wanted) if wanted == "auto" else wanted
    if ":" in kind:
        raise UsageError(f"device {kind} is one: give its kind alone for {workers} workers")
    if kind not in ("cuda", "hpu"):
        raise UsageError(
            f"{workers} workers on {kind} would share it, each with a model of its own: take one, or "
            "set share_device"
        )
    there = (count or _count)(kind)
    if there < workers:
        raise UsageError(f"{workers} workers, but {there} devices of kind {kind}")
    # Gaudi's runtime gives each process the next card that is free, by itself.
    return [kind if kind == "hpu" else f"{kind}:{index}" for index in range(workers)]


def work(seat: Seat, given: dict[str, Any], shared: socket.socket) -> None:
    """A worker's process."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        serve(Settings(**given), [shared, _private(seat)], seat)
    except ForescribeError as error:
        sys.stderr.write(f"worker {seat.index}: {error.message}\n")
        sys.exit(HOPELESS)


def _private(seat: Seat) -> socket.socket:
    path = seat.path(seat.index)
    Path(path).unlink(missing_ok=True)  # of the one before, who has died
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path)
    made.listen(BACKLOG)
    return made


def _follow_parent() -> None:
    """A supervisor that was killed leaves nobody behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _kind(name: str) -> str:
    from forescribe.speculative.device import choose

    return choose(name).kind


def _count(kind: str) -> int:
    from forescribe.speculative.device import available, device_count

    return device_count(kind) if available(kind) else 0
