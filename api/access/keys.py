"""API keys: several, by name, stored as hashes, each with its rights.

    forescribe key team        prints a new key once, and the line for the settings

    [api_keys]
    team = "<hash>"                                        # all scopes, the server's limits
    [api_keys.press]                                       # or with separate rights
    hashes = ["<hash>", "<the next one, while it changes>"]
    scopes = ["audio"]                                     # audio, text, jobs, metrics
    expires = 2027-01-31
    max_requests = 4                                       # in progress at a time

A key is 256 random bits, so a single SHA-256 suffices: it cannot be guessed. Does not know HTTP.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ..wording import Frozen

PREFIX = "fs-"
"""Lets people and scanners recognise a leaked key."""

Scope = Literal["audio", "text", "jobs", "metrics"]
SCOPES: tuple[Scope, ...] = ("audio", "text", "jobs", "metrics")

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Rights(Frozen):
    """What a key permits; None means that the key has no separate limit. In the settings a plain hash
    stands for a key with all scopes and no limits.

    Raises ValueError for a hash that is not SHA-256 in hex.
    """

    hashes: Annotated[tuple[str, ...], Field(min_length=1)]  # several while one replaces another
    scopes: tuple[Scope, ...] = SCOPES
    expires: datetime | date | None = None  # a date: the end of that day, UTC
    max_requests: Count | None = None  # in progress at a time

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"hashes": (given,)}
        if isinstance(given, Mapping) and "hash" in given and "hashes" not in given:
            return {"hashes": (given["hash"],), **{k: v for k, v in given.items() if k != "hash"}}
        return given

    @field_validator("expires", mode="before")
    @classmethod
    def _day(cls, given: Any) -> Any:
        """Parse a day that is given as text, as in the environment."""
        return date.fromisoformat(given) if isinstance(given, str) and len(given) == 10 else given

    @field_validator("hashes")
    @classmethod
    def _digests(cls, hashes: tuple[str, ...]) -> tuple[str, ...]:
        for value in hashes:
            if not _DIGEST.fullmatch(value.lower()):
                raise ValueError("not a SHA-256 in hex; create it with `forescribe key`")
        return tuple(value.lower() for value in hashes)

    def expired(self, now: datetime) -> bool:
        """Whether the key has expired at `now`, which must be timezone-aware."""
        if self.expires is None:
            return False
        if not isinstance(self.expires, datetime):
            return now.astimezone(UTC).date() > self.expires
        end = self.expires if self.expires.tzinfo else self.expires.replace(tzinfo=UTC)
        return now >= end


class Keyring:
    """Finds the owner of a key."""

    def __init__(self, rights: Mapping[str, Rights]) -> None:
        self.rights = dict(rights)
        self._digests = [
            (bytes.fromhex(value), name)
            for name, rights in self.rights.items()
            for value in rights.hashes
        ]

    def owner(self, key: str) -> str | None:
        """The name of a key; None if it is unknown or expired. Compares with every digest in constant time,
        so that the time reveals neither whether a key is known nor its position."""
        presented, owner = sha256(key.encode(errors="surrogatepass")).digest(), None
        for digest, name in self._digests:
            if hmac.compare_digest(digest, presented):
                owner = name
        return owner if owner is not None and self.in_force(owner) else None

    def in_force(self, owner: str) -> bool:
        """Whether there is a key of this name that has not expired."""
        rights = self.rights.get(owner)
        return rights is not None and not rights.expired(datetime.now(UTC))


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """The hash that the settings hold instead of the key."""
    return sha256(key.encode()).hexdigest()
