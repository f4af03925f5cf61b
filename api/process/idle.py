"""The end of a worker when the queue is empty, for batch systems that pay by the hour.

    EndWhenIdle(serving, lambda: store.jobs.backlog()[0], finish, idle_s=60.0).start()

Does not know what the jobs are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.exc import DBAPIError

POLL_S = 1.0


class Stateful(Protocol):
    """The part of `api.process.lifecycle.Lifecycle` that is read."""

    @property
    def state(self) -> str: ...


class EndWhenIdle:
    """Calls `finish` once the model was ready and no job was open for `idle_s` seconds on end. A database
    that is away does not count as empty."""

    def __init__(
        self,
        serving: Stateful,
        open_jobs: Callable[[], int],
        finish: Callable[[], None],
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.serving, self.open_jobs, self.finish = serving, open_jobs, finish
        self.idle_s, self.clock = idle_s, clock
        self._since: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._watch, name="idle", daemon=True).start()

    def look(self) -> bool:
        """Look once, and return whether the worker was ended."""
        if self.serving.state != "ready" or self._open():
            self._since = None
            return False
        self._since = self.clock() if self._since is None else self._since
        if self.clock() - self._since < self.idle_s:
            return False
        self.finish()
        return True

    def _watch(self) -> None:
        while not self.look():
            time.sleep(POLL_S)

    def _open(self) -> bool:
        try:
            return self.open_jobs() > 0
        except DBAPIError:
            return True
