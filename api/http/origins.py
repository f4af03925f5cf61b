"""Origins: which names this server answers to, and the pages of which origins may call it.

A server without keys trusts whoever reaches it, and the browser of its user reaches it on behalf of every
page that is open there. Two checks keep other pages out, before a route sees the request:

    Host             DNS rebinding: a page at http://evil.test makes its own name mean 127.0.0.1. It cannot
                     choose the Host that the browser sends, so only known names are answered.
    Sec-Fetch-Site,  Cross-origin requests: browsers say where a request comes from. Whatever is neither
    Origin           from this server's own pages nor typed by the user is refused, but for links to it.

Programs that are no browsers send neither of the latter. `/health` and `/ready` tell nothing, so they
answer to any name: Kubernetes probes a pod by its address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError, refusal

if TYPE_CHECKING:
    from ..metrics import Metrics
    from ..settings import Settings

OPEN = frozenset({"/health", "/ready"})
ANY = "*"

HEADERS = {"Cross-Origin-Resource-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
"""On every answer: pages of other origins cannot embed it, and nothing is run as what it is not."""

EXPOSED = (
    "Content-Disposition",
    "Location",
    "Retry-After",
    "Tus-Extension",
    "Tus-Max-Size",
    "Tus-Resumable",
    "Tus-Version",
    "Upload-Length",
    "Upload-Offset",
    "x-request-id",
)
"""Headers that pages of allowed origins may read besides those that every page may."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(https?)://([^\s/?#@]+)")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Place:
    """A name, or an address without brackets, and a port where one was given."""

    name: str
    port: int | None

    @classmethod
    def of(cls, written: str) -> Place | None:
        """From a Host header, or what follows `://`; None for what is neither."""
        match = _HOST.fullmatch(written.strip().lower())
        if match is None:
            return None
        name = match[1].strip("[]").removesuffix(".")
        with suppress(ValueError):
            name = str(ipaddress.ip_address(name))  # IPv6 has many spellings
        return cls(name, int(match[2]) if match[2] else None)

    @classmethod
    def named(cls, host: str) -> Place | None:
        """From a setting, where an IPv6 address needs no brackets."""
        return cls.of(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host)

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.name)
        except ValueError:
            return None

    @property
    def loopback(self) -> bool:
        if self.address is None:
            return self.name == "localhost"
        return self.address.is_loopback


@dataclass(frozen=True)
class Names:
    """The names that a server answers to. `patterns` are names, `*.domain`, or `*` for all."""

    bound: Place | None
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Names:
        """With keys, names protect nothing, as no page has a key: all are answered unless some are
        listed."""
        if settings.api_keys and not settings.allowed_hosts:
            return cls(None, (ANY,))
        return cls(Place.named(settings.host), settings.allowed_hosts)

    def answer(self, place: Place) -> bool:
        """Addresses cannot be rebound: a page that calls one was loaded from it. They are answered
        where the server listens beyond loopback."""
        if place.loopback or (self.bound is not None and place.name == self.bound.name):
            return True
        beyond = self.bound is not None and not self.bound.loopback
        return (beyond and place.address is not None) or any(
            _fits(place.name, pattern) for pattern in self.patterns
        )


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics
        self.names, self.origins = Names.of(settings), frozenset(settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        if scope["path"] not in OPEN:
            try:
                self._check(scope)
            except ApiError as error:
                return await self._refuse(error, scope, receive, send)
        if scope["type"] == "websocket":
            return await self.app(scope, receive, send)
        await self.app(scope, receive, _with_headers(send))

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.refused(error.code)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "forbidden"})
        else:
            await refusal(scope["path"], error)(scope, receive, _with_headers(send))

    def _check(self, scope: Scope) -> None:
        """Raises ApiError `forbidden`."""
        headers = Headers(scope=scope)
        written = headers.get("host", "")
        host = Place.of(written)
        if host is None or not self.names.answer(host):
            raise ApiError("forbidden", _unknown(written))
        origin = headers.get("origin")
        if not self._may_call(headers, origin, host, scope.get("method")):
            pages = repr(origin[:200]) if origin else "another origin"
            text = (
                f"pages of {pages} may not call this server; if they should, add the origin to "
                "`allowed_origins`"
            )
            raise ApiError("forbidden", text)

    def _may_call(
        self, headers: Headers, origin: str | None, host: Place, method: str | None
    ) -> bool:
        if origin is not None and (origin in self.origins or ANY in self.origins):
            return True
        site = headers.get("sec-fetch-site")
        if site is None:  # no browser, or a page over plain HTTP
            return origin is None or same(origin, host)
        if site in ("same-origin", "none"):
            return True
        # A link somewhere else that the user has followed; whoever shows it cannot read the answer.
        return (
            method in ("GET", "HEAD")
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )


def same(origin: str, host: Place) -> bool:
    """Whether an Origin header names this Host. The scheme is not compared: TLS may end at a proxy."""
    match = _ORIGIN.fullmatch(origin.strip().lower())
    place = Place.of(match[2]) if match else None
    if match is None or place is None:
        return False
    default = _PORTS[match[1]]
    return (place.name, place.port or default) == (host.name, host.port or default)


def checked_hosts(names: Iterable[str]) -> tuple[str, ...]:
    """The setting, as names are compared. Raises ValueError for what is no name."""
    return tuple(name if name == ANY else _checked_host(name) for name in names)


def _checked_host(name: str) -> str:
    wild = "*." if name.startswith("*.") else ""
    place = Place.named(name.removeprefix(wild))
    if place is None or place.port is not None or ANY in place.name:
        raise ValueError(f"{name!r} is no host: a name without port, `*.example.com`, or `*`")
    return wild + place.name


def checked_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """The setting, as browsers write it. Raises ValueError for what is no origin."""
    found = tuple(origin if origin == ANY else origin.lower() for origin in origins)
    for origin in found:
        match = _ORIGIN.fullmatch(origin)
        if origin != ANY and (match is None or Place.of(match[2]) is None):
            raise ValueError(f"{origin!r} is no origin, as https://app.example.com is")
    return found


def _unknown(host: str) -> str:
    if not host:
        return "the request does not say which server it is for: send the header Host"
    return (
        f"this server does not answer to the name {host[:200]!r}; if it should, add it to "
        "`allowed_hosts`"
    )


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in (ANY, name)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
