"""Limits of clients: who counts, whether a request may start, and headers that tell what is left.

    reservation = admission.reserve(Client("team"), body)   # before the body is received
    reservation.start()                                     # once the body is complete
    reservation.add_audio(seconds)                          # once its length is known
    reservation.release()                                   # from any thread; twice does nothing

The queue is always bounded. A body that is still being received takes no place from requests that are
processed, however slowly it comes. If the places for bodies run out, the slowest body is dropped, unless all
are fast. Counts uploads, requests, both for each client, and seconds of audio: in progress and, for keys with
limits of their own, in the last minute and hour. A client is a key by its name, or an address where there are
no keys.

Answers of limited routes, refusals too, tell a key with limits per minute or hour what is left, with OpenAI's
names. Where it has both, the one with the smaller share left is told:

    x-ratelimit-limit-requests: 60
    x-ratelimit-remaining-requests: 59
    x-ratelimit-reset-requests: 1s              when all of it is available again
    x-ratelimit-limit-audio-seconds: 3600       likewise -audio-seconds and -tokens

Does not know audio.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError
from ..settings import Settings
from .keys import Rights

if TYPE_CHECKING:
    from ..http.pace import Body

IPV6_BITS = 64
"""A line of IPv6 gives its owner that many bits of addresses, so all of them are one client."""

STEPS = 60
"""In which a window slides, so that memory does not grow with use."""

ROUNDING = 1e-6

MAX_RETRY_AFTER_S = 600

SLOW_RATE = 16 << 10
"""Bytes per second: audio of 128 kbit/s that is sent as fast as it is spoken. A body that comes faster is
never dropped for another."""

LIMITED = frozenset({"audio", "endpoints", "text", "jobs"})
"""Tags of the routes that count against limits, if they are posted to."""

WINDOWS_S = {"minute": 60.0, "hour": 3600.0}

NAMES = ("requests", "audio-seconds", "tokens")
"""The kinds of limits, as the headers call them."""

HEADERS = tuple(
    f"x-ratelimit-{what}-{name}" for name in NAMES for what in ("limit", "remaining", "reset")
)


class Admission:
    """The counts, and the rate at which audio is processed: it determines Retry-After."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self.clock = settings, clock
        self._lock = threading.Lock()
        self._limits = {name: _KeyLimits.of(rights) for name, rights in settings.api_keys.items()}
        self._uploads: Counter[str] = Counter()  # by the names of clients
        self._requests: Counter[str] = Counter()
        self._receiving: dict[Reservation, None] = {}  # whose bodies can be dropped, oldest first
        self._seconds = 0.0
        self._speed = 1.0  # seconds of audio per second, over the last recordings

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
        requests, and does not count for the key's limits per minute and hour. A `body` that is slow may be
        dropped later, when another needs its place.

        Raises ApiError `overloaded` if the server is full of requests or uploads, `rate_limited` if the
        client has reached a limit. Call it on the event loop, where bodies are received.
        """
        with self._lock:
            if not resumable and self._is_full():
                raise self._overloaded()
            dropped = self._slow_body(client)
            if client.owner in self._limits and not resumable:
                self._use(self._limits[client.owner].requests, 1, "requests")
            if dropped is not None:
                dropped._drop()
            self._uploads[client.name] += 1
            return Reservation(self, client, body)

    def start(self, client: Client) -> Reservation:
        """Reserve capacity for a request without a body. Raises as `reserve` does."""
        reservation = self.reserve(client)
        reservation.start()
        return reservation

    def charge_request(self, caller: str) -> None:
        """Count a request that reserves nothing here. Raises ApiError `rate_limited`."""
        with self._lock:
            if caller in self._limits:
                self._use(self._limits[caller].requests, 1, "requests")

    def charge(self, caller: str, seconds: float) -> None:
        """Count audio against a key's limits. Raises ApiError `rate_limited` if it exceeds what is allowed
        now, `audio_too_long` if it can never be allowed."""
        with self._lock:
            self._charge(caller, seconds)

    def give_back(self, caller: str, seconds: float) -> None:
        """Audio that was counted is refused after all."""
        with self._lock:
            if caller in self._limits:
                for limit in self._limits[caller].audio:
                    limit.add(-seconds, self.clock())

    def charge_tokens(self, caller: str, tokens: int) -> None:
        """Count the tokens of a prompt against a key's limits. Raises ApiError `rate_limited`, or
        `invalid_value` if the prompt alone exceeds a limit."""
        with self._lock:
            if caller in self._limits:
                self._use(self._limits[caller].tokens, tokens, "tokens")

    def add_tokens(self, caller: str, tokens: int) -> None:
        """Count tokens that were written: later requests wait for them."""
        with self._lock:
            if caller in self._limits:
                for limit in self._limits[caller].tokens:
                    limit.add(tokens, self.clock())

    def limits(self, caller: str) -> tuple[tuple[RateLimit, ...], ...]:
        """A key's limits of requests, audio and tokens, which may be read only."""
        limits = self._limits.get(caller)
        return ((), (), ()) if limits is None else (limits.requests, limits.audio, limits.tokens)

    def record_speed(self, audio_s: float, wall_s: float) -> None:
        """A recording of `audio_s` seconds was processed in `wall_s` seconds, together with others."""
        if audio_s > 0 and wall_s > 0:
            with self._lock:
                concurrent = max(1, self.requests)
                self._speed += 0.2 * (concurrent * audio_s / wall_s - self._speed)

    def _charge(self, caller: str, seconds: float) -> None:
        if caller in self._limits:
            self._use(self._limits[caller].audio, seconds, "seconds of audio")

    def _is_full(self) -> bool:
        settings = self.settings
        return (
            self.requests >= settings.max_requests or self._seconds >= settings.max_queued_audio_s
        )

    def _slow_body(self, client: Client) -> Reservation | None:
        """The upload that has to end for another of this client; None if there is room. Raises ApiError if
        there is none and no body is slow."""
        name = client.name
        own = [other for other in self._receiving if other.client.name == name]
        if client.keyed:
            maximum = self._max_requests(client.owner)
            if self._requests[name] + self._uploads[name] >= maximum:
                text = f"this key has {maximum} requests in progress, its maximum"
                return _slowest(own) or self._refuse_client(text)
        elif name and self._uploads[name] >= self.settings.max_uploads_per_address:
            maximum = self.settings.max_uploads_per_address
            text = f"this address has {maximum} uploads in progress, its maximum"
            return _slowest(own) or self._refuse_client(text)
        if self.uploads < self.settings.max_uploads:
            return None
        slowest = _slowest(self._receiving)
        if slowest is None:
            raise self._overloaded()
        return slowest

    def _refuse_client(self, text: str) -> NoReturn:
        raise ApiError("rate_limited", text, retry_after=self._retry_after_s())

    def _max_requests(self, caller: str) -> int:
        rights = self.settings.api_keys.get(caller)
        own = rights.max_requests if rights is not None else None
        return own or self.settings.max_requests_per_key

    def _use(self, limits: tuple[RateLimit, ...], amount: float, unit: str) -> None:
        """Count an amount against all limits, or against none."""
        now = self.clock()
        for limit in limits:
            wait_s = limit.wait_s(amount, now)
            text = f"{limit.maximum:g} {unit} in {limit.window_s:g} s, the maximum of this key"
            if math.isinf(wait_s) and unit == "tokens":
                raise ApiError("invalid_value", f"{amount:g} tokens exceed {text}", param="prompt")
            if math.isinf(wait_s):
                raise ApiError("audio_too_long", f"{amount:g} exceed {text}", param="file")
            if wait_s:
                raise ApiError("rate_limited", text, retry_after=math.ceil(wait_s))
        for limit in limits:
            limit.add(amount, now)

    def _overloaded(self) -> ApiError:
        return ApiError("overloaded", "the queue is full", retry_after=self._retry_after_s())

    def _retry_after_s(self) -> int:
        """An estimate of when one of the requests in progress will be done."""
        wait_s = self._seconds / max(self._speed, 0.1) / max(1, self.requests)
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s)))


class Reservation:
    """The capacity of one request: counted as an upload first, as a request from `start` on."""

    def __init__(self, admission: Admission, client: Client, body: Body | None = None) -> None:
        self.admission, self.client, self.body = admission, client, body
        self._counter = admission._uploads
        self._seconds, self._done_s, self._released = 0.0, 0.0, False
        if body is not None:
            admission._receiving[self] = None

    def start(self) -> None:
        """The body is complete. Raises ApiError `overloaded` if other requests have filled the server, or
        another body has its place."""
        admission = self.admission
        with admission._lock:
            if self._released or admission._is_full():
                raise admission._overloaded()
            self._uncount()
            self._counter = admission._requests
            self._counter[self.client.name] += 1

    def add_audio(self, seconds: float) -> None:
        """Count the request's audio. Raises ApiError `overloaded` if the queue would be too long, and what
        `Admission.charge` raises."""
        admission = self.admission
        with admission._lock:
            maximum = admission.settings.max_queued_audio_s
            if admission._seconds and admission._seconds + seconds > maximum:
                raise admission._overloaded()
            admission._charge(self.client.owner, seconds)
            admission._seconds += seconds
            self._seconds += seconds

    def progressed(self, done_s: float) -> None:
        """The first `done_s` seconds of its audio are decoded."""
        with self.admission._lock:
            if not self._released:
                self._return_audio(max(0.0, done_s - self._done_s))
                self._done_s = max(self._done_s, done_s)

    def release(self) -> None:
        with self.admission._lock:
            self._release()

    def _drop(self) -> None:
        """Give the place to another request."""
        assert self.body is not None
        self._release()
        self.body.drop()

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        self._return_audio(self._seconds)
        self._uncount()
        if not self.admission._requests:
            self.admission._seconds = 0.0  # removes rounding errors

    def _uncount(self) -> None:
        self.admission._receiving.pop(self, None)
        self._counter[self.client.name] -= 1
        if not self._counter[self.client.name]:
            del self._counter[self.client.name]  # clients without requests are forgotten

    def _return_audio(self, seconds: float) -> None:
        seconds = min(seconds, self._seconds)
        self._seconds -= seconds
        self.admission._seconds -= seconds


@dataclass(frozen=True)
class Client:
    """The sender of a request: `owner` is the name of its key, `address` its network if it has none. Both are
    empty if neither is known, as behind a Unix socket."""

    owner: str = ""
    address: str = ""

    @property
    def keyed(self) -> bool:
        return bool(self.owner)

    @property
    def name(self) -> str:
        """The name under which it is counted; empty if it is unknown. Names of keys and addresses are never
        counted together, because a server either has keys or not."""
        return self.owner or self.address


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


class RateLimit:
    """At most `maximum` in any `window_s` seconds, with a resolution of a sixtieth of the window.

    limit = RateLimit(maximum=600, window_s=3600)
    wait_s = limit.wait_s(30, now)      # 0 if 30 more may be used now
    limit.add(30, now)
    """

    def __init__(self, maximum: float, window_s: float) -> None:
        self.maximum, self.window_s = maximum, window_s
        self._steps: deque[list[float]] = deque()  # [step, amount], the oldest first
        self._used = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until this amount may be used: 0 for now, infinite for never."""
        if amount > self.maximum:
            return float("inf")
        self._expire(now)
        excess, wait_s = self._used + amount - self.maximum, 0.0
        for step, used in self._steps:
            if excess <= ROUNDING:
                break
            excess -= used
            wait_s = (step + STEPS + 1) * self.window_s / STEPS - now
        return wait_s

    def remaining(self, now: float) -> float:
        """How much may be used now."""
        self._expire(now)
        return min(self.maximum, max(0.0, self.maximum - self._used))

    def reset_s(self, now: float) -> float:
        """Seconds until all of it may be used."""
        self._expire(now)
        if not self._steps:
            return 0.0
        return max(0.0, (self._steps[-1][0] + STEPS + 1) * self.window_s / STEPS - now)

    def add(self, amount: float, now: float) -> None:
        step = self._step(now)
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1][1] += amount
        else:
            self._steps.append([step, amount])
        self._used += amount

    def _expire(self, now: float) -> None:
        while self._steps and self._steps[0][0] + STEPS < self._step(now):
            self._used -= self._steps.popleft()[1]
        if not self._steps:
            self._used = 0.0  # removes rounding errors

    def _step(self, now: float) -> float:
        return now * STEPS // self.window_s


class LimitHeaders:
    """ASGI middleware. `api.dependencies.caller` puts the key's name into `state.owner`."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                owner = scope.get("state", {}).get("owner")
                tags = getattr(scope.get("route"), "tags", None) or [""]
                if owner and tags[0] in LIMITED:
                    headers = MutableHeaders(scope=message)
                    for name, value in self.headers(owner).items():
                        headers[name] = value
            await send(message)

        await self.app(scope, receive, send_with_limits)

    def headers(self, owner: str) -> dict[str, str]:
        """The headers for a key; none if it has no limits."""
        now, found = self.admission.clock(), {}
        for name, limits in zip(NAMES, self.admission.limits(owner), strict=True):
            if limits:
                limit = min(limits, key=lambda one: one.remaining(now) / one.maximum)
                found[f"x-ratelimit-limit-{name}"] = number(limit.maximum)
                found[f"x-ratelimit-remaining-{name}"] = number(limit.remaining(now))
                found[f"x-ratelimit-reset-{name}"] = duration(limit.reset_s(now))
        return found


def number(value: float) -> str:
    """A count, or seconds to three places."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `1h0m3s`, `6m0s`, `59.5s`."""
    tenths = -int(-seconds * 10 // 1)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    text = f"{number(tenths / 10)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


@dataclass(frozen=True)
class _KeyLimits:
    """Limits of one key, per minute and per hour."""

    requests: tuple[RateLimit, ...]
    audio: tuple[RateLimit, ...]
    tokens: tuple[RateLimit, ...]

    @classmethod
    def of(cls, rights: Rights) -> _KeyLimits:
        return cls(*(_rate_limits(rights, unit) for unit in ("requests", "audio_s", "tokens")))


def _rate_limits(rights: Rights, unit: str) -> tuple[RateLimit, ...]:
    given = ((getattr(rights, f"{unit}_per_{name}"), s) for name, s in WINDOWS_S.items())
    return tuple(RateLimit(limit, window_s) for limit, window_s in given if limit is not None)


def _slowest(uploads: Iterable[Reservation]) -> Reservation | None:
    """The upload with the slowest body, of equal ones the oldest; None if all bodies are fast."""
    rates = [(upload.body.rate(), n, upload) for n, upload in enumerate(uploads) if upload.body]
    rate, _, slowest = min(rates, default=(math.inf, 0, None))
    return slowest if rate < SLOW_RATE else None
