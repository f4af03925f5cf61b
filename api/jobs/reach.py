"""Whether a server that all requests share can be reached: a database behind a partition, an object storage.

While it does not answer, one thread asks it every few seconds, and the others are told at once. Else each
request would hold a thread until the network gives up, and soon none were left for those that need no job.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Reach:
    """Of one server. `away` makes the error of those who are told at once, `lost` tells whether an error
    means that nobody answers. Where somebody asks and nobody is answered for `slow_s`, it counts as away.
    Who began more than `look_s` ago keeps nobody from asking: a transfer may last for hours."""

    def __init__(
        self,
        away: Callable[[], Exception],
        lost: Callable[[Exception], bool],
        slow_s: float = math.inf,
        look_s: float = 5.0,
    ) -> None:
        self._away, self._lost, self._slow_s, self._look_s = away, lost, slow_s, look_s
        self._lock = threading.Lock()
        self._asking = dict[object, float]()  # since when
        self._answered_s, self._silent = -math.inf, False

    @contextmanager
    def asking(self) -> Iterator[None]:
        """A request, which holds its thread until it is answered. Raises `away` if another one is not."""
        me, now = object(), time.monotonic()
        with self._lock:
            began = self._asking.values()
            since_s = min((each for each in began if each > self._answered_s), default=now)
            looked = any(now - each < self._look_s for each in began)
            if looked and (self._silent or now - since_s > self._slow_s):
                raise self._away()
            self._asking[me] = now
        silent = False
        try:
            yield
        except Exception as error:
            silent = self._lost(error)
            raise
        finally:
            with self._lock:
                del self._asking[me]
                self._silent = silent
                if not silent:
                    self._answered_s = time.monotonic()
