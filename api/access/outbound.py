"""HTTP calls to addresses that a client has given: which may be called, and the calls.

Public addresses may be called, and networks that the settings allow. The check is made again where the
connection is made: a name is resolved once, every address is checked, and the connection goes to the checked
address, so that a name which resolves differently a moment later (DNS rebinding) gains nothing. TLS still
verifies the name. There are no redirects, no proxies from the environment, and no Unix sockets.
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

PORTS = {"http": 80, "https": 443}
"""Those that may be called on public addresses, by scheme."""

GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All IPv6 addresses that are assigned globally; NAT64, segment routing (5f00::/16), discard and local
addresses are outside."""

NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarks, ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
            "192.0.0.0/24",  # IETF protocol assignments
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.175.48.0/24",  # AS112
        ),
    )
)
"""Networks that `is_global` accepts in some versions of Python, although they are not public."""

_LABEL = re.compile(r"[a-z0-9_-]{1,63}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]


class Refused(Exception):
    """A URL or an address that may not be called. The message is for the client that gave the URL."""


def check_url(url: str, allowed: Sequence[Network] = ()) -> str:
    """The URL, if it may be called. An address in it is checked here, a name only when it is resolved.
    Raises Refused."""
    if any(c.isspace() or not c.isprintable() for c in url):  # `urlsplit` drops some of them
        raise Refused("the URL must have no spaces, line breaks or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(f"not a URL ({error})") from error
    named = parts.username is not None or parts.password is not None
    if parts.scheme not in PORTS or not parts.hostname or named or port == 0:
        raise Refused("the URL must have http or https, a host, and no user name or password")
    _check_host(parts.hostname, port or PORTS[parts.scheme], allowed)
    return url


def may_call(address: Address, port: int, allowed: Sequence[Network]) -> bool:
    """Whether an address may be called: an allowed one at any port, a public one at `PORTS`."""
    plain = _unmapped(address)
    if any(plain in network for network in allowed if network.version == plain.version):
        return True
    return port in PORTS.values() and public(plain)


def public(address: Address) -> bool:
    """Whether an address is the same machine for everyone on the internet."""
    plain = _unmapped(address)
    excluded = any(plain in network for network in NOT_PUBLIC if network.version == plain.version)
    assigned = plain.version == 4 or plain in GLOBAL_UNICAST
    return plain.is_global and assigned and not plain.is_multicast and not excluded


def literal(host: str) -> Address | None:
    """The address that a host denotes, in any spelling of resolvers (`127.1`, `0x7f000001`, `0177.0.0.1`,
    `2130706433`); None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeEncodeError):
        return None


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
        # The first that answers, in the resolver's order. One that is silent leaves the others their share.
        end_s = min(self.end_s, math.inf if timeout is None else time.monotonic() + timeout)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            share_s = _time_left(end_s, httpcore.ConnectTimeout) / left
            limit_s = None if math.isinf(share_s) else share_s
            try:
                stream = self._backend.connect_tcp(
                    address, port, limit_s, local_address, socket_options
                )
                return DeadlineStream(stream, self.end_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1:
                    raise
        raise AssertionError("an address at least, see above")


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
        left_s = _time_left(self._end_s, timeout_error)
        limit_s = left_s if timeout is None else min(timeout, left_s)
        return None if math.isinf(limit_s) else limit_s


def _time_left(end_s: float, timeout_error: type[Exception]) -> float:
    """Seconds. Raises `timeout_error` where there are none."""
    if (left_s := end_s - time.monotonic()) <= 0:
        raise timeout_error("the whole request took too long")
    return left_s


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


def _check_host(host: str, port: int, allowed: Sequence[Network]) -> None:
    """Raises Refused."""
    name = unicodedata.normalize("NFKC", host).replace("\u3002", ".").removesuffix(".").lower()
    address, local = literal(name), f".{name}".endswith(".localhost")
    if local or "%" in name or (address is None and not _resolvable(name)):
        raise Refused("the host must be an address, or the name of another machine")
    if address is None:
        may = port in PORTS.values() or bool(allowed)
    else:
        may = may_call(address, port, allowed)
    if not may:
        raise Refused(
            f"{name} may not be called: its address is private, reserved or this machine's, "
            f"or the port is not one of {', '.join(map(str, PORTS.values()))}"
        )


def _resolvable(name: str) -> bool:
    """Whether the name is valid: labels of 1 to 63 characters, 253 in all, once encoded in ASCII."""
    try:
        encoded = httpx.URL(scheme="https", host=name).raw_host.decode()
    except (httpx.InvalidURL, UnicodeError):
        return False
    return len(encoded) <= 253 and all(_LABEL.fullmatch(label) for label in encoded.split("."))


def _unmapped(address: Address) -> Address:
    """The IPv4 address of an IPv4-mapped IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
