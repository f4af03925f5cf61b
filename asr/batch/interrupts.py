"""Ctrl-C and SIGTERM: the first one requests a clean end, the second one ends the process at once.

    with Stop() as stop:
        with stop.interruptible():
            ...                      # KeyboardInterrupt may be raised here, and only here

So a result that is being written is completed, with its record. A separate thread says at once that the
first signal has come, and ends the process at the second one, as the main thread may be inside a library
call for minutes. Knows signals; nothing of recordings.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Self

INTERRUPTED = 130
"""Exit code: 128 + SIGINT, as in shells; the same for SIGTERM, which has the same effect."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
JOIN_S = 1.0
"""Seconds for which the end waits for the thread that writes to stderr: nobody may be reading it."""

SHOW_CURSOR = b"\x1b[?25h"
CLEAR_LINE = b"\r\x1b[K"
ENDING = (
    b"forescribe: interrupted; what is being written is completed, a second Ctrl-C ends at once\n"
)


@dataclass(eq=False)
class Stop:
    """Whether an end was requested. Handles signals inside of `with`, in the main thread; in other
    threads it leaves them alone. `told` is written to stderr at the first one."""

    told: bytes = ENDING
    requested: bool = field(default=False, init=False)
    _may_raise: bool = field(default=False, init=False)
    _before: dict[signal.Signals, Any] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        _told.clear()
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._watcher = threading.Thread(
                target=_watch, args=(self._reader, self.told), daemon=True
            )
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._writer)  # the watching thread reads the end of the pipe, and ends
            self._watcher.join(JOIN_S)  # a process that ends sooner would not say why
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise KeyboardInterrupt if an end was requested before, or as soon as it is."""
        self._may_raise = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        if first and self._may_raise:
            raise KeyboardInterrupt


_told = threading.Event()


def tell_at_the_end() -> None:
    """Write to stderr that the process was interrupted, unless that was written when the signal came."""
    if not _told.is_set():
        _write(b"forescribe: interrupted\n")
    _told.clear()


def _write(text: bytes) -> None:
    """Not by print: the stream's lock may be held by what was interrupted."""
    with suppress(OSError):  # nobody reads it
        os.write(2, CLEAR_LINE + text if os.isatty(2) else text)


def _watch(reader: int, text: bytes) -> None:
    """Count signals: their numbers are written into the pipe even while Python code cannot run."""
    seen = 0
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            seen += number[0] in SIGNALS
            if seen == 1:
                _told.set()
                _write(text)
            if seen > 1:
                if sys.stderr.isatty():
                    os.write(2, SHOW_CURSOR)  # a progress bar hides it
                os._exit(INTERRUPTED)
