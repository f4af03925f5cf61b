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
from collections.abc import Callable
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


class Admission:
    """The requests of one process that are being received or processed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._inside: dict[Reservation, None] = {}  # oldest first

    @property
    def requests(self) -> int:
        with self._lock:
            return sum(each.started for each in self._inside)

    @property
    def uploads(self) -> int:
        """Requests whose bodies are still being received."""
        with self._lock:
            return len(self._inside) - self.requests

    @property
    def seconds(self) -> float:
        """Seconds of audio that are not decoded yet."""
        with self._lock:
            return sum(each.seconds for each in self._inside)

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
            self._make_room(client)
            reservation = Reservation(self, client, body)
            self._inside[reservation] = None
            return reservation

    def start(self, client: Client) -> Reservation:
        """Reserve capacity for a request without a body. Raises as `reserve` does."""
        reservation = self.reserve(client)
        reservation.start()
        return reservation

    def _is_full(self) -> bool:
        settings = self.settings
        return self.requests >= settings.max_requests or self.seconds >= settings.max_queued_audio_s

    def _make_room(self, client: Client) -> None:
        """Where there is no place for another upload of this client, drop the slowest body, of equal ones the
        oldest. Raises ApiError if all are fast."""
        settings = self.settings
        own = [each for each in self._inside if each.client.name == client.name]
        key = settings.api_keys.get(client.owner)
        maximum = (key and key.max_requests) or settings.max_requests_per_key
        if client.owner and len(own) >= maximum:
            text = f"this key has {maximum} requests in progress, its maximum"
            error, droppable = ApiError("rate_limited", text), own
        elif client.address and sum(not each.started for each in own) >= MAX_UPLOADS_PER_ADDRESS:
            text = f"this address has {MAX_UPLOADS_PER_ADDRESS} uploads in progress, its maximum"
            error, droppable = ApiError("rate_limited", text), own
        elif self.uploads >= settings.max_uploads:
            error, droppable = _overloaded(), list(self._inside)
        else:
            return
        rates = {
            each: each.body.rate()
            for each in droppable
            if each.body is not None and not each.started
        }
        slowest = min(rates, key=rates.__getitem__, default=None)
        if slowest is None or rates[slowest] >= SLOW_RATE:
            raise error
        slowest.release()
        assert slowest.body is not None
        slowest.body.drop()


@dataclass(eq=False)
class Reservation:
    """The capacity of one request: counted as an upload first, as a request from `start` on. As a context
    manager it is released at the end of the block."""

    admission: Admission
    client: Client
    body: Body | None
    started: bool = field(default=False, init=False)
    seconds: float = field(default=0.0, init=False)  # of its audio, not decoded yet
    _done_s: float = field(default=0.0, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def start(self) -> None:
        """The body is complete. Raises ApiError `overloaded` if other requests have filled the server, or
        another body has its place."""
        with self.admission._lock:
            if self not in self.admission._inside or self.admission._is_full():
                raise _overloaded()
            self.started = True

    def add_audio(self, seconds: float) -> None:
        """Count the request's audio. Raises ApiError `overloaded` if the queue would be too long."""
        with self.admission._lock:
            queued = self.admission.seconds
            if queued and queued + seconds > self.admission.settings.max_queued_audio_s:
                raise _overloaded()
            self.seconds += seconds

    def progressed(self, done_s: float) -> None:
        """The first `done_s` seconds of its audio are decoded."""
        with self.admission._lock:
            if done_s > self._done_s:
                self.seconds = max(0.0, self.seconds - (done_s - self._done_s))
                self._done_s = done_s

    def release(self) -> None:
        with self.admission._lock:
            self.admission._inside.pop(self, None)


@dataclass(frozen=True)
class Client:
    """The sender of a request: `owner` is the name of its key, `address` its network if it has none. Both are
    empty if neither is known, as behind a Unix socket."""

    owner: str = ""
    address: str = ""

    @property
    def name(self) -> str:
        """The name under which it is counted; empty if it is unknown. A server either has keys or not, so
        names of keys and addresses are never counted together."""
        return self.owner or self.address


class Pace:
    """ASGI middleware that limits bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body = Body(receive)
        scope.setdefault("state", {})["body"] = body

        async def send_and_note(message: Message) -> None:
            body.answered = True
            await send(message)

        await self.app(scope, body.receive, send_and_note)


@dataclass(eq=False)
class Body:
    """A request's body while it is received."""

    _receive: Receive
    clock: Callable[[], float] = time.monotonic
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
        left_s = IDLE_S + self._bytes / MIN_RATE - self._waited_s
        self._began_s = self.clock()
        try:
            async with asyncio.timeout(min(IDLE_S, max(0.0, left_s))) as self._limit:
                message = await self._receive()
        except TimeoutError:
            return self._late()
        finally:
            self._waited_s += self.clock() - self._began_s
            self._began_s = self._limit = None
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        late = self._waited_s > IDLE_S + self._bytes / MIN_RATE
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
            f"the body came too slowly: {self._bytes} bytes, with {IDLE_S:g} s of silence or less "
            f"than {MIN_RATE:g} bytes per second"
        )
        raise ApiError("request_timeout", text)


def network(host: str) -> str:
    """The address of a client, or its network if it is an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    ipv4 = address if isinstance(address, ipaddress.IPv4Address) else address.ipv4_mapped
    return str(ipv4 or ipaddress.ip_network((address, IPV6_BITS), strict=False))


def _overloaded() -> ApiError:
    return ApiError("overloaded", "the queue is full")
