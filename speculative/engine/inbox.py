"""Which results belong to which caller: inboxes, and `Run`, the results of one call of `Engine.run`.

Knows requests and results; nothing of how they are decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import RequestError, SpeculativeError
from ..requests import Finish, Request, Result


@dataclass(eq=False)
class Inbox:
    """The results of one caller's requests, until the caller takes them."""

    results: deque[Result] = field(default_factory=deque)
    pending: int = 0  # requests without a result

    def put(self, result: Result) -> None:
        self.pending -= 1
        self.results.append(result)

    def take(self) -> list[Result]:
        """Removes and returns the results."""
        results = list(self.results)
        self.results.clear()
        return results


class Host(Protocol):
    """The methods of an engine that a run uses."""

    @property
    def free(self) -> int: ...

    def submit(self, request: Request) -> None: ...

    def step(self, inbox: Inbox) -> list[Result]: ...


class Queue(Protocol):
    """The methods of an engine's queue that a run uses."""

    def turn_to(self, inbox: Inbox) -> None: ...

    def abandon(self, inbox: Inbox) -> None: ...


class Run(Iterator[Result]):
    """The results of one call of `Engine.run`, as they end; none of other requests.

    Requests that the caller submits to the engine between two results belong to the run too: one that
    is tried again, or one that follows. Leaving the loop early (`break`, an exception, `close`) cancels
    the remaining requests. A request that the engine refuses yields a failed result. If the iterable of
    requests raises, the requests under way are decoded to their end first, then the exception is raised.
    """

    def __init__(self, engine: Host, queue: Queue, requests: Iterable[Request]) -> None:
        self._inbox = Inbox()
        self._results: deque[Result] = deque()  # to be returned
        self._engine, self._queue = engine, queue
        self._source: Iterator[Request] | None = iter(requests)
        self._error: Exception | None = None
        self._closed = False

    def __next__(self) -> Result:
        if self._closed:
            raise StopIteration
        try:
            self._queue.turn_to(self._inbox)
            self._results.extend(self._inbox.take())
            while not self._results:
                self._pull()
                if self._results:
                    break
                if self._source is None and not self._inbox.pending:
                    raise self._error or StopIteration
                self._results.extend(self._engine.step(self._inbox))
            return self._results.popleft()
        except BaseException:
            self.close()
            raise

    def _pull(self) -> None:
        """Takes requests from the iterable while there are free slots."""
        while self._source is not None and self._engine.free and not self._results:
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
                self._results.append(failed(request, error))

    def close(self) -> None:
        """Cancels the requests under way; does nothing after the end."""
        if not self._closed:
            self._closed, self._source = True, None
            self._queue.abandon(self._inbox)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):  # not built completely
            self.close()  # perhaps on another thread, in the middle of a round


def failed(request: Request, error: SpeculativeError) -> Result:
    """A failed result without tokens."""
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
