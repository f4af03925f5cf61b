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
import math
import re
import socket
import ssl
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

PORTS = (80, 443)

_LABEL = re.compile(r"[a-z0-9_-]{1,63}")

GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that has been given to anybody: NAT64, segment routing (5f00::/16), discard and local
addresses are outside."""

HIDDEN = tuple(
    map(
        ipaddress.ip_network,
        (
            "2001::/23",  # the IETF's own: Teredo, benchmarks, ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
            "192.0.0.0/24",  # the IETF's own
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.175.48.0/24",  # AS112
        ),
    )
)
"""Networks that `is_global` lets through, in one version of Python or another, and that lead elsewhere."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]


class Refused(Exception):
    """A URL or an address that is not for us to call. Its text is for whoever gave the URL."""


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises ValueError for a text that is none."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def check_url(url: str, allowed: Sequence[Network] = ()) -> str:
    """The URL, if it has the form of one that may be called. What it says of the address is judged here,
    what its name means where it is called. Raises Refused."""
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
    _check_host(parts.hostname, port or PORTS[parts.scheme == "https"], allowed)
    return url


def _check_host(host: str, port: int, allowed: Sequence[Network]) -> None:
    """Raises Refused."""
    name = unicodedata.normalize("NFKC", host).replace("\u3002", ".").removesuffix(".").lower()
    if "%" in name:
        raise Refused("a callback's host has no zone and nothing escaped")
    if name == "localhost" or name.endswith(".localhost"):
        raise Refused("localhost is not called")
    address = literal(name)
    if address is None and not _resolvable(name):
        raise Refused("a callback's host is a name or an address, and this is neither")
    if address is not None and not _may(address, port, allowed):
        raise Refused(
            f"{name} is not an address that this server calls: it is private, reserved or this machine's, "
            f"or the port is not one of {', '.join(map(str, PORTS))}"
        )
    if address is None and port not in PORTS and not allowed:
        raise Refused(f"port {port} is not called; ports are {', '.join(map(str, PORTS))}")


def _resolvable(name: str) -> bool:
    """Whether there can be such a name: labels of 1 to 63 characters, 253 in all, once written in ASCII."""
    try:
        written = httpx.URL(scheme="https", host=name).raw_host.decode()
    except (httpx.InvalidURL, UnicodeError):
        return False
    return len(written) <= 253 and all(_LABEL.fullmatch(label) for label in written.split("."))


def literal(host: str) -> Address | None:
    """The address that a host is, in any spelling that resolvers take (`127.1`, `0x7f000001`, `0177.0.0.1`,
    `2130706433`); None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None


def passes(address: str) -> bool:
    """Whether anybody on the internet could mean the same machine by it."""
    try:
        return _public(ipaddress.ip_address(address))
    except ValueError:
        return False


def _public(address: Address) -> bool:
    found = _plain(address)
    hidden = any(found in network for network in HIDDEN if network.version == found.version)
    given = found.version == 4 or found in GLOBAL_UNICAST
    return found.is_global and given and not found.is_multicast and not hidden


def _may(address: Address, port: int, allowed: Sequence[Network]) -> bool:
    found = _plain(address)
    if any(found in network for network in allowed if network.version == found.version):
        return True
    return port in PORTS and _public(found)


def _plain(address: Address) -> Address:
    """IPv4 in IPv6's clothes is IPv4."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def resolved(host: str, port: int) -> list[str]:
    """All addresses of a name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Guarded(httpcore.NetworkBackend):
    """Connects to addresses that were judged. `allowed` are networks inside the house that may be called
    nevertheless, at any port."""

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        resolve: Resolve = resolved,
        end_s: float = math.inf,
    ) -> None:
        """`end_s`, by `time.monotonic`: connections may be used until then."""
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
        # One that is refused refuses the name: else the order of the answers decided.
        found = [ipaddress.ip_address(address.split("%")[0]) for address in addresses]
        if not found or not all(_may(address, port, self.allowed) for address in found):
            cause = Refused("the address is not one that this server calls")
            raise httpcore.ConnectError(str(cause)) from cause
        made = self._backend.connect_tcp(addresses[0], port, timeout, local_address, socket_options)
        return Ending(made, self.end_s)

    def connect_unix_socket(self, *args: Any, **named: Any) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("sockets of this machine are not called")


class Ending(httpcore.NetworkStream):
    """A connection with an end. httpx limits each read by itself: a receiver that sends a byte of its
    headers now and then would never be waited for too long."""

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
        return Ending(self._stream.start_tls(ssl_context, server_hostname, left_s), self._end_s)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def _left(self, late: type[Exception], timeout: float | None) -> float | None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise late("it took too long in all")
        found = left_s if timeout is None else min(timeout, left_s)
        return None if math.isinf(found) else found


def client(
    *, timeout_s: float, allowed: Sequence[Network] = (), resolve: Resolve = resolved
) -> httpx.Client:
    """An HTTP client that goes nowhere else. Made for one request: `timeout_s` is for all of it, the
    resolver's time apart."""
    transport = httpx.HTTPTransport(trust_env=False)
    # httpx has no public way to hand its pool a backend; tests/api/access/test_outbound.py watches over this.
    transport._pool = httpcore.ConnectionPool(
        ssl_context=httpx.create_ssl_context(trust_env=False),
        max_connections=1,
        network_backend=Guarded(allowed, resolve, time.monotonic() + timeout_s),
    )
    return httpx.Client(
        transport=transport, timeout=timeout_s, follow_redirects=False, trust_env=False
    )
