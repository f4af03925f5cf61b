"""Watchdog: ends a process whose model hangs."""

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


def leave() -> None:
    """Ends the process at once, with nothing put in order: what hangs would not let it."""
    os._exit(STALLED)


def leave_for(failure: Failure) -> None:
    """Ends the process at once, with one line that says why. Nobody's work is in the engine."""
    os.write(sys.stderr.fileno(), f"forescribe: {failure.line}\n".encode())
    os._exit(failure.status)


class Engine(Protocol):
    """What plays rounds in a thread of its own."""

    @property
    def standing_s(self) -> float:
        """Since when the round that is being played is under way, in seconds; 0 between rounds."""

    def give_out(self) -> None:
        """Takes nothing in any more: its round will not end."""


class Watchdog:
    """Ends the process where a round takes more than `limit_s`: a device that hangs cannot be left from
    inside, not even at SIGTERM, and whoever started the process can start the next."""

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
                standing_s = engine.standing_s
                if standing_s > self._limit_s:
                    engine.give_out()
                    log.critical('{"event": "engine hangs", "seconds": %.0f}', standing_s)
                    self._hung()
                    return
