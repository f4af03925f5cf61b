"""Clients: who counts against a limit. A key by its name, or an address where there are no keys.

    Client("team")                       # the key `team`
    Client("", network("203.0.113.9"))   # nobody's key

Does not know HTTP or limits.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

IPV6_BITS = 64
"""A line of IPv6 gives its owner that many bits of addresses, so all of them are one client."""


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
