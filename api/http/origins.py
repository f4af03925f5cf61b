"""Origin checks: which host names this server answers to, and which origins' pages may call it.

A server without keys trusts every client that reaches it, and a browser on the same network reaches it on
behalf of every page that is open in it. Two checks keep other pages out before a route sees the request:

    Host             DNS rebinding: a page at http://evil.test resolves its own name to 127.0.0.1. It cannot
                     choose the Host header that the browser sends, so only known names are answered.
    Sec-Fetch-Site,  Cross-origin requests: browsers say where a request comes from. A request that neither
    Origin           comes from this server's own pages nor is typed by the user is refused, except links.

Programs that are not browsers send neither of the latter two headers. `/health` and `/ready` reveal nothing,
so they answer to any name: Kubernetes probes a pod by its address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ApiError, refusal

UNCHECKED_PATHS = frozenset({"/health", "/ready"})

EXPOSED = (
    "Content-Disposition",
    "ETag",
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
"""Headers that pages of allowed origins may read in addition to the CORS-safelisted ones."""

PORTS = {"http": 80, "https": 443}

ANY = "*"
"""Every host, or every origin, in the settings."""

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(https?)://([^\s/?#@]+)")


@dataclass(frozen=True)
class Host:
    """A host name, or an address without brackets, and the port if one is given."""

    name: str
    port: int | None
    is_address: bool = False
    loopback: bool = False

    @classmethod
    def parse(cls, text: str) -> Host | None:
        """Parse a Host header or the part of a URL after `://`; None if the text is not a host."""
        match = _HOST.fullmatch(text.strip().lower())
        if match is None:
            return None
        name, port = match[1].strip("[]").removesuffix("."), int(match[2]) if match[2] else None
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return cls(name, port, loopback=name == "localhost")
        # An IPv6 address has several spellings.
        return cls(str(address), port, is_address=True, loopback=address.is_loopback)

    @classmethod
    def from_setting(cls, host: str) -> Host | None:
        """Parse a host from the settings, where an IPv6 address needs no brackets."""
        return cls.parse(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host)


def same_origin(origin: str, host: Host) -> bool:
    """Whether an Origin header names this host. The scheme is not compared: TLS may end at a proxy."""
    match = _ORIGIN.fullmatch(origin.strip().lower())
    other = Host.parse(match[2]) if match else None
    if match is None or other is None:
        return False
    default = PORTS[match[1]]
    return (other.name, other.port or default) == (host.name, host.port or default)


def matches(name: str, pattern: str) -> bool:
    """Whether a host name matches `*`, `*.domain` or a plain name."""
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in (ANY, name)


def checked_hosts(names: Iterable[str]) -> tuple[str, ...]:
    """The setting `allowed_hosts`, normalised. Raises ValueError for an entry that is not a host."""
    return tuple(name if name == ANY else _checked_host(name) for name in names)


def checked_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """The setting `allowed_origins`, as browsers write it. Raises ValueError for an entry that is not
    an origin."""
    checked = tuple(origin if origin == ANY else origin.lower() for origin in origins)
    for origin in checked:
        match = _ORIGIN.fullmatch(origin)
        if origin != ANY and (match is None or Host.parse(match[2]) is None):
            raise ValueError(f"{origin!r} is not an origin such as https://app.example.com")
    return checked


class OriginGuard:
    """ASGI middleware that refuses requests for unknown hosts and from other origins' pages. `host` is the
    one that the server listens to, `names` are its further ones; `refused` is told the code."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        names: Sequence[str] = (),
        origins: Iterable[str] = (),
        keyed: bool = False,
        refused: Callable[[str], None],
    ) -> None:
        self.app, self.bound, self.origins = app, Host.from_setting(host), frozenset(origins)
        # With keys, host names protect nothing, because no page has a key.
        self.names = names or ((ANY,) if keyed else ())
        self.refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        if scope["path"] not in UNCHECKED_PATHS:
            try:
                self._check(scope)
            except ApiError as error:
                self.refused(error.code)
                return await refusal(scope["path"], error)(scope, receive, send)
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raises ApiError `forbidden`."""
        headers = Headers(scope=scope)
        text = headers.get("host", "")
        host = Host.parse(text)
        if host is None or not self._answers_to(host):
            raise ApiError(
                "forbidden",
                f"this server does not answer to the name {text[:200]!r}; if it should, add it to "
                "`allowed_hosts`",
            )
        origin = headers.get("origin")
        if not self._may_call(headers, origin, host, scope.get("method")):
            pages = repr(origin[:200]) if origin else "another origin"
            raise ApiError(
                "forbidden",
                f"pages of {pages} may not call this server; if they should, add the origin to "
                "`allowed_origins`",
            )

    def _answers_to(self, host: Host) -> bool:
        """Addresses cannot be rebound: a page that calls an address was loaded from it. They are answered
        if the server listens beyond loopback."""
        bound = self.bound
        if host.loopback or (bound is not None and host.name == bound.name):
            return True
        beyond_loopback = bound is not None and not bound.loopback
        return (beyond_loopback and host.is_address) or any(
            matches(host.name, pattern) for pattern in self.names
        )

    def _may_call(
        self, headers: Headers, origin: str | None, host: Host, method: str | None
    ) -> bool:
        if origin is not None and (origin in self.origins or ANY in self.origins):
            return True
        site = headers.get("sec-fetch-site")
        if site is None:  # not a browser, or a page over plain HTTP
            return origin is None or same_origin(origin, host)
        if site in ("same-origin", "none"):
            return True
        # The user followed a link on another site, which cannot read the answer.
        return (
            method in ("GET", "HEAD")
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )


def _checked_host(name: str) -> str:
    wildcard = "*." if name.startswith("*.") else ""
    host = Host.from_setting(name.removeprefix(wildcard))
    if host is None or host.port is not None or ANY in host.name:
        raise ValueError(
            f"{name!r} is not a host: give a name without a port, `*.example.com`, or `*`"
        )
    return wildcard + host.name
