"""HTTP calls to addresses that a client has given (webhooks).

    with client(timeout_s=20) as http:
        http.post(url, content=body)

The check is made where the connection is made: a name is resolved once, every address is checked, and the
connection goes to the checked address, so that a name which resolves differently a moment later (DNS
rebinding) gains nothing. TLS still verifies the name. There are no redirects, no proxies from the
environment, and no Unix sockets. Does not know what is sent.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore
import httpx

from .addresses import Network, Refused, may_call

Resolve = Callable[[str, int], Sequence[str]]


def resolve_name(host: str, port: int) -> list[str]:
    """All addresses of a name. Raises OSError."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))


class CheckedBackend(httpcore.NetworkBackend):
    """Connects only to addresses that may be called. `allowed` are private networks that may be called
    too, at any port."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        resolve: Resolve = resolve_name,
        end_s: float = math.inf,
    ) -> None:
        """`end_s`: when connections end, by `time.monotonic`."""
        self.allowed, self.resolve, self.end_s = tuple(allowed), resolve, end_s
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Raises httpcore.ConnectError, with Refused as its cause where an address may not be called."""
        try:
            addresses = self.resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError("the name cannot be resolved") from error
        # One refused address refuses the name, or else the order of the answers would decide.
        parsed = [ipaddress.ip_address(address.split("%")[0]) for address in addresses]
        if not parsed or not all(may_call(address, port, self.allowed) for address in parsed):
            cause = Refused("the address may not be called")
            raise httpcore.ConnectError(str(cause)) from cause
        stream = self._backend.connect_tcp(
            addresses[0], port, timeout, local_address, socket_options
        )
        return DeadlineStream(stream, self.end_s)

    def connect_unix_socket(self, *args: Any, **named: Any) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("Unix sockets may not be called")


class DeadlineStream(httpcore.NetworkStream):
    """A connection with a deadline. httpx limits each read separately, so a receiver that sends a byte of
    its headers now and then could hold the connection forever."""

    def __init__(self, stream: httpcore.NetworkStream, end_s: float) -> None:
        self._stream, self._end_s = stream, end_s

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._left(httpcore.ReadTimeout, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._left(httpcore.WriteTimeout, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left_s = self._left(httpcore.ConnectTimeout, timeout)
        return DeadlineStream(
            self._stream.start_tls(ssl_context, server_hostname, left_s), self._end_s
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left(self, timeout_error: type[Exception], timeout: float | None) -> float | None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise timeout_error("the whole request took too long")
        limit_s = left_s if timeout is None else min(timeout, left_s)
        return None if math.isinf(limit_s) else limit_s


def client(
    *, timeout_s: float, allowed: Sequence[Network] = (), resolve: Resolve = resolve_name
) -> httpx.Client:
    """An HTTP client for one request to a checked address. `timeout_s` limits the whole request except
    name resolution."""
    transport = httpx.HTTPTransport(trust_env=False)
    # httpx has no public way to set the backend of its pool; tests/api/access/test_outbound.py checks this.
    transport._pool = httpcore.ConnectionPool(
        ssl_context=httpx.create_ssl_context(trust_env=False),
        max_connections=1,
        network_backend=CheckedBackend(allowed, resolve, time.monotonic() + timeout_s),
    )
    return httpx.Client(
        transport=transport, timeout=timeout_s, follow_redirects=False, trust_env=False
    )
