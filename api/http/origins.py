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

from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..access.addresses import ANY, Host, matches, same_origin
from ..errors import ApiError, refusal
from ..metrics import Metrics
from ..settings import Settings

UNCHECKED_PATHS = frozenset({"/health", "/ready"})

HEADERS = {"Cross-Origin-Resource-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
"""On every answer: pages of other origins cannot embed it, and browsers do not guess its type."""

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


@dataclass(frozen=True)
class HostNames:
    """The names that a server answers to. Each pattern is a name, `*.domain`, or `*` for all."""

    bound: Host | None
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> HostNames:
        """The names from the settings.

        With keys, host names protect nothing, because no page has a key: all names are answered unless
        some are listed.
        """
        if settings.api_keys and not settings.allowed_hosts:
            return cls(None, (ANY,))
        return cls(Host.from_setting(settings.host), settings.allowed_hosts)

    def answer(self, host: Host) -> bool:
        """Whether requests for this host are answered.

        Addresses cannot be rebound: a page that calls an address was loaded from it. They are answered
        if the server listens beyond loopback.
        """
        if host.loopback or (self.bound is not None and host.name == self.bound.name):
            return True
        beyond_loopback = self.bound is not None and not self.bound.loopback
        return (beyond_loopback and host.address is not None) or any(
            matches(host.name, pattern) for pattern in self.patterns
        )


class OriginGuard:
    """ASGI middleware that refuses requests for unknown hosts and from other origins' pages."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics
        self.names, self.origins = HostNames.of(settings), frozenset(settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        if scope["path"] not in UNCHECKED_PATHS:
            try:
                self._check(scope)
            except ApiError as error:
                return await self._refuse(error, scope, receive, send)
        if scope["type"] == "websocket":
            return await self.app(scope, receive, send)
        await self.app(scope, receive, _with_headers(send))

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.refused(error.code)
        answers = scope["type"] == "http" or "websocket.http.response" in scope.get(
            "extensions", {}
        )
        if not answers:
            await send({"type": "websocket.close", "code": 1008, "reason": "forbidden"})
        else:
            await refusal(scope["path"], error)(scope, receive, _with_headers(send))

    def _check(self, scope: Scope) -> None:
        """Raises ApiError `forbidden`."""
        headers = Headers(scope=scope)
        text = headers.get("host", "")
        host = Host.parse(text)
        if host is None or not self.names.answer(host):
            raise ApiError("forbidden", _unknown_host(text))
        origin = headers.get("origin")
        if not self._may_call(headers, origin, host, scope.get("method")):
            pages = repr(origin[:200]) if origin else "another origin"
            raise ApiError(
                "forbidden",
                f"pages of {pages} may not call this server; if they should, add the origin to "
                "`allowed_origins`",
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


def _unknown_host(host: str) -> str:
    if not host:
        return "the request has no valid Host header: send one"
    return (
        f"this server does not answer to the name {host[:200]!r}; if it should, add it to "
        "`allowed_hosts`"
    )


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
