"""Whose requests are whose: the inbox of a caller, and `Run`, the results of one call of `Engine.run`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import RequestError, SpeculativeError
from ..requests import Finish, Request, Result


@dataclass(eq=False)
class Inbox:
    """Where the results of one caller's requests go."""

    results: deque[Result] = field(default_factory=deque)
    pending: int = 0  # requests whose result is not here yet

    def put(self, result: Result) -> None:
        self.pending -= 1
        self.results.append(result)


class Host(Protocol):
    """What a run needs of its engine."""

    @property
    def free(self) -> int: ...

    def submit(self, request: Request) -> None: ...

    def turn_to(self, inbox: Inbox) -> None: ...

    def advance(self) -> None: ...

    def drop(self, inbox: Inbox) -> None: ...


class Run(Iterator[Result]):
    """Results of one call of `Engine.run`, as they end: its own and nobody else's.

    What the caller submits to the engine between two results is its own too: a request that is tried
    again, or one that follows. Leaving it early (`break`, an exception, `close`) cancels what it has in
    the engine. A request that the engine refuses comes out as a failed result. If the iterable of
    requests raises, what is under way is decoded to its end first, and the exception comes last.
    """

    def __init__(self, engine: Host, requests: Iterable[Request], drop: Callable[[Inbox], None]):
        self._inbox = Inbox()
        self._engine, self._drop = engine, drop
        self._source: Iterator[Request] | None = iter(requests)
        self._error: Exception | None = None
        self._closed = False

    def __next__(self) -> Result:
        if self._closed:
            raise StopIteration
        try:
            self._engine.turn_to(self._inbox)
            while not self._inbox.results:
                self._pull()
                if self._inbox.results:
                    break
                if self._source is None and not self._inbox.pending:
                    raise self._error or StopIteration
                self._engine.advance()
            return self._inbox.results.popleft()
        except BaseException:
            self.close()
            raise

    def _pull(self) -> None:
        """Takes requests from the iterable while there are free rows."""
        while self._source is not None and self._engine.free and not self._inbox.results:
            try:
                request = next(self._source)
                if not isinstance(request, Request):
                    raise TypeError(f"not a Request, but {type(request).__name__}: {request!r}")
            except StopIteration:
                self._source = None
                return
            except Exception as error:
                self._source, self._error = None, error
                return
            try:
                self._engine.submit(request)
            except RequestError as error:
                self._inbox.results.append(failed(request, error))

    def close(self) -> None:
        """Cancels what is under way; nothing after the end."""
        if not self._closed:
            self._closed, self._source = True, None
            self._engine.drop(self._inbox)

    def __del__(self) -> None:
        # Perhaps on another thread, in the middle of a round: the engine does it in its next step.
        if not getattr(self, "_closed", True):
            self._drop(self._inbox)


def failed(request: Request, error: SpeculativeError) -> Result:
    """The result of a request of which nothing is known but what went wrong."""
    return Result(
        request=request,
        tokens=(),
        logprobs=(),
        sources=(),
        finish=Finish.FAILED,
        rounds=0,
        drafted=0,
        accepted=0,
        error=error,
    )
