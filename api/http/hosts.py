"""Hosts and origins as values: parsing, comparing and checking them.

    host = Host.parse("[::1]:8000")              # from a Host header
    same_origin("http://localhost:8000", host)   # from an Origin header

Does not know requests or settings; `api.http.origins` decides with these values which requests may pass.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

ANY = "*"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::([0-9]{0,5}))?")
_ORIGIN = re.compile(r"(https?)://([^\s/?#@]+)")
_PORTS = {"http": 80, "https": 443}


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


def same_origin(origin: str, host: Host) -> bool:
    """Whether an Origin header names this host. The scheme is not compared: TLS may end at a proxy."""
    match = _ORIGIN.fullmatch(origin.strip().lower())
    other = Host.parse(match[2]) if match else None
    if match is None or other is None:
        return False
    default = _PORTS[match[1]]
    return (other.name, other.port or default) == (host.name, host.port or default)


def matches(name: str, pattern: str) -> bool:
    """Whether a host name matches `*`, `*.domain` or a plain name."""
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return pattern in (ANY, name)


def checked_hosts(names: Iterable[str]) -> tuple[str, ...]:
    """The setting `allowed_hosts`, normalised. Raises ValueError for an entry that is not a host."""
    return tuple(name if name == ANY else _checked_host(name) for name in names)


def _checked_host(name: str) -> str:
    wildcard = "*." if name.startswith("*.") else ""
    host = Host.from_setting(name.removeprefix(wildcard))
    if host is None or host.port is not None or ANY in host.name:
        raise ValueError(
            f"{name!r} is not a host: give a name without a port, `*.example.com`, or `*`"
        )
    return wildcard + host.name


def checked_origins(origins: Iterable[str]) -> tuple[str, ...]:
    """The setting `allowed_origins`, as browsers write it. Raises ValueError for an entry that is not
    an origin."""
    checked = tuple(origin if origin == ANY else origin.lower() for origin in origins)
    for origin in checked:
        match = _ORIGIN.fullmatch(origin)
        if origin != ANY and (match is None or Host.parse(match[2]) is None):
            raise ValueError(f"{origin!r} is not an origin such as https://app.example.com")
    return checked
