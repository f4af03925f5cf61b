"""Limits of requests: which may start, how many of one client, and how fast their bodies must come.

    reservation = admission.reserve(Client("team"), body)   # before the body is received
    reservation.start()                                     # once the body is complete
    reservation.add_audio(seconds)                          # once its length is known
    reservation.release()                                   # from any thread; twice does nothing

The queue is always bounded. A body that is still being received takes no place from requests that are
processed, however slowly it comes. If the places for bodies run out, the slowest body is dropped, unless all
are fast. A client is a key by its name, or an address where there are no keys. What a key may use in a minute
or a month is a gateway's to count. Does not know audio.

A client that stalls would hold its file and its share of the uploads as long as it likes. So under `Pace` a
request ends with 408 after `IDLE_S` without a byte, and once its average rate, after that first grace period,
is below `MIN_RATE` bytes per second. It also ends with 408 when another request needs its place; admission
finds the request's `Body` in `state.body`. Only time spent waiting for the client counts, not time that this
server needs, for example to write to a slow disk. (Heads are limited by `http.protocols`.)
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import RETRY_S, ApiError
from ..settings import Settings

IPV6_BITS = 64
"""A line of IPv6 gives its owner that many bits of addresses, so all of them are one client."""

MAX_UPLOADS_PER_ADDRESS = 64
"""Without keys: many people may share an address, and one machine must not take all places for bodies."""

SLOW_RATE = 16 << 10
"""Bytes per second: audio of 128 kbit/s that is sent as fast as it is spoken. A body that comes faster is
never dropped for another."""

IDLE_S = 30.0
"""The longest pause in a body: mobile networks have some of ten seconds."""

MIN_RATE = 1024.0
"""Bytes per second of a body: a tenth of speech in the most economical codec."""

YOUNG_S = 2.0
"""How long a body may take to begin before its rate is known."""

SILENT_S = 5.0
"""After so long without a byte a body counts as stalled, however fast it was before."""

Clock = Callable[[], float]


class Admission:
    """The counts of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._uploads: Counter[str] = Counter()  # by the names of clients
        self._requests: Counter[str] = Counter()
        self._receiving: dict[Reservation, None] = {}  # whose bodies can be dropped, oldest first
        self._seconds = 0.0

    @property
    def requests(self) -> int:
        return self._requests.total()

    @property
    def seconds(self) -> float:
        """Seconds of audio that are not decoded yet."""
        return self._seconds

    @property
    def uploads(self) -> int:
        """Requests whose bodies are still being received."""
        return self._uploads.total()

    def reserve(
        self, client: Client, body: Body | None = None, *, resumable: bool = False
    ) -> Reservation:
        """Reserve capacity for the body of one request.

        A piece of a `resumable` upload is only stored, so it may come in while the server is full of
        requests. A `body` that is slow may be dropped later, when another needs its place.

        Raises ApiError `overloaded` if the server is full of requests or uploads, `rate_limited` if the
        client has reached a limit. Call it on the event loop, where bodies are received.
        """
        with self._lock:
            if not resumable and self._is_full():
                raise _overloaded()
            dropped = self._slow_body(client)
            if dropped is not None:
                dropped.release()
                assert dropped.body is not None
                dropped.body.drop()
            self._uploads[client.name] += 1
            reservation = Reservation(self, client, body, self._uploads)
            if body is not None:
                self._receiving[reservation] = None
            return reservation

    def start(self, client: Client) -> Reservation:
        """Reserve capacity for a request without a body. Raises as `reserve` does."""
        reservation = self.reserve(client)
        reservation.start()
        return reservation

    def _is_full(self) -> bool:
        settings = self.settings
        return (
            self._requests.total() >= settings.max_requests
            or self._seconds >= settings.max_queued_audio_s
        )

    def _slow_body(self, client: Client) -> Reservation | None:
        """The upload that has to end for another of this client; None if there is room. Raises ApiError if
        there is none and no body is slow."""
        settings, name = self.settings, client.name
        text = None
        if client.owner:
            own = settings.api_keys.get(client.owner)
            maximum = (own and own.max_requests) or settings.max_requests_per_key
            if self._requests[name] + self._uploads[name] >= maximum:
                text = f"this key has {maximum} requests in progress, its maximum"
        elif name and self._uploads[name] >= MAX_UPLOADS_PER_ADDRESS:
            text = f"this address has {MAX_UPLOADS_PER_ADDRESS} uploads in progress, its maximum"
        if text is not None:
            slowest = _slowest(other for other in self._receiving if other.client.name == name)
            if slowest is None:
                raise ApiError("rate_limited", text)
            return slowest
        if self._uploads.total() < settings.max_uploads:
            return None
        slowest = _slowest(self._receiving)
        if slowest is None:
            raise _overloaded()
        return slowest


@dataclass(eq=False)
class Reservation:
    """The capacity of one request: counted as an upload first, as a request from `start` on. As a context
    manager it is released at the end of the block."""

    admission: Admission
    client: Client
    body: Body | None
    _counter: Counter[str]  # the one of `admission` that it counts in
    _seconds: float = field(default=0.0, init=False)
    _done_s: float = field(default=0.0, init=False)
    _released: bool = field(default=False, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def start(self) -> None:
        """The body is complete. Raises ApiError `overloaded` if other requests have filled the server, or
        another body has its place."""
        admission = self.admission
        with admission._lock:
            if self._released or admission._is_full():
                raise _overloaded()
            self._uncount()
            self._counter = admission._requests
            self._counter[self.client.name] += 1

    def add_audio(self, seconds: float) -> None:
        """Count the request's audio. Raises ApiError `overloaded` if the queue would be too long."""
        admission = self.admission
        with admission._lock:
            maximum = admission.settings.max_queued_audio_s
            if admission._seconds and admission._seconds + seconds > maximum:
                raise _overloaded()
            admission._seconds += seconds
            self._seconds += seconds

    def progressed(self, done_s: float) -> None:
        """The first `done_s` seconds of its audio are decoded."""
        with self.admission._lock:
            if not self._released and done_s > self._done_s:
                decoded = min(done_s - self._done_s, self._seconds)
                self._seconds -= decoded
                self.admission._seconds -= decoded
                self._done_s = done_s

    def release(self) -> None:
        admission = self.admission
        with admission._lock:
            if self._released:
                return
            self._released = True
            admission._seconds -= self._seconds
            self._uncount()
            if not admission._requests:
                admission._seconds = 0.0  # removes rounding errors

    def _uncount(self) -> None:
        self.admission._receiving.pop(self, None)
        self._counter[self.client.name] -= 1
        if not self._counter[self.client.name]:
            del self._counter[self.client.name]  # clients without requests are forgotten


@dataclass(frozen=True)
class Client:
    """The sender of a request: `owner` is the name of its key, `address` its network if it has none. Both are
    empty if neither is known, as behind a Unix socket."""

    owner: str = ""
    address: str = ""

    @property
    def name(self) -> str:
        """The name under which it is counted; empty if it is unknown. Names of keys and addresses are never
        counted together, because a server either has keys or not."""
        return self.owner or self.address


class Pace:
    """ASGI middleware that limits bodies."""

    def __init__(self, app: ASGIApp, clock: Clock = time.monotonic) -> None:
        self.app, self.clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body = Body(receive, IDLE_S, MIN_RATE, self.clock)
        scope.setdefault("state", {})["body"] = body

        async def send_and_note(message: Message) -> None:
            body.answered = True
            await send(message)

        await self.app(scope, body.receive, send_and_note)


@dataclass(eq=False)
class Body:
    """A request's body while it is received."""

    _receive: Receive
    idle_s: float
    min_rate: float
    clock: Clock
    _complete: bool = field(default=False, init=False)
    _bytes: int = field(default=0, init=False)
    _waited_s: float = field(default=0.0, init=False)
    _began_s: float | None = field(default=None, init=False)  # of the wait in progress
    _limit: asyncio.Timeout | None = field(default=None, init=False)  # of the wait in progress
    _dropped: bool = field(default=False, init=False)
    answered: bool = field(default=False, init=False)
    """Whether the answer has begun, so that no error can be sent any more: a stream of events also
    receives, to notice a disconnect, and a body that no route reads may still arrive."""

    async def receive(self) -> Message:
        """The next message. If it is late, the client counts as disconnected if its answer has begun;
        otherwise raises ApiError `request_timeout`."""
        if self._complete:
            return await self._receive()
        if self._dropped:
            return self._late()
        left_s = self.idle_s + self._bytes / self.min_rate - self._waited_s
        self._began_s = self.clock()
        try:
            async with asyncio.timeout(min(self.idle_s, max(0.0, left_s))) as self._limit:
                message = await self._receive()
        except TimeoutError:
            return self._late()
        finally:
            self._waited_s += self.clock() - self._began_s
            self._began_s = self._limit = None
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        late = self._waited_s > self.idle_s + self._bytes / self.min_rate
        return self._late() if not self._complete and (late or self._dropped) else message

    def rate(self) -> float:
        """Bytes per second of waiting for the client: infinite in the first seconds and once the body is
        complete, 0 if it has stalled."""
        silent_s = 0.0 if self._began_s is None else self.clock() - self._began_s
        waited_s = self._waited_s + silent_s
        if self._complete or waited_s < YOUNG_S:
            return math.inf
        return 0.0 if silent_s >= SILENT_S else self._bytes / waited_s

    def drop(self) -> None:
        """End the body: another needs its place. Call it on the event loop."""
        self._dropped = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _late(self) -> Message:
        if self.answered:
            return {"type": "http.disconnect"}
        if self._dropped:
            text = f"the body came too slowly, and another needed its place: {self._bytes} bytes so far"
            raise ApiError("request_timeout", text, retry_after=RETRY_S)
        text = (
            f"the body came too slowly: {self._bytes} bytes, with {self.idle_s:g} s of silence or less "
            f"than {self.min_rate:g} bytes per second"
        )
        raise ApiError("request_timeout", text)


def network(host: str) -> str:
    """The address of a client, or its network if it is an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_BITS), strict=False))


def _overloaded() -> ApiError:
    return ApiError("overloaded", "the queue is full")


def _slowest(uploads: Iterable[Reservation]) -> Reservation | None:
    """The upload with the slowest body, of equal ones the oldest; None if all bodies are fast."""
    rates = [(upload.body.rate(), n, upload) for n, upload in enumerate(uploads) if upload.body]
    rate, _, slowest = min(rates, default=(math.inf, 0, None))
    return slowest if rate < SLOW_RATE else None
