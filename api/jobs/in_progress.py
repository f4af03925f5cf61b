"""Inside: whose work is in code that can take the process down: voice activity, the engine, speakers.

    inside.enter(job, gone)          # waits for its turn; then it is on record
    ...
    inside.leave(job)

The record is a row that is committed before the work begins, so it outlives the process. Whoever finds the
rows of a dead process knows which jobs may have killed it, and that all others have not: those that wait,
that are being decoded (in a child process), written down, called back.

One death does not tell which of several it was, and a process is also killed from outside. So a job that
was inside is a *suspect* until it gets on, and a suspect goes in alone. Only a death with nobody beside it
counts against it. Others wait meanwhile: for one group, since getting on clears a suspect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .store import Store

POLL_S = 0.1


class Inside:
    """`company` counts the requests under way: they are in the same engine. `aside` is asked to take a job
    out whose place a suspect needs; it comes again."""

    def __init__(
        self,
        store: Store,
        executor: str,
        company: Callable[[], int] = lambda: 0,
        aside: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.store, self.executor = store, executor
        self.company, self.aside = company, aside
        self._changed = threading.Condition()
        self._in: dict[str, bool] = {}  # and whether nobody else may be
        self._waiting: dict[
            str, int
        ] = {}  # suspects, and how often a process died with them inside
        self._ending = False

    @contextmanager
    def job(self, job: str, gone: Callable[[], None]) -> Iterator[None]:
        """Inside, for a block."""
        self.enter(job, gone)
        try:
            yield
        finally:
            self.leave(job)

    def enter(self, job: str, gone: Callable[[], None]) -> None:
        """Waits for its turn; `gone` is called meanwhile and raises where nobody wants it any more. Does
        nothing where the job is inside already."""
        with self._changed:
            if job in self._in:
                return
        deaths = self.store.deaths(job)
        self._queue(job, deaths, gone)
        try:
            if not self._ending:  # from then on, whoever kills the process means the process
                self.store.expose(self.executor, job, alone=deaths > 0 and not self.company())
        except BaseException:
            self._out(job)
            raise

    def leave(self, job: str) -> None:
        """Does nothing where it is not inside. A row that cannot be written now goes with `settle`."""
        with self._changed:
            was = job in self._in
        if was:
            try:
                self.store.unexpose(self.executor, job)
            except Exception:  # the database is away
                pass
            finally:
                self._out(job)

    def got_on(self, job: str) -> None:
        """No suspect any more: others may come in."""
        with self._changed:
            if job in self._in:
                self._in[job] = False
                self._changed.notify_all()

    def joined(self) -> None:
        """A request comes into the engine: whoever is in there is not alone."""
        with self._changed:
            accompanied = any(self._in.values())
        if accompanied:
            self.store.accompany(self.executor)

    def settle(self) -> None:
        """The rows of this process are those of who is inside."""
        with self._changed:
            inside = frozenset(self._in)
        self.store.withdraw(self.executor, inside)

    def end(self) -> None:
        """The process is about to end on purpose: what kills it from here on is nobody's fault."""
        with self._changed:
            self._ending = True
        self.store.withdraw(self.executor, frozenset())

    def _queue(self, job: str, deaths: int, gone: Callable[[], None]) -> None:
        with self._changed:
            if deaths:
                self._waiting[job] = deaths
            try:
                while not self._turn(job):
                    others = [other for other, alone in self._in.items() if deaths and not alone]
                    for other in others:
                        self.aside(other)
                    self._changed.wait(POLL_S)
                    gone()
                self._in[job] = deaths > 0
            finally:
                self._waiting.pop(job, None)
                self._changed.notify_all()

    def _turn(self, job: str) -> bool:
        """Suspects first, those that saw the fewest deaths before the others."""
        if job in self._waiting:
            first = min(self._waiting, key=lambda one: (self._waiting[one], one))
            return first == job and not self._in
        return not self._waiting and not any(self._in.values())

    def _out(self, job: str) -> None:
        with self._changed:
            self._in.pop(job, None)
            self._changed.notify_all()
