"""Admission: who may come in, by what is inside already. Never an unbounded queue.

    place = admission.arrive("team", keyed=True)    # before the body is read
    place.enter()                                   # when all of it is here
    place.hold(seconds)                             # when its audio is known
    place.leave()                                   # once, from any thread; twice does nothing

A body that is still coming in takes no place from those that are being worked on, however slowly it comes.
Counts uploads, requests, both of each key, and audio seconds, inside and, for keys with limits of their own,
in the last minute and hour. Knows nothing of audio or HTTP bodies.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ApiError
from ..settings import Settings
from .keys import Rights
from .meter import Meter

LONGEST_WAIT_S = 600
"""A client that is told to wait longer had better ask again."""


@dataclass(frozen=True)
class _Meters:
    """Of one key: what it has asked, and sent, in a minute and an hour."""

    requests: tuple[Meter, ...]
    audio: tuple[Meter, ...]

    @classmethod
    def of(cls, rights: Rights) -> _Meters:
        asked = ((rights.requests_per_minute, 60.0), (rights.requests_per_hour, 3600.0))
        sent = ((rights.audio_s_per_minute, 60.0), (rights.audio_s_per_hour, 3600.0))
        return cls(
            tuple(Meter(most, window_s) for most, window_s in asked if most is not None),
            tuple(Meter(most, window_s) for most, window_s in sent if most is not None),
        )


class Admission:
    """The counts, and the pace at which audio leaves: that says when to come again."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self.clock = settings, clock
        self._lock = threading.Lock()
        self._meters = {name: _Meters.of(rights) for name, rights in settings.api_keys.items()}
        self._arriving: Counter[str] = Counter()
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

    @property
    def uploads(self) -> int:
        """Requests whose bodies are still coming in."""
        return self._arriving.total()

    def arrive(self, caller: str, *, keyed: bool, resumable: bool = False) -> Place:
        """A place for the body of one request. Raises `overloaded` where the server is full already, of
        requests or of uploads, `rate_limited` where the caller, known by a key, has enough of both.

        A piece of a `resumable` upload is never worked on, so it may come in where the server is full of
        requests, and counts for none of the key's limits per minute and hour."""
        with self._lock:
            crowded = not resumable and self._crowded()
            if crowded or self.uploads >= self.settings.max_uploads:
                raise self._full()
            most = self._most(caller)
            if keyed and self._requests[caller] + self._arriving[caller] >= most:
                text = f"this key has {most} requests under way, its most"
                raise ApiError("rate_limited", text, retry_after=self._wait_s())
            if caller in self._meters and not resumable:
                self._count(self._meters[caller].requests, 1, "requests")
            self._arriving[caller] += 1
        return Place(self, caller)

    def enter(self, caller: str, *, keyed: bool) -> Place:
        """A place for a request that has no body to wait for. Raises as `arrive` does."""
        place = self.arrive(caller, keyed=keyed)
        place.enter()
        return place

    def charge(self, caller: str, seconds: float) -> None:
        """Counts audio that a key has sent, decoded. Raises `rate_limited` where that is more than it
        may now, `audio_too_long` where it never may."""
        with self._lock:
            self._charge(caller, seconds)

    def paced(self, audio_s: float, wall_s: float) -> None:
        """A recording has left: audio of so many seconds, beside others, in so much time."""
        if audio_s > 0 and wall_s > 0:
            with self._lock:
                inside = max(1, self.requests)
                self._pace += 0.2 * (inside * audio_s / wall_s - self._pace)

    def _charge(self, caller: str, seconds: float) -> None:
        if caller in self._meters:
            self._count(self._meters[caller].audio, seconds, "seconds of audio")

    def _crowded(self) -> bool:
        limits = self.settings
        return self.requests >= limits.max_requests or self._seconds >= limits.max_queued_audio_s

    def _most(self, caller: str) -> int:
        rights = self.settings.api_keys.get(caller)
        own = rights.max_requests if rights is not None else None
        return own or self.settings.max_requests_per_key

    def _count(self, meters: tuple[Meter, ...], amount: float, what: str) -> None:
        """All of them, or none."""
        now = self.clock()
        for meter in meters:
            wait_s = meter.wait_s(amount, now)
            limit = f"{meter.most:g} {what} in {meter.window_s:g} s, the most of this key"
            if math.isinf(wait_s):
                raise ApiError("audio_too_long", f"{amount:g} are more than {limit}", param="file")
            if wait_s:
                raise ApiError("rate_limited", limit, retry_after=math.ceil(wait_s))
        for meter in meters:
            meter.add(amount, now)

    def _full(self) -> ApiError:
        return ApiError("overloaded", "the queue is full", retry_after=self._wait_s())

    def _wait_s(self) -> int:
        """Until a share of what waits is done."""
        wait_s = self._seconds / max(self._pace, 0.1) / max(1, self.requests)
        return min(LONGEST_WAIT_S, max(1, math.ceil(wait_s)))


class Place:
    """What one request takes up: of the uploads first, of the requests from `enter` on."""

    def __init__(self, admission: Admission, caller: str) -> None:
        self.admission, self._caller, self._counted = admission, caller, admission._arriving
        self._seconds, self._done_s, self._left = 0.0, 0.0, False

    def enter(self) -> None:
        """The body is here. Raises `overloaded` where others have filled the server meanwhile."""
        house = self.admission
        with house._lock:
            if house._crowded():
                raise house._full()
            self._uncount()
            self._counted = house._requests
            self._counted[self._caller] += 1

    def hold(self, seconds: float) -> None:
        """Counts its audio. Raises `overloaded` where that is too much beside the others', and what
        `charge` raises."""
        house = self.admission
        with house._lock:
            most = house.settings.max_queued_audio_s
            if house._seconds and house._seconds + seconds > most:
                raise house._full()
            house._charge(self._caller, seconds)
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
            self._uncount()
            if not house._requests:
                house._seconds = 0.0  # what rounding left

    def _uncount(self) -> None:
        self._counted[self._caller] -= 1
        if not self._counted[self._caller]:
            del self._counted[self._caller]  # names that have nobody inside are forgotten

    def _give_back(self, seconds: float) -> None:
        seconds = min(seconds, self._seconds)
        self._seconds -= seconds
        self.admission._seconds -= seconds
