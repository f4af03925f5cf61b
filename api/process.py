"""The process of a service: its states from loading to the end, the threads of its models, the watchdog that
ends it when a model hangs, and when a model that is idle leaves memory.

    loading -> ready -> draining -> stopped,   or broken | failed

A service whose model cannot be loaded is of no use, so its process ends and its supervisor starts the next;
the exit status says whether that can help (`Failure`). What a model has done for a request goes to the event
loop through a `Mailbox`. Does not know what models do, or requests.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from forescribe.asr.errors import CapacityError, ForescribeError, out_of_memory
from forescribe.speculative.errors import BrokenError, SpeculativeError

from .errors import ApiError
from .settings import Settings

State = Literal["off", "loading", "ready", "draining", "stopped", "broken", "failed"]
"""`off` is a model that the settings do not name. `draining` begins at the signal, before work is refused;
`broken` is an engine that hangs, `failed` one that could not be loaded or has ended: the process ends."""

STALLED = 70
"""The exit status of a process whose model hangs (EX_SOFTWARE of sysexits.h)."""

LOOKS = 8
"""How often it is looked whether the model is idle, in the time after which it is unloaded."""

LONGEST_PAUSE_S = 1.0

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


def share_heaps() -> None:
    """Gives all threads two heaps, where the C library is glibc: one of its own keeps what a thread's largest
    request had needed, 240 MB of a server after 5,000 uploads."""
    limit = getattr(ctypes.CDLL(None), "mallopt", None)
    if limit is not None:
        limit(-8, 2)  # M_ARENA_MAX


class Life:
    """The states of a model and of its process: the announcement of the end, draining, and who is told.

    `announce_s` and `drain_s` are settings; `close` ends the work in progress after them.
    """

    def __init__(self, settings: Settings, close: Callable[[], None]) -> None:
        self.state: State = "loading"
        self.failed: Callable[[Failure], None] = lambda failure: None
        """Called on the model's thread with the reason why the process has to end."""
        self.closing: list[Callable[[], None]] = []
        """Called once when no more work is admitted, each in a separate thread."""
        self.end_s = math.inf
        """When draining ends, by `time.monotonic`."""
        self._settings, self._close = settings, close
        self._admitting = False  # work is admitted although the end was announced
        self._drained = threading.Lock()  # acquired by the first `drain` and never released

    @property
    def open(self) -> bool:
        """Whether work is admitted."""
        return self.state == "ready" or self._admitting

    @property
    def leaving(self) -> bool:
        """Whether the process ends and admits no more work."""
        return self.state in ("draining", "stopped", "failed") and not self._admitting

    def fail(self, failure: Failure) -> None:
        """The model could not be loaded, or has ended."""
        self.state = "failed"
        self.failed(failure)

    def announce(self) -> float:
        """Announce the end: `/ready` answers no, and work is admitted for `announce_s` more seconds, which
        load balancers need to notice. Then `drain` follows. Returns these seconds at once: a signal handler
        may call it."""
        announce_s = self._settings.announce_s if self.state == "ready" else 0.0
        self._admitting = announce_s > 0
        self._leave()
        _call_later(announce_s, self.drain)
        return announce_s

    def drain(self) -> None:
        """Admit no more work; work in progress has `drain_s` seconds before it is refused. Returns at once,
        and does nothing the second time."""
        self._admitting = False
        self._leave()
        if not self._drained.acquire(blocking=False):  # a signal handler must not wait for itself
            return
        self.end_s = time.monotonic() + self._settings.drain_s
        for act in self.closing:
            threading.Thread(target=act, name="ending", daemon=True).start()
        _call_later(self._settings.drain_s, self._close)

    def _leave(self) -> None:
        if self.state in ("loading", "ready"):
            self.state = "draining"


class Engine(Protocol):
    """A model that runs rounds in its own thread."""

    life: Life

    @property
    def round_s(self) -> float:
        """Seconds since the current round began; 0 between rounds."""
        ...


def watch(
    engines: Sequence[Engine], limit_s: float, hung: Callable[[], None], stopped: threading.Event
) -> None:
    """Call `hung`, which ends the process, if a round takes more than `limit_s`. A call that hangs in the
    device cannot be interrupted, not even by SIGTERM; the supervisor starts the next process."""
    while not stopped.wait(min(5.0, limit_s / 4)):
        for engine in engines:
            if (round_s := engine.round_s) > limit_s:
                engine.life.state = "broken"  # it accepts no more work: this round will not end
                log.critical('{"event": "engine hangs", "seconds": %.0f}', round_s)
                return hung()


class IdleUnload:
    """`after_s` 0: the model stays. Methods are for any thread, `wanted` for the model's own."""

    def __init__(
        self,
        after_s: float,
        busy: Callable[[], bool],
        unload: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.after_s, self.clock = after_s, clock
        self.lock = threading.RLock()
        self.unloaded = False
        """Whether the model is out of memory, or on its way back."""
        self._busy, self._unload = busy, unload
        self._held, self._used_s = 0, clock()
        self._want, self._stopped = threading.Event(), threading.Event()

    def start(self) -> None:
        if self.after_s:
            threading.Thread(target=self._watch, name="idle", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._want.set()

    def want(self) -> None:
        """Have the model loaded, if it is not."""
        self._used_s = self.clock()
        self._want.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the model in memory during the block; have it loaded, if it is not."""
        with self.lock:
            self._held += 1
            self.want()
        try:
            yield
        finally:
            with self.lock:
                self._held -= 1
                self._used_s = self.clock()

    def loaded(self) -> None:
        """The model can be used."""
        with self.lock:
            self.unloaded, self._used_s = False, self.clock()

    def wanted(self) -> bool:
        """Give the memory of the model, which nobody refers to any more, back to the system, and wait until
        it is wanted; False at the end."""
        if not self.unloaded:  # it has ended for another reason
            return False
        from forescribe.speculative.device import release_memory

        release_memory()
        self._want.wait()
        return not self._stopped.is_set()

    def look(self) -> None:
        """Unload the model if it was idle for long enough."""
        with self.lock:
            if self.unloaded:
                return
            if self._held or self._busy():
                self._used_s = self.clock()
            elif self.clock() - self._used_s >= self.after_s:
                self.unloaded = True
                self._want.clear()
                self._unload()

    def _watch(self) -> None:
        while not self._stopped.wait(min(LONGEST_PAUSE_S, self.after_s / LOOKS)):
            self.look()


class ModelThread(threading.Thread, Generic[T]):
    """`use` is called with the loaded model and returns when it is stopped; `fail` is called with the
    reason if either raises. When nothing refers to the model any more, `again` says whether to load it again.
    All are called on the thread."""

    def __init__(
        self,
        what: str,
        name: str,
        load: Callable[[], T],
        use: Callable[[T], None],
        fail: Callable[[Failure], None],
        again: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name=what, daemon=True)
        self.what, self.model = what, name
        self._load, self._use, self._fail, self._again = load, use, fail, again
        self.loaded = threading.Event()
        """Set once the load has ended, successfully or not."""
        self.closed = threading.Event()
        """Set when the process ends: other loads are not waited for any more."""
        self.others: list[threading.Event] = []

    def wait_for(self, other: ModelThread[Any]) -> None:
        """Begin to run only after another model's load has ended.

        transformers changes torch's default dtype for the whole process during a load.
        """
        self.others.append(other.loaded)

    def run(self) -> None:
        try:
            while True:
                began_s = time.monotonic()
                self._log("loading")
                model = self._load()
                self._log("loaded", seconds=round(time.monotonic() - began_s, 1))
                self.loaded.set()
                for other in self.others:
                    while not (other.wait(POLL_S) or self.closed.is_set()):
                        pass
                self._use(model)
                del model
                if not self._again():
                    return
        except Exception as error:
            log_unexpected(error)
            self._fail(Failure.of(self.what, error))
        finally:
            self.loaded.set()

    def _log(self, event: str, **facts: float) -> None:
        log.info(json.dumps({"event": event, "what": self.what, "name": self.model, **facts}))


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
    facts = {"event": "engine", "what": what, "engine": used, **({"hint": hint} if hint else {})}
    log.log(logging.WARNING if hint else logging.INFO, json.dumps(facts))


def log_unexpected(error: Exception) -> None:
    """Log a traceback, unless the error is one of this package, whose message says what is wrong."""
    if not isinstance(error, ForescribeError | SpeculativeError):
        log.error("the process cannot go on", exc_info=error)


def exit_hung() -> None:
    """End the process at once, without cleanup, which the hanging call would block."""
    os._exit(STALLED)


def exit_failed(failure: Failure) -> None:
    """End the process at once with one line that says why. No work is in the engine."""
    os.write(sys.stderr.fileno(), f"forescribe: {failure.line}\n".encode())
    os._exit(failure.status)


def _call_later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _lasting(error: Exception) -> bool:
    """Whether the cause is an error of this package that does not pass by itself."""
    if not isinstance(error, ForescribeError | SpeculativeError):
        return False
    if isinstance(error, CapacityError | BrokenError):
        return False
    causes, cause = list[BaseException](), error.__cause__
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__
    if any(_kinds(one) & _ANSWERED for one in causes):
        return True
    return not any(
        _kinds(one) & _UNREACHED
        or (isinstance(one, OSError) and one.errno in _SCARCE)
        or out_of_memory(one)
        for one in causes
    )


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
