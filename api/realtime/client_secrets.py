"""Client secrets: keys for minutes, which a server gives to the browsers of its users.

A secret states its owner, its end and the configuration, packed and signed: nothing has to be stored, and
every worker and replica with the same settings reads what another has made. Whoever has it can read it, and
cannot change it. It opens sessions until its end, as long as the key of its owner is valid, and nothing else.
Does not know HTTP.
"""

from __future__ import annotations

import base64
import hmac
import json
import zlib
from typing import Annotated, Any, Literal

from pydantic import Field

from ..errors import ApiError, invalid
from ..settings import Settings
from ..wording import Frozen
from .session import SessionConfig

PREFIX = "ek_"

DEFAULT_S, MIN_S, MAX_S = 600, 10, 7200
"""OpenAI's bounds."""

MAX_PLAIN = 1 << 20
"""Bytes that a secret is unpacked to."""

MAX_LENGTH = 8192
"""Characters: a browser sends the value in a header."""


class SecretLifetime(Frozen):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=MIN_S, le=MAX_S)] = DEFAULT_S


class SecretForm(Frozen):
    """`/v1/realtime/client_secrets`."""

    expires_after: SecretLifetime = SecretLifetime()
    session: dict[str, Any] = Field(default_factory=dict)


class ClientSecrets:
    """The processes that share the `key`, which signs, accept each other's secrets."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, settings: Settings) -> ClientSecrets:
        """With a key of what only the operator has: the hashes of all API keys, and the address of the
        database with its password. Without API keys a secret keeps nobody out, and any key will do."""
        hashes = sorted(each for rights in settings.api_keys.values() for each in rights.hashes)
        known = json.dumps([hashes, settings.database_url]).encode()
        return cls(hmac.digest(known, b"client secrets", "sha256"))

    def new(
        self, owner: str, config: SessionConfig, *, seconds: int, now: float
    ) -> tuple[str, int]:
        """A secret for `seconds` from `now` (Unix seconds), and when it ends. Raises ApiError `invalid_value`
        for a configuration that does not fit into one."""
        expires_at = int(now) + seconds
        state = config.model_dump(mode="json", exclude_none=True)
        packed = zlib.compress(json.dumps([owner, expires_at, state]).encode(), 9)
        value = PREFIX + _text(self._signature(packed) + packed)
        if len(value) > MAX_LENGTH:
            raise invalid(
                "session",
                "does not fit into a client secret; let the browser send prompt and keywords in a "
                "session.update",
            )
        return value, expires_at

    def read(self, value: str, now: float) -> tuple[str, SessionConfig]:
        """The owner of a secret, and the configuration. Raises ApiError `invalid_api_key`."""
        refused = ApiError("invalid_api_key", "the client secret is wrong or has expired")
        if len(value) > MAX_LENGTH:
            raise refused
        try:
            owner, expires_at, state = self._opened(value.removeprefix(PREFIX))
        except (ValueError, TypeError, zlib.error):  # where there are no keys, anybody may sign
            raise refused from None
        if now >= expires_at:
            raise refused
        return owner, SessionConfig.model_validate(state)

    def _opened(self, text: str) -> Any:
        """Raises ValueError, zlib.error for what this key has not signed."""
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        size = len(self._signature(b""))
        signature, packed = data[:size], data[size:]
        if not hmac.compare_digest(signature, self._signature(packed)) or _text(data) != text:
            raise ValueError("not signed by this server")
        return json.loads(zlib.decompressobj().decompress(packed, MAX_PLAIN))

    def _signature(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, packed, "sha256")


def _text(data: bytes) -> str:
    """In the characters that a header's token may have."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
