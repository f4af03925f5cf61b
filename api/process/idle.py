"""When a model leaves memory, and how it comes back.

    idle = IdleUnload(300.0, busy, unload)
    idle.start()
    idle.want()                  # somebody needs the model
    with idle.hold(): ...        # somebody needs it all along
    idle.wanted()                # on the model's thread: waits until somebody needs it again

`unload` is called once nothing was `busy` or held for the given time, under `lock`: whoever takes the model
under the same lock has it or finds that it is gone, and never loses it on the way. Does not know what a model
is or who is served.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOKS = 8
"""How often it is looked whether the model is idle, in the time after which it is unloaded."""

LONGEST_PAUSE_S = 1.0


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
