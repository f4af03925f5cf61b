"""Dependencies of the routes: the settings, the speech serving, and the caller."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from .access.keys import Keyring, Scope
from .access.limits import Client, Reservation, network
from .errors import ApiError
from .settings import Settings, loopback
from .speech.serving import Serving

ANONYMOUS = ""
"""The caller's name if no keys are configured."""

NEEDS: Mapping[str, Scope | None] = MappingProxyType(
    {
        "audio": "audio",
        "endpoints": "audio",
        "realtime": "audio",
        "text": "text",
        "jobs": "jobs",
        "files": "jobs",
        "batches": "jobs",
        "operations": "metrics",
        "models": None,  # any key
        "docs": None,
    }
)
"""The scope that a key needs for a route, by the route's tag."""


T = TypeVar("T")


def part(name: str, kind: type[T]) -> Callable[[Request], T]:
    """A dependency: what the application has under this name."""

    def found(request: Request) -> T:
        value = getattr(request.app.state, name)
        assert isinstance(value, kind)
        return value

    return found


def caller(request: Request) -> str:
    """The name of the key that the request carries.

    A dependency, so it runs before the body is read: a client without a key cannot fill the disk. Raises
    ApiError `invalid_api_key` if the key is missing, unknown or expired, `forbidden` if it lacks the scope.
    """
    keyring: Keyring = request.app.state.keyring
    needed = NEEDS[request.scope["route"].tags[0]]
    if not keyring.rights:
        if needed == "metrics" and not _is_local(request):
            raise ApiError("forbidden", "metrics are for this machine, or for clients with a key")
        return ANONYMOUS
    owner = key_owner(keyring, bearer(request))
    if owner is None:
        raise ApiError("invalid_api_key", "give an API key: `Authorization: Bearer <key>`")
    if needed is not None:
        check_scope(request, owner, needed)
    request.state.owner = owner
    return owner


def check_scope(connection: HTTPConnection, owner: str, needed: Scope) -> None:
    """Raises ApiError `forbidden` for a key without this right."""
    keyring: Keyring = connection.app.state.keyring
    if keyring.rights and needed not in keyring.rights[owner].scopes:
        raise ApiError("forbidden", f"this key is not for {needed}")


async def client(connection: HTTPConnection, caller: Annotated[str, Depends(caller)]) -> Client:
    """Who counts against limits: the key, or without keys the address, as a trusted proxy tells it."""
    host = connection.client.host if connection.client is not None else ""
    return Client(caller) if caller else Client(ANONYMOUS, network(host))


def reserve(request: Request, client: Client, *, resumable: bool = False) -> Reservation:
    """Reserve capacity for a request whose body has not been read. Raises as `Admission.reserve` does."""
    serving: Serving = request.app.state.serving
    body = request.scope["state"]["body"]
    return serving.admission.reserve(client, body, resumable=resumable)


def browser_caller(request: Request) -> str:
    """As `caller`, for pages that are read in a browser: the key may be the password of HTTP Basic.

    Other routes do not accept it, because browsers send it with requests that other pages have caused.
    """
    keyring: Keyring = request.app.state.keyring
    if not keyring.rights:
        return ANONYMOUS
    owner = key_owner(keyring, bearer(request) or _password(request))
    if owner is None:
        text = "give an API key: `Authorization: Bearer <key>`, or as the password for any name"
        challenge = {"WWW-Authenticate": 'Basic realm="forescribe", charset="UTF-8", Bearer'}
        raise ApiError("invalid_api_key", text, more=challenge)
    return owner


def key_owner(keyring: Keyring, key: str | None) -> str | None:
    """The name of a key; None if it is missing, unknown or expired."""
    owner = keyring.owner(key or "")
    return owner if owner is not None and in_force(keyring, owner) else None


def in_force(keyring: Keyring, owner: str) -> bool:
    """Whether there is a key of this name that has not expired."""
    rights = keyring.rights.get(owner)
    return rights is not None and not rights.expired(datetime.now(UTC))


def bearer(connection: HTTPConnection) -> str | None:
    """The key in the header, of a request or a socket."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _password(request: Request) -> str | None:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _is_local(request: Request) -> bool:
    """Whether the request comes from this machine, and not through a proxy on it. Always true if the service
    listens only to this machine."""
    if not request.app.state.settings.open_to_all:
        return True
    host = request.client.host if request.client is not None else ""
    return loopback(host) and not {"forwarded", "x-forwarded-for"} & set(request.headers)


SettingsDep = Annotated[Settings, Depends(part("settings", Settings))]
ServingDep = Annotated[Serving, Depends(part("serving", Serving))]
Caller = Annotated[str, Depends(caller)]
ClientDep = Annotated[Client, Depends(client)]
