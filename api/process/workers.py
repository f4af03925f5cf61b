"""Start the service: in this process, or as several workers behind one address that this process supervises.

    forescribe serve --workers 2            # cuda:0 and cuda:1
    run(settings)                           # returns at SIGINT or SIGTERM, once the work under way is done

A supervisor binds the address, starts the processes (`api.process.server`), one for each device, with the
socket, and restarts a process that has died, later each time it dies young. The socket is shared, so
connections that wait to be accepted survive a worker. Worker 0 has the jobs: the others forward such requests
to it (`api.process.forward`). Limits per key and minute, and the bounds of the queue, are separate for each
worker. A supervisor holds no model and no thread. Does not know routes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from forescribe.asr.errors import ForescribeError, UsageError

from ..settings import Settings, SettingsSource
from .forward import WorkerAddress
from .listening_socket import BACKLOG, bound
from .models import LASTING
from .server import GRACE_S, configure_logs, serve

log = logging.getLogger("forescribe.api")

POLL_S = 0.5
"""How often the supervisor checks whether it is to stop."""

MIN_WAIT_S, MAX_WAIT_S = 1.0, 60.0
"""Before a worker that died young is restarted; the wait doubles each time."""

STABLE_AFTER_S = 60.0
"""A worker that ran for so long did not die because of its start."""


def run(settings: Settings, listening: socket.socket | None = None) -> None:
    """Serve until SIGINT or SIGTERM, on a bound socket or on the address of the settings.

    After the signal no new work is admitted, and the work under way has `drain_s` seconds to finish.
    Exits with a special status if a model cannot be loaded (`api.process.models`).
    """
    configure_logs()
    if settings.workers == 1:
        serve(settings, None if listening is None else [listening])
    else:
        supervise(settings, listening)


def supervise(settings: Settings, listening: socket.socket | None = None) -> None:
    """Serve with `settings.workers` processes until SIGINT or SIGTERM. Raises UsageError if there are too few
    devices, or the address is not available."""
    names = devices(settings)
    with (
        tempfile.TemporaryDirectory(prefix="forescribe-") as folder,
        listening or bound(settings) as shared,
    ):
        context = multiprocessing.get_context("spawn")
        signing_key = secrets.token_bytes(32)

        def make(index: int) -> BaseProcess:
            wyoming = None if index else settings.wyoming  # one port
            given = {"device": names[index], "workers": 1, "wyoming": wyoming}
            own = settings.model_copy(update=given)
            arguments = (
                WorkerAddress(index, settings.workers, folder, signing_key),
                own.model_dump(),
                shared,
                settings.source,
            )
            return context.Process(target=work, args=arguments, name=f"worker-{index}")

        grace_s = settings.announce_s + settings.drain_s + 2 * GRACE_S
        supervisor = Supervisor(make, settings.workers, grace_s)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, supervisor.stop)
        if settings.source is not None and settings.source.file is not None:
            signal.signal(signal.SIGHUP, supervisor.reload)
        port = shared.getsockname()[1]
        log.info('{"event": "workers", "count": %d, "port": %d}', settings.workers, port)
        supervisor.run()
        if supervisor.hopeless:
            raise UsageError("a worker cannot start; its own message is above")


def devices(settings: Settings, count: Callable[[str], int] | None = None) -> list[str]:
    """A device for each worker. Raises UsageError if there are too few."""
    device, workers = settings.device.lower(), settings.workers
    if settings.share_device:
        return [settings.device] * workers
    kind = _kind(device) if device == "auto" else device
    if ":" in kind:
        raise UsageError(
            f"device {kind} is a single device: give only its kind for {workers} workers"
        )
    if kind not in ("cuda", "hpu"):
        raise UsageError(
            f"{workers} workers on {kind} would share it, each with its own model: use one, or "
            "set share_device"
        )
    available = (count or _count)(kind)
    if available < workers:
        raise UsageError(f"{workers} workers, but {available} devices of kind {kind}")
    # Gaudi's runtime assigns each process the next free card.
    return [kind if kind == "hpu" else f"{kind}:{index}" for index in range(workers)]


def work(
    address: WorkerAddress,
    given: dict[str, Any],
    shared: socket.socket,
    source: SettingsSource | None = None,
) -> None:
    """The main function of a worker's process."""
    # Until it can reload; it reads the file at its start.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        settings = Settings(**given)
        if source is not None:
            settings.read_from(source)
        serve(settings, [shared, _private_socket(address)], address)
    except ForescribeError as error:
        sys.stderr.write(f"worker {address.index}: {error.message}\n")
        sys.exit(LASTING)


@dataclass
class Supervisor:
    """Keeps `count` processes alive until it is stopped. `make` creates the process with an index."""

    make: Callable[[int], BaseProcess]
    count: int
    grace_s: float
    clock: Callable[[], float] = time.monotonic
    stopping: bool = False
    hopeless: bool = False  # a worker has exited with LASTING: every restart would fail
    workers: list[Worker] = field(default_factory=list)

    def run(self) -> None:
        self.workers = [Worker(index) for index in range(self.count)]
        try:
            while not (self.stopping or self.hopeless):
                self.check()
                self.wait()
        finally:
            self.end()

    def check(self) -> None:
        """Collect workers that have died, and start those that are due."""
        now = self.clock()
        for worker in self.workers:
            process = worker.process
            if process is not None and process.exitcode is not None:
                process.join()
                self.hopeless = self.hopeless or process.exitcode == LASTING
                stable = now - worker.started_s >= STABLE_AFTER_S
                worker.wait_s = MIN_WAIT_S if stable else worker.wait_s
                worker.process, worker.due_s = None, now + worker.wait_s
                worker.wait_s = min(MAX_WAIT_S, 2 * worker.wait_s)
                log.error(
                    '{"event": "worker died", "worker": %d, "exit": %d}',
                    worker.index,
                    process.exitcode,
                )
            if worker.process is None and now >= worker.due_s and not self.hopeless:
                worker.process, worker.started_s = self.make(worker.index), now
                worker.process.start()

    def wait(self) -> None:
        """Wait until a worker dies, or for `POLL_S`."""
        wait_for_any([w.process.sentinel for w in self.workers if w.process is not None], POLL_S)

    def stop(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. The second one does not wait for the workers to drain."""
        if self.stopping:
            for worker in self.workers:
                if worker.process is not None:
                    worker.process.kill()
        self.stopping = True

    def reload(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGHUP: every worker reads its settings again."""
        for worker in self.workers:
            if worker.process is not None and worker.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, sig)

    def end(self) -> None:
        """Let all workers drain, and kill those that do not end in time."""
        alive = [worker.process for worker in self.workers if worker.process is not None]
        for process in alive:
            process.terminate()
        end_s = self.clock() + self.grace_s
        for process in alive:
            process.join(max(0.0, end_s - self.clock()))
            if process.exitcode is None:
                process.kill()
                process.join()


@dataclass
class Worker:
    """One worker's index, and its process."""

    index: int
    process: BaseProcess | None = None
    started_s: float = 0.0
    due_s: float = 0.0  # when it may be started next
    wait_s: float = MIN_WAIT_S  # before the next start, if it dies young


def _private_socket(address: WorkerAddress) -> socket.socket:
    path = address.path(address.index)
    Path(path).unlink(missing_ok=True)  # left by a worker that died
    private = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    private.bind(path)
    private.listen(BACKLOG)
    return private


def _follow_parent() -> None:
    """End this worker when its supervisor has died."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_any([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _kind(name: str) -> str:
    from forescribe.speculative.device import choose

    return choose(name).kind


def _count(kind: str) -> int:
    from forescribe.speculative.device import available, device_count

    return device_count(kind) if available(kind) else 0
