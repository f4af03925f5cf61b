"""The live sessions of a process, requests of Wyoming included: how many may be open, what they count, and
how they end with it. Does not know sockets or events.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from forescribe.asr.live.events import Completed, Event, Failed, Hypothesis

from ..access.limits import Client
from ..errors import ApiError
from ..settings import Settings
from ..speech.serving import Serving
from .client_secrets import ClientSecrets

THREADS = 4
"""Threads that look for voices in the audio of all sessions: some milliseconds for each second of audio."""

MAX_PER_CLIENT = 16
"""Sessions of one key or, without keys, of one address: a quarter of the default of `max_streams`."""

LAGS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)


@dataclass(eq=False)
class Place:
    """One open session. `leave` asks it to end, and may be called from any thread."""

    leave: Callable[[], None] = lambda: None


class Streams:
    def __init__(self, settings: Settings, serving: Serving) -> None:
        self.settings, self.serving = settings, serving
        self.secrets = ClientSecrets.of(settings)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live")
        # Enrolment takes seconds, which the audio of other sessions does not wait for.
        self.enrolments = ThreadPoolExecutor(1, thread_name_prefix="enrolment")
        self._lock = threading.Lock()
        self._clients: Counter[str] = Counter()  # by the names of clients
        self._places: set[Place] = set()
        self.leaving = False
        """Whether the process drains."""
        metrics = serving.metrics
        metrics.watch(
            "live_streams",
            "Live sessions and Wyoming requests that are open.",
            lambda: len(self._places),
        )
        self._items = metrics.counter("live_items", "Items of live streams by result.", "result")
        self._audio_s = metrics.counter("live_audio_seconds", "Audio that live streams received.")
        self._lag_s = metrics.histogram(
            "live_lag_seconds",
            "From the arrival of a decode's newest audio to its words.",
            buckets=LAGS_S,
        )

    @property
    def open(self) -> int:
        """Sessions."""
        return len(self._places)

    @contextmanager
    def place(self, client: Client) -> Iterator[Place]:
        """A place for one session. Raises ApiError `overloaded` if the process has no more, `rate_limited` if
        the client has none, `not_ready` once it ends."""
        place = Place()
        with self._lock:
            if self.leaving:
                raise ApiError("not_ready", "the server is draining")
            if client.name and self._clients[client.name] >= MAX_PER_CLIENT:
                what = "key" if client.owner else "address"
                text = f"this {what} has {MAX_PER_CLIENT} live sessions open, its maximum"
                raise ApiError("rate_limited", text)
            if len(self._places) >= (most := self.settings.max_streams):
                text = f"{most} live sessions are open, the maximum of this server"
                raise ApiError("overloaded", text)
            self._clients[client.name] += 1
            self._places.add(place)
        try:
            yield place
        finally:
            with self._lock:
                self._places.discard(place)
                self._clients[client.name] -= 1
                if not self._clients[client.name]:
                    del self._clients[client.name]

    def drain(self) -> None:
        """Admit no more, and ask all sessions to end."""
        with self._lock:
            self.leaving = True
            places = list(self._places)
        for place in places:
            place.leave()

    def received(self, seconds: float) -> None:
        """Count audio."""
        self._audio_s.inc(seconds)

    def told(self, event: Event) -> None:
        """Count what a stream has told."""
        if isinstance(event, Hypothesis):
            self._lag_s.observe(max(0.0, event.lag_s))
        elif isinstance(event, Completed):
            self._items.labels("completed").inc()
        elif isinstance(event, Failed):
            self._items.labels("failed").inc()
