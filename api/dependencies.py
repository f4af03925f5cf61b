"""What routes ask for: the settings, the serving, and who is calling."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated

from fastapi import Depends, Request

from .access.keys import Keyring, Scope
from .errors import ApiError
from .settings import Settings, loopback
from .speech.serving import Serving

ANYBODY = ""
"""The caller's name where no keys are set."""

NEEDS: Mapping[str, Scope | None] = MappingProxyType(
    {
        "audio": "audio",
        "endpoints": "audio",
        "text": "text",
        "jobs": "jobs",
        "operations": "metrics",
        "models": None,  # any key will do
        "docs": None,
    }
)
"""What a key needs for a route, by the route's tag."""


def settings(request: Request) -> Settings:
    found = request.app.state.settings
    assert isinstance(found, Settings)
    return found


def serving(request: Request) -> Serving:
    found = request.app.state.serving
    assert isinstance(found, Serving)
    return found


def caller(request: Request) -> str:
    """The name of the key that the request carries. Raises `invalid_api_key` where there is none, or
    none any more, `forbidden` where the key is not for this route.

    A dependency, so it runs before the body is read: without a key nobody fills our disk.
    """
    keyring: Keyring = request.app.state.keyring
    needed = NEEDS[request.scope["route"].tags[0]]
    if not keyring:
        if needed == "metrics" and not _from_here(request):
            raise ApiError("forbidden", "metrics are for this machine, or for who has a key")
        return ANYBODY
    owner = keyring.owner(_bearer(request) or "")
    if owner is None or keyring.rights[owner].expired(datetime.now(UTC)):
        raise ApiError("invalid_api_key", "give an API key: `Authorization: Bearer <key>`")
    if needed is not None and needed not in keyring.rights[owner].scopes:
        raise ApiError("forbidden", f"this key is not for {needed}")
    return owner


def reader(request: Request) -> str:
    """The same for what people read in a browser, where the key may be the password of HTTP Basic. Other
    routes take none: browsers send it by themselves, whoever has caused the request."""
    keyring: Keyring = request.app.state.keyring
    if not keyring:
        return ANYBODY
    owner = keyring.owner(_bearer(request) or _password(request) or "")
    if owner is None or keyring.rights[owner].expired(datetime.now(UTC)):
        text = "give an API key: `Authorization: Bearer <key>`, or as the password for any name"
        challenge = {"WWW-Authenticate": 'Basic realm="forescribe", charset="UTF-8", Bearer'}
        raise ApiError("invalid_api_key", text, more=challenge)
    return owner


def _bearer(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _password(request: Request) -> str | None:
    scheme, _, told = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(told.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _from_here(request: Request) -> bool:
    """Whether it comes from this machine, and not through a proxy on it; always, where the service
    listens to nobody else."""
    if not request.app.state.settings.open_to_all:
        return True
    host = request.client.host if request.client is not None else ""
    return loopback(host) and not {"forwarded", "x-forwarded-for"} & set(request.headers)


Configured = Annotated[Settings, Depends(settings)]
Served = Annotated[Serving, Depends(serving)]
Caller = Annotated[str, Depends(caller)]
