"""Start the service: in this process, or as several workers on one port that this process supervises.

A supervisor binds the address and starts the processes (`api.server`), one for each device, with the
socket: connections that wait to be accepted survive a worker. Each worker is a whole service; the workers
share the data folder and the database of jobs, as replicas do. Worker k also answers on the port k + 1 above,
with its own metrics. Import is light: a port in use is reported before what takes seconds to import.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from forescribe.asr.errors import ForescribeError, UsageError

from .process import LASTING

if TYPE_CHECKING:
    from .settings import Settings

log = logging.getLogger("forescribe.api")

BACKLOG = 2048

POLL_S = 0.5
"""How often the supervisor looks whether it is to stop."""

RESTART_S = 3.0
"""Between two starts of a worker, at least."""


def bound(settings: Settings, port: int | None = None) -> socket.socket:
    """Bind and listen on the address of the settings, or another port. Raises UsageError if it is not
    available."""
    port = settings.port if port is None else port
    listening = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        address = f"{settings.host}:{port}"
        raise UsageError(
            f"cannot listen on {address}: {error.strerror}; choose another with --host and --port"
        ) from error
    return listening


def run(settings: Settings, listening: socket.socket) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM.

    After the signal no new work is admitted, and the work under way has `drain_s` seconds to finish.
    Exits with a special status if a model cannot be loaded (`api.process`). Raises UsageError if there
    are too few devices for the workers, or if one of their ports is not available.
    """
    from .server import GRACE_S, configure_logs, serve

    configure_logs()
    if settings.workers == 1:
        return serve(settings, [listening])
    names, port = devices(settings), listening.getsockname()[1]
    with ExitStack() as sockets:
        makers = []
        for index, name in enumerate(names):
            one = {"device": name, "workers": 1} | ({"wyoming": None} if index else {})  # one port
            own = sockets.enter_context(bound(settings, port + 1 + index))
            args = settings.model_copy(update=one), [listening, own]
            makers.append(partial(SpawnProcess, target=work, args=args))
        supervisor = Supervisor(makers, settings.announce_s + settings.drain_s + 2 * GRACE_S)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: supervisor.stop())
        log.info(json.dumps({"event": "workers", "count": len(names), "port": port}))
        supervisor.run()
    if supervisor.hopeless:
        raise UsageError("a worker cannot start; its own message is above")


def devices(settings: Settings) -> list[str]:
    """A device for each worker. Raises UsageError if there are too few."""
    from forescribe.speculative.device import choose, device_count

    device, workers = settings.device.lower(), settings.workers
    if settings.share_device:
        return [settings.device] * workers
    kind = choose(device).kind if device == "auto" else device
    if kind not in ("cuda", "hpu"):
        raise UsageError(
            f"{kind} is a single device, and {workers} workers would share it, each with its own model: use "
            "one, or give only the kind of several (cuda, hpu), or set share_device"
        )
    if (found := device_count(kind)) < workers:
        raise UsageError(f"{workers} workers, but {found} devices of kind {kind}")
    # Gaudi's runtime assigns each process the next free card.
    return [kind if kind == "hpu" else f"{kind}:{index}" for index in range(workers)]


def work(settings: Settings, sockets: list[socket.socket]) -> None:
    """The main function of a worker's process."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    from .server import serve

    try:
        serve(settings, sockets)
    except ForescribeError as error:
        sys.stderr.write(f"worker: {error.message}\n")
        sys.exit(LASTING)


class Supervisor:
    """Keeps one process of each maker alive until it is stopped, or one exits with LASTING."""

    def __init__(self, makers: Sequence[Callable[[], BaseProcess]], grace_s: float) -> None:
        self.makers, self.grace_s = makers, grace_s
        self.processes: list[BaseProcess] = []
        self.stopping = self.hopeless = False

    def run(self) -> None:
        """Returns when all processes have ended."""
        self.processes = [make() for make in self.makers]
        started_s = [time.monotonic()] * len(self.processes)
        for process in self.processes:
            process.start()
        while not (self.stopping or self.hopeless):
            wait([process.sentinel for process in self.processes if process.is_alive()], POLL_S)
            for index, process in enumerate(self.processes):
                self.hopeless |= process.exitcode == LASTING
                due = time.monotonic() - started_s[index] >= RESTART_S
                if process.exitcode is not None and due and not (self.stopping or self.hopeless):
                    died = {"event": "worker died", "worker": index, "exit": process.exitcode}
                    log.error(json.dumps(died))
                    self.processes[index] = self.makers[index]()
                    self.processes[index].start()
                    started_s[index] = time.monotonic()
        for process in self.processes:
            process.terminate()
        end_s = time.monotonic() + self.grace_s
        for process in self.processes:
            process.join(max(0.0, end_s - time.monotonic()))
            process.kill()
            process.join()

    def stop(self) -> None:
        """At a signal: let the processes drain. The second time, end them at once."""
        if self.stopping:
            for process in self.processes:
                process.kill()
        self.stopping = True


def _follow_parent() -> None:
    """End this worker when its supervisor has died."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
