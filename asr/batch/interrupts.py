"""Ctrl-C and SIGTERM: the first asks for a clean end, the second ends the process at once.

    with Stop() as stop:
        with stop.interruptible():
            ...                      # KeyboardInterrupt may be raised here, and only here

So a result that is being written is written, and its record too. The second signal is seen by a
thread of its own: the main one may sit in a library for minutes and hear nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

INTERRUPTED = 130
"""Exit status: 128 + SIGINT, as shells count. SIGTERM asks for the same and gets the same."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"


class Stop:
    """Whether somebody asked for an end. Listens between `with` and its end, in the main thread;
    elsewhere it leaves signals as they are."""

    def __init__(self) -> None:
        self.requested = False
        self._may_raise = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in SIGNALS}
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            threading.Thread(target=_watch, args=(self._reader,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._writer)  # the watching thread reads the end, and ends
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raises KeyboardInterrupt at once if it was asked for before, or as soon as it is."""
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


def _watch(reader: int) -> None:
    """The kernel's side of a signal writes its number into the pipe, whatever Python is doing."""
    seen = 0
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            seen += number[0] in SIGNALS
            if seen > 1:
                if sys.stderr.isatty():
                    os.write(2, SHOW_CURSOR)  # a bar had hidden it
                os._exit(INTERRUPTED)
