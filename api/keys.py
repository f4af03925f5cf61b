"""API keys: several, by name, kept as hashes.

    forescribe key team        prints a new key once, and the line that lets it in

A key is 256 random bits, so one SHA-256 is hash enough: there is nothing to guess. Knows nothing of
HTTP.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256

PREFIX = "fs-"
"""So that people and scanners recognise a leaked key."""


class Keyring:
    """Who a key belongs to. `digests` maps names to SHA-256 in hex. Raises ValueError for what is
    no SHA-256."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        self._digests = {name: _bytes(name, digest) for name, digest in digests.items()}

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, key: str) -> str | None:
        """The name; None for a key that nobody has. Compares with every digest, in constant time."""
        presented, owner = sha256(key.encode()).digest(), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, presented):
                owner = name
        return owner


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """What settings hold instead of the key."""
    return sha256(key.encode()).hexdigest()


def _bytes(name: str, digest: str) -> bytes:
    try:
        value = bytes.fromhex(digest)
    except ValueError:
        value = b""
    if len(value) != sha256().digest_size:
        raise ValueError(
            f"the hash of key {name!r} is no SHA-256 in hex; make it with `forescribe key`"
        )
    return value
