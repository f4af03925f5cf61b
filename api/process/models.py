"""A model's thread: it loads the model and runs it, tells why the process has to end, and hands results over.

    thread = ModelThread("the speech model", "large", load, run, fail)
    thread.wait_for(other)             # does not run while another model is loading
    thread.start()

A load writes log lines with seconds. A service whose model cannot be loaded is of no use, so its process ends
and its supervisor starts the next; the exit status says whether that can help (`Failure`). What a model has
done for a request goes to the event loop through a `Mailbox`. Does not know what a model does.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from forescribe.asr.errors import CapacityError, ForescribeError, out_of_memory
from forescribe.speculative.errors import BrokenError, SpeculativeError

from ..errors import ApiError

LASTING = 2
"""The exit status if another start would end the same way, as for a usage error; `api.workers` does
not restart such a worker."""

PASSING = 75
"""The exit status if it may not (EX_TEMPFAIL of sysexits.h): no memory, no network, a full disk, a fault of
the device."""

POLL_S = 0.1
"""How often a thread that waits for another load looks whether the process ends."""

_UNREACHED = frozenset(
    {
        "ConnectionError",
        "TimeoutError",
        "TransportError",
        "HfHubHTTPError",
        "LocalEntryNotFoundError",
    }
)
_ANSWERED = frozenset({"RepositoryNotFoundError", "HFValidationError", "OfflineModeIsEnabled"})
"""Network errors by class name (of Python, httpx and the hub): those that pass, and those among them that
only other settings cure."""

_SCARCE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}
)

log = logging.getLogger("forescribe.api")

T = TypeVar("T")


class ModelThread(Generic[T]):
    """`run` is called with the loaded model and returns when it is stopped; `fail` is called with the
    reason if either raises. When nothing refers to the model any more, `again` says whether to load it again.
    All are called on the thread."""

    def __init__(
        self,
        what: str,
        name: str,
        load: Callable[[], T],
        run: Callable[[T], None],
        fail: Callable[[Failure], None],
        again: Callable[[], bool] = lambda: False,
    ) -> None:
        self.what, self.name = what, name
        self._load, self._run, self._fail, self._again = load, run, fail, again
        self.loaded = threading.Event()
        """Set once the load has ended, successfully or not."""
        self.closed = threading.Event()
        """Set when the process ends: other loads are not waited for any more."""
        self.others: list[threading.Event] = []
        self._thread = threading.Thread(target=self._main, name=what, daemon=True)

    def wait_for(self, other: ModelThread[Any]) -> None:
        """Begin to run only after another model's load has ended.

        transformers changes torch's default dtype for the whole process during a load.
        """
        self.others.append(other.loaded)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _main(self) -> None:
        try:
            while True:
                began_s = time.monotonic()
                self._log("loading")
                model = self._load()
                self._log("loaded", seconds=round(time.monotonic() - began_s, 1))
                self.loaded.set()
                self._wait_for_others()
                self._run(model)
                del model
                if not self._again():
                    return
        except Exception as error:
            log_unexpected(error)
            self._fail(Failure.of(self.what, error))
        finally:
            self.loaded.set()

    def _log(self, event: str, **facts: float) -> None:
        log.info(json.dumps({"event": event, "what": self.what, "name": self.name, **facts}))

    def _wait_for_others(self) -> None:
        for other in self.others:
            while not (other.wait(POLL_S) or self.closed.is_set()):
                pass


class Mailbox(Generic[T]):
    """What a model's thread has for one request, read on the event loop within `timeout_s` seconds of the
    mailbox's creation there."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self._loop = timeout_s, asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_s
        self._items: asyncio.Queue[T] = asyncio.Queue()

    def put(self, item: T) -> None:
        """Called on any thread."""
        with suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def next(self) -> T:
        """The next item. Raises ApiError `inference_timeout`."""
        try:
            async with asyncio.timeout_at(self._end_s):
                return await self._items.get()
        except TimeoutError as error:
            if self._loop.time() < self._end_s:
                raise  # a timeout of the caller
            text = f"not done within {self.timeout_s:g} s"
            raise ApiError("inference_timeout", text) from error


@dataclass(frozen=True)
class Failure:
    """The reason why the process has to end."""

    what: str
    message: str
    lasting: bool

    @classmethod
    def of(cls, what: str, error: Exception) -> Failure:
        return cls(what, " ".join(str(error).split()) or type(error).__name__, _lasting(error))

    @property
    def status(self) -> int:
        """The exit status of the process."""
        return LASTING if self.lasting else PASSING

    @property
    def line(self) -> str:
        """One line for the terminal and the log."""
        advice = (
            "starting again will not help: change the settings or the model"
            if self.lasting
            else "start the service again"
        )
        return f"{self.what} cannot be used: {self.message.rstrip('.')}; {advice}"


def log_engine(what: str, used: str, *, asked: str, device: str) -> None:
    """Log the engine that a model was loaded with; as a warning, where this machine lacks the kernels of a
    faster one. They are compiled in the background, where that is possible, for the next start."""
    from forescribe.speculative.native.library import advice

    hint = advice(used, asked=asked, device=device)
    facts = {"event": "engine", "what": what, "engine": used}
    if hint is None:
        log.info(json.dumps(facts))
    else:
        log.warning(json.dumps(facts | {"hint": hint}))


def log_unexpected(error: Exception) -> None:
    """Log a traceback, unless the error is one of this package, whose message says what is wrong."""
    if not isinstance(error, ForescribeError | SpeculativeError):
        log.error("the process cannot go on", exc_info=error)


def _lasting(error: Exception) -> bool:
    """Whether the cause is an error of this package that does not pass by itself."""
    if not isinstance(error, ForescribeError | SpeculativeError):
        return False
    if isinstance(error, CapacityError | BrokenError):
        return False
    causes = list(_causes(error))
    if any(_kinds(cause) & _ANSWERED for cause in causes):
        return True
    return not any(_passes(cause) for cause in causes[1:])


def _passes(cause: BaseException) -> bool:
    scarce = isinstance(cause, OSError) and cause.errno in _SCARCE
    return bool(_kinds(cause) & _UNREACHED) or scarce or out_of_memory(cause)


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
