"""Limits of requests: which may start, how many of one client, and how fast their bodies must come.

    reservation = admission.reserve(Client("team"))  # before the body is received
    reservation.start()                              # once the body is complete
    reservation.add_audio(seconds)                   # once its length is known
    reservation.release()                            # from any thread; twice does nothing

The queue is always bounded. A body that is still being received takes no place from requests that are
processed, however slowly it comes. A client is a key by its name, or an address where there are no keys.

A client that stalls would hold its file and its share of the uploads as long as it likes. So under `Pace` a
request ends with 408 after `IDLE_S` without a byte, and once its average rate, after that first grace period,
is below `MIN_RATE` bytes per second. Only time spent waiting for the client counts, not time that this server
needs. (Heads are limited by `http.protocols`.)
"""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError
from ..settings import Settings

IPV6_BITS = 64
"""A line of IPv6 gives its owner that many bits of addresses, so all of them are one client."""

MAX_UPLOADS_PER_ADDRESS = 64
"""Without keys: many people may share an address, and one machine must not take all places for bodies."""

IDLE_S = 30.0
"""The longest pause in a body: mobile networks have some of ten seconds."""

MIN_RATE = 1024.0
"""Bytes per second of a body: a tenth of speech in the most economical codec."""


class Admission:
    """The requests of one process that are being received or processed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._inside: dict[Reservation, None] = {}  # oldest first
        self.closed = False
        """Admit nothing that needs a model: a job is to be done with nothing beside it."""

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

    @property
    def vacant(self) -> bool:
        """Whether others are kept out, and none of them is inside."""
        with self._lock:
            return self.closed and all(each.stored for each in self._inside)

    def check(self) -> None:
        """Raises ApiError `overloaded` while others are kept out."""
        if self.closed:
            raise ApiError(
                "overloaded", "a job is being done here that must have no other beside it"
            )

    def reserve(
        self, client: Client, *, resumable: bool = False, stored: bool = False
    ) -> Reservation:
        """Reserve capacity for the body of one request.

        One that is only `stored` needs no model here. A piece of a `resumable` upload is stored too, and may
        come in while the server is full of requests.

        Raises ApiError `overloaded` if the server is full of requests or uploads, `rate_limited` if the
        client has reached a limit.
        """
        stored = stored or resumable
        with self._lock:
            if not stored:
                self.check()
            if not resumable and self._is_full():
                raise _overloaded()
            self._check_room(client)
            reservation = Reservation(self, client, stored)
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

    def _check_room(self, client: Client) -> None:
        """Raises ApiError if there is no place for another upload of this client."""
        settings = self.settings
        own = [each for each in self._inside if each.client.name == client.name]
        key = settings.api_keys.get(client.owner)
        maximum = (key and key.max_requests) or settings.max_requests_per_key
        if client.owner and len(own) >= maximum:
            text = f"this key has {maximum} requests in progress, its maximum"
            raise ApiError("rate_limited", text)
        if client.address and sum(not each.started for each in own) >= MAX_UPLOADS_PER_ADDRESS:
            text = f"this address has {MAX_UPLOADS_PER_ADDRESS} uploads in progress, its maximum"
            raise ApiError("rate_limited", text)
        if self.uploads >= settings.max_uploads:
            raise _overloaded()


@dataclass(eq=False)
class Reservation(AbstractContextManager["Reservation"]):
    """The capacity of one request: counted as an upload first, as a request from `start` on. As a context
    manager it is released at the end of the block."""

    admission: Admission
    client: Client
    stored: bool = False
    started: bool = field(default=False, init=False)
    seconds: float = field(default=0.0, init=False)  # of its audio, not decoded yet
    _done_s: float = field(default=0.0, init=False)

    def __exit__(self, *_: object) -> None:
        self.release()

    def start(self) -> None:
        """The body is complete. Raises ApiError `overloaded` if other requests have filled the server."""
        with self.admission._lock:
            if self.admission._is_full():
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
    answered: bool = field(default=False, init=False)
    """Whether the answer has begun, so that no error can be sent any more: a stream of events also
    receives, to notice a disconnect, and a body that no route reads may still arrive."""

    async def receive(self) -> Message:
        """The next message. If it is late, the client counts as disconnected if its answer has begun;
        otherwise raises ApiError `request_timeout`."""
        if self._complete:
            return await self._receive()
        left_s = IDLE_S + self._bytes / MIN_RATE - self._waited_s
        began_s = self.clock()
        try:
            async with asyncio.timeout(min(IDLE_S, max(0.0, left_s))):
                message = await self._receive()
        except TimeoutError:
            return self._late()
        finally:
            self._waited_s += self.clock() - began_s
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        late = self._waited_s > IDLE_S + self._bytes / MIN_RATE
        return self._late() if late and not self._complete else message

    def _late(self) -> Message:
        if self.answered:
            return {"type": "http.disconnect"}
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
