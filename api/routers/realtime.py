"""`/v1/realtime`: OpenAI's Realtime transcription sessions, and secrets for the browsers that open them.

A socket is refused before the upgrade, with a status and OpenAI's error body: without a key, without
capacity, before the model is loaded. Browsers cannot send headers, so a key may come as a subprotocol:

    Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.KEY

It is never in the address, which is logged on its way, and never in the answer.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from pydantic import BaseModel

from ..dependencies import ANONYMOUS, Caller, ServingDep, SettingsDep, bearer, check_scope, client
from ..errors import ApiError, checked, invalid, unknown
from ..http.bodies import json_object
from ..http.openapi import json_body
from ..realtime.client_secrets import PREFIX as SECRET_PREFIX
from ..realtime.client_secrets import SecretForm
from ..realtime.connection import Connection, session_object
from ..realtime.session import SessionConfig, initial
from ..realtime.streams import Streams
from ..settings import Settings
from ..speech.forms import check_model

PATH = "/v1/realtime"

SUBPROTOCOL = "realtime"

KEY_SUBPROTOCOL = "openai-insecure-api-key."

MAX_SECRET_BYTES = 1 << 20
"""Of a request for a secret: the longest prompt, and then some."""

PARAMETERS = ("intent", "model")

router = APIRouter(prefix=PATH, tags=["realtime"])

socket_router = APIRouter(tags=["realtime"])
"""The sockets; they check keys themselves."""


class SecretObject(BaseModel):
    """OpenAI's answer."""

    value: str
    expires_at: int
    session: dict[str, Any]


@router.post("/client_secrets", openapi_extra=json_body(SecretForm))
async def client_secrets(
    request: Request, settings: SettingsDep, serving: ServingDep, caller: Caller
) -> SecretObject:
    """A key for minutes, which opens live sessions and nothing else."""
    body = await json_object(request, MAX_SECRET_BYTES)
    form = checked(SecretForm, {k: v for k, v in body.items() if v is not None})
    streams: Streams = request.app.state.streams
    config = initial(settings.model_name).updated(form.session)
    config.options(serving, settings)  # whether they can be served
    seconds = form.expires_after.seconds
    value, expires_at = streams.secrets.new(caller, config, seconds=seconds, now=time.time())
    session = session_object(f"sess_{secrets.token_hex(12)}", config, expires_at)
    return SecretObject(value=value, expires_at=expires_at, session=session)


@router.get("", include_in_schema=False)
async def not_upgraded() -> None:
    raise ApiError("invalid_value", f"{PATH} is a WebSocket: send `Upgrade: websocket`")


@socket_router.websocket(PATH)
async def realtime(websocket: WebSocket) -> None:
    streams: Streams = websocket.app.state.streams
    try:
        owner, config = _caller(websocket, streams)
        streams.serving.check()
        config = _asked(websocket, config, streams.settings)
        config.options(streams.serving, streams.settings)  # whether they can be served
        sender = await client(websocket, owner)
        with streams.place(sender) as place:
            offered = websocket.scope["subprotocols"]
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            with streams.serving.idle.hold():
                await Connection(websocket, streams, place, sender, config).run()
    except ApiError as error:
        streams.serving.metrics.refused(error.code)
        await websocket.send_denial_response(error.response())


def _caller(websocket: WebSocket, streams: Streams) -> tuple[str, SessionConfig]:
    """The owner of the key or of the secret, and the configuration that a secret brings."""
    keyring, config = websocket.app.state.keyring, initial(streams.settings.model_name)
    offered = (n for n in websocket.scope["subprotocols"] if n.startswith(KEY_SUBPROTOCOL))
    of_browser = next(offered, None)
    key = bearer(websocket) or (of_browser and of_browser.removeprefix(KEY_SUBPROTOCOL))
    if key is not None and key.startswith(SECRET_PREFIX):
        owner, config = streams.secrets.read(key, time.time())
        if keyring.rights and not keyring.in_force(owner):
            raise ApiError("invalid_api_key", "the client secret is of a key that has expired")
    elif keyring.rights:
        found = keyring.owner(key or "")
        if found is None:
            raise ApiError(
                "invalid_api_key",
                f"give a key: `Authorization: Bearer <key>`, or as subprotocol `{KEY_SUBPROTOCOL}<key>`",
            )
        owner = found
    if not keyring.rights:
        return ANONYMOUS, config
    check_scope(websocket, owner, "audio")
    return owner, config


def _asked(websocket: WebSocket, config: SessionConfig, settings: Settings) -> SessionConfig:
    """The configuration with what the address asks for. Raises ApiError."""
    query = websocket.query_params
    for name in query.keys() - set(PARAMETERS):
        raise unknown(name, PARAMETERS, "parameter")
    if query.get("intent", "transcription") != "transcription":
        raise invalid("intent", "this server has `transcription` only")
    if "model" not in query:
        return config
    name = check_model(query["model"], settings)
    return config.updated({"audio": {"input": {"transcription": {"model": name}}}})
