"""What routes ask for: the settings, the serving, and who is calling."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.errors import ApiError
from api.keys import Keyring
from api.serving import Serving
from api.settings import Settings

ANYBODY = ""
"""The caller's name where no keys are set."""


def settings(request: Request) -> Settings:
    found = request.app.state.settings
    assert isinstance(found, Settings)
    return found


def serving(request: Request) -> Serving:
    found = request.app.state.serving
    assert isinstance(found, Serving)
    return found


def caller(request: Request) -> str:
    """The name of the key that the request carries. Raises `invalid_api_key`.

    A dependency, so it runs before the body is read: without a key nobody fills our disk.
    """
    keyring: Keyring = request.app.state.keyring
    if not keyring:
        return ANYBODY
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    owner = keyring.owner(key.strip()) if scheme.lower() == "bearer" else None
    if owner is None:
        raise ApiError("invalid_api_key", "give an API key: `Authorization: Bearer <key>`")
    return owner


Configured = Annotated[Settings, Depends(settings)]
Served = Annotated[Serving, Depends(serving)]
Caller = Annotated[str, Depends(caller)]
