"""A watchdog that ends a process whose model hangs.

Does not know models: it reads how long a round has been running.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from .model_loads import Failure

STALLED = 70
"""The exit status of a process whose model hangs (EX_SOFTWARE of sysexits.h)."""

log = logging.getLogger("forescribe.api")


def exit_hung() -> None:
    """End the process at once, without cleanup, which the hanging call would block."""
    os._exit(STALLED)


def exit_failed(failure: Failure) -> None:
    """End the process at once with one line that says why. No work is in the engine."""
    os.write(sys.stderr.fileno(), f"forescribe: {failure.line}\n".encode())
    os._exit(failure.status)


class Engine(Protocol):
    """A model that runs rounds in its own thread."""

    @property
    def round_s(self) -> float:
        """Seconds since the current round began; 0 between rounds."""

    def mark_broken(self) -> None:
        """Accept no more work: the current round will not end."""


class Watchdog:
    """Ends the process if a round takes more than `limit_s`. A call that hangs in the device cannot be
    interrupted, not even by SIGTERM; the supervisor starts the next process."""

    def __init__(
        self,
        engines: Sequence[Engine],
        limit_s: float,
        hung: Callable[[], None],
    ) -> None:
        self._engines, self._limit_s, self._hung = engines, limit_s, hung
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(5.0, self._limit_s / 4)):
            for engine in self._engines:
                round_s = engine.round_s
                if round_s > self._limit_s:
                    engine.mark_broken()
                    log.critical('{"event": "engine hangs", "seconds": %.0f}', round_s)
                    self._hung()
                    return
