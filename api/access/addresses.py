"""Addresses and host names: what clients may have this server call, and the names that it answers to.

    check_url("https://example.com/hook", allowed)     # raises Refused
    host = Host.parse("[::1]:8000")                    # from a Host header
    same_origin("http://localhost:8000", host)         # from an Origin header

Public addresses may be called, and networks that the settings allow. Knows URLs, addresses and origins as
values: names are resolved and connections made by `api.access.outbound`, and which requests may pass is
decided by `api.http.origins`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

PORTS = {"http": 80, "https": 443}
"""Those that may be called on public addresses, by scheme."""

MAX_LENGTH = 2048
"""Characters of a URL, which is stored with its job."""

ANY = "*"
"""Every host, or every origin, in the settings."""

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

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(https?)://([^\s/?#@]+)")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """A URL or an address that may not be called. The message is for the client that gave the URL."""


def check_url(url: str, allowed: Sequence[Network] = ()) -> str:
    """The URL, if it may be called. An address in it is checked here, a name only when it is resolved.
    Raises Refused."""
    if len(url) > MAX_LENGTH:
        raise Refused(f"the URL is longer than {MAX_LENGTH} characters")
    if any(c.isspace() or not c.isprintable() for c in url):  # `urlsplit` drops some of them
        raise Refused("the URL must have no spaces, line breaks or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(f"not a URL ({error})") from error
    if parts.scheme not in ("http", "https"):
        raise Refused("the URL must begin with http:// or https://")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise Refused("the URL needs a host, and must have no user name or password")
    if port == 0:
        raise Refused("port 0 cannot be called")
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


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks. Raises ValueError."""
    return tuple(ipaddress.ip_network(text) for text in texts)


@dataclass(frozen=True)
class Host:
    """A host name, or an address without brackets, and the port if one is given."""

    name: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Host | None:
        """Parse a Host header or the part of a URL after `://`; None if the text is not a host."""
        match = _HOST.fullmatch(text.strip().lower())
        if match is None:
            return None
        name = match[1].strip("[]").removesuffix(".")
        with suppress(ValueError):
            name = str(ipaddress.ip_address(name))  # an IPv6 address has several spellings
        return cls(name, int(match[2]) if match[2] else None)

    @classmethod
    def from_setting(cls, host: str) -> Host | None:
        """Parse a host from the settings, where an IPv6 address needs no brackets."""
        return cls.parse(f"[{host}]" if host.count(":") > 1 and host[0] != "[" else host)

    @property
    def address(self) -> Address | None:
        try:
            return ipaddress.ip_address(self.name)
        except ValueError:
            return None

    @property
    def loopback(self) -> bool:
        if self.address is None:
            return self.name == "localhost"
        return self.address.is_loopback


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


def _check_host(host: str, port: int, allowed: Sequence[Network]) -> None:
    """Raises Refused."""
    name = unicodedata.normalize("NFKC", host).replace("\u3002", ".").removesuffix(".").lower()
    if "%" in name:
        raise Refused("the host must have no zone and no escapes")
    if name == "localhost" or name.endswith(".localhost"):
        raise Refused("localhost may not be called")
    address = literal(name)
    if address is None and not _resolvable(name):
        raise Refused("the host must be a name or an address")
    if address is not None and not may_call(address, port, allowed):
        raise Refused(
            f"{name} may not be called: the address is private, reserved or this machine's, "
            f"or the port is not one of {', '.join(map(str, PORTS.values()))}"
        )
    if address is None and port not in PORTS.values() and not allowed:
        raise Refused(
            f"port {port} may not be called; allowed ports are {', '.join(map(str, PORTS.values()))}"
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


def _checked_host(name: str) -> str:
    wildcard = "*." if name.startswith("*.") else ""
    host = Host.from_setting(name.removeprefix(wildcard))
    if host is None or host.port is not None or ANY in host.name:
        raise ValueError(
            f"{name!r} is not a host: give a name without a port, `*.example.com`, or `*`"
        )
    return wildcard + host.name
