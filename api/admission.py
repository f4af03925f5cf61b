"""Admission: who may come in, by what is inside already. Never an unbounded queue.

    place = admission.enter("team")       # before the body is read
    place.hold(seconds)                   # when its audio is known
    place.leave()                         # once, from any thread; twice does nothing

Counts requests, requests of each key, and audio seconds. Knows nothing of audio or HTTP bodies.
"""

from __future__ import annotations

import math
import threading
from collections import Counter

from api.errors import ApiError
from api.settings import Settings

LONGEST_WAIT_S = 600
"""A client that is told to wait longer had better ask again."""


class Admission:
    """The counts, and the pace at which audio leaves: that says when to come again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._seconds = 0.0
        self._pace = 1.0  # seconds of audio per second, of the last recordings

    @property
    def requests(self) -> int:
        return self._requests.total()

    @property
    def seconds(self) -> float:
        """Of audio, not yet decoded."""
        return self._seconds

    def enter(self, caller: str, *, keyed: bool) -> Place:
        """A place for one request. Raises `overloaded` where the house is full, `rate_limited`
        where the caller, known by a key, has enough inside."""
        limits = self.settings
        with self._lock:
            if self.requests >= limits.max_requests or self._seconds >= limits.max_queued_audio_s:
                raise self._full()
            if keyed and self._requests[caller] >= limits.max_requests_per_key:
                raise ApiError(
                    "rate_limited",
                    f"this key has {limits.max_requests_per_key} requests under way, its most",
                    retry_after=self._wait_s(),
                )
            self._requests[caller] += 1
        return Place(self, caller)

    def paced(self, audio_s: float, wall_s: float) -> None:
        """A recording has left: audio of so many seconds, beside others, in so much time."""
        if audio_s > 0 and wall_s > 0:
            with self._lock:
                inside = max(1, self.requests)
                self._pace += 0.2 * (inside * audio_s / wall_s - self._pace)

    def _full(self) -> ApiError:
        return ApiError("overloaded", "the queue is full", retry_after=self._wait_s())

    def _wait_s(self) -> int:
        """Until a share of what waits is done."""
        wait_s = self._seconds / max(self._pace, 0.1) / max(1, self.requests)
        return min(LONGEST_WAIT_S, max(1, math.ceil(wait_s)))


class Place:
    """What one request takes up."""

    def __init__(self, admission: Admission, caller: str) -> None:
        self.admission, self._caller = admission, caller
        self._seconds, self._done_s, self._left = 0.0, 0.0, False

    def hold(self, seconds: float) -> None:
        """Counts its audio. Raises `overloaded` where that is too much beside the others'."""
        house = self.admission
        with house._lock:
            most = house.settings.max_queued_audio_s
            if house._seconds and house._seconds + seconds > most:
                raise house._full()
            house._seconds += seconds
            self._seconds += seconds

    def progressed(self, done_s: float) -> None:
        """So much of its audio, from its start, is behind us."""
        with self.admission._lock:
            if not self._left:
                self._give_back(max(0.0, done_s - self._done_s))
                self._done_s = max(self._done_s, done_s)

    def leave(self) -> None:
        house = self.admission
        with house._lock:
            if self._left:
                return
            self._left = True
            self._give_back(self._seconds)
            house._requests[self._caller] -= 1
            house._requests += Counter()  # names that have nobody inside are forgotten
            if not house._requests:
                house._seconds = 0.0  # what rounding left

    def _give_back(self, seconds: float) -> None:
        seconds = min(seconds, self._seconds)
        self._seconds -= seconds
        self.admission._seconds -= seconds
