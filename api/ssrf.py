"""Calls to addresses that a client has given: only where anybody on the internet could go too.

    with client(timeout_s=20) as http:
        http.post(url, content=body)

The guard stands where the connection is made: a name is resolved once, every address is judged, and
the connection goes to the address that was judged, so that a name which means something else a moment later
(DNS rebinding) gains nothing. TLS still checks the name. No redirects, no proxies of the environment, no
sockets of this machine. Knows nothing of what is sent.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

PORTS = (80, 443)

HIDDEN = tuple(
    map(
        ipaddress.ip_network,
        (
            "64:ff9b::/96",  # NAT64
            "64:ff9b:1::/48",  # NAT64, local
            "2002::/16",  # 6to4
            "2001::/32",  # Teredo
            "192.88.99.0/24",  # 6to4 relays
            "fec0::/10",  # site-local
            "::/96",  # IPv4-compatible
        ),
    )
)
"""Networks that `is_global` lets through, and that lead elsewhere."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]


class Refused(Exception):
    """A URL or an address that is not for us to call. Its text is for whoever gave the URL."""


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises ValueError for a text that is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def check_url(url: str) -> str:
    """The URL, if it has the form of one that may be called. Raises Refused."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(f"no URL ({error})") from error
    if parts.scheme not in ("http", "https"):
        raise Refused("a callback's URL begins with http:// or https://")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise Refused("a callback's URL has a host, and neither name nor password before it")
    if port == 0:
        raise Refused("port 0 is none")
    return url


def passes(address: str) -> bool:
    """Whether anybody on the internet could mean the same machine by it."""
    try:
        found: Address = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    hidden = any(found in network for network in HIDDEN if network.version == found.version)
    return found.is_global and not found.is_multicast and not hidden


def resolved(host: str, port: int) -> list[str]:
    """All addresses of a name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Guarded(httpcore.NetworkBackend):
    """Connects to addresses that were judged. `allowed` are networks inside the house that may be called
    nevertheless, at any port."""

    def __init__(self, allowed: Sequence[Network] = (), resolve: Resolve = resolved) -> None:
        self.allowed, self.resolve = tuple(allowed), resolve
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
        # One that is refused refuses the name: else the order of the answers decided.
        if not addresses or not all(self._may(address, port) for address in addresses):
            cause = Refused("the address is not one that this server calls")
            raise httpcore.ConnectError(str(cause)) from cause
        return self._backend.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    def connect_unix_socket(self, *args: Any, **named: Any) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("sockets of this machine are not called")

    def _may(self, address: str, port: int) -> bool:
        found = ipaddress.ip_address(address.split("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found in network for network in self.allowed if network.version == found.version):
            return True
        return port in PORTS and passes(address)


def client(
    *, timeout_s: float, allowed: Sequence[Network] = (), resolve: Resolve = resolved
) -> httpx.Client:
    """An HTTP client that goes nowhere else."""
    transport = httpx.HTTPTransport(trust_env=False)
    # httpx has no public way to hand its pool a backend; tests/api/test_webhooks.py watches over this.
    transport._pool = httpcore.ConnectionPool(
        ssl_context=httpx.create_ssl_context(trust_env=False),
        max_connections=1,
        network_backend=Guarded(allowed, resolve),
    )
    return httpx.Client(
        transport=transport, timeout=timeout_s, follow_redirects=False, trust_env=False
    )
