"""Client secrets: keys for minutes, which a server gives to the browsers of its users.

    value, expires_at = ClientSecrets.of(settings).new("team", config, seconds=600, now=now)
    owner, config = secrets.read(value, now)        # of whom, and the configuration of its sessions

A secret states its owner, its end and the configuration, sealed (`api.realtime.seals`). It opens sessions
until its end, as long as the key of its owner is valid, and nothing else. Does not know HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ApiError
from ..settings import Settings
from ..wording import told
from .seals import Seal
from .session import SessionConfig

PREFIX = "ek_"

DEFAULT_S, MIN_S, MAX_S = 600, 10, 7200
"""OpenAI's bounds."""

MAX_LENGTH = 8192
"""Characters: a browser sends the value in a header."""


class SecretLifetime(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=MIN_S, le=MAX_S)] = DEFAULT_S


class SecretForm(BaseModel):
    """`/v1/realtime/client_secrets`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expires_after: SecretLifetime = SecretLifetime()
    session: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, body: dict[str, Any]) -> SecretForm:
        """Raises ApiError `invalid_value`."""
        given = {name: value for name, value in body.items() if value is not None}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            param, message = told(error.errors(), cls.model_fields)
            raise ApiError("invalid_value", f"{param}: {message}", param=param) from error


class ClientSecrets:
    """The processes that share the key of `seal` accept each other's secrets."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    @classmethod
    def of(cls, settings: Settings) -> ClientSecrets:
        """Without API keys a secret keeps nobody out, and any key will do."""
        return cls(Seal.of(settings, b"client secrets"))

    def new(
        self, owner: str, config: SessionConfig, *, seconds: int, now: float
    ) -> tuple[str, int]:
        """A secret for `seconds` from `now` (Unix seconds), and when it ends. Raises ApiError `invalid_value`
        for a configuration that does not fit into one."""
        expires_at = int(now) + seconds
        state = config.model_dump(mode="json", exclude_none=True)
        try:
            value = PREFIX + self._seal.close([owner, expires_at, state])
        except ValueError:
            value = ""
        if not 0 < len(value) <= MAX_LENGTH:
            raise ApiError(
                "invalid_value",
                "session: does not fit into a client secret; let the browser send prompt, keywords and "
                "voices in a session.update",
                param="session",
            )
        return value, expires_at

    def read(self, value: str, now: float) -> tuple[str, SessionConfig]:
        """The owner of a secret, and the configuration. Raises ApiError `invalid_api_key`."""
        refused = ApiError("invalid_api_key", "the client secret is wrong or has expired")
        if len(value) > MAX_LENGTH:
            raise refused
        try:
            owner, expires_at, state = self._seal.open(value.removeprefix(PREFIX))
        except ValueError:
            raise refused from None
        if now >= expires_at:
            raise refused
        return owner, SessionConfig.model_validate(state)
