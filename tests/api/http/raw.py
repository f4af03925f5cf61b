"""A request by hand: what the server sees of a body that comes in pieces, or of a client that leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi.testclient import TestClient

Message = dict[str, Any]


def post(
    client: TestClient,
    path: str,
    headers: Mapping[str, str],
    receive: Callable[[], Awaitable[Message]],
    method: str = "POST",
    taken: Callable[[Message], Awaitable[None]] | None = None,
) -> list[Message]:
    """What was sent in answer; returns when the application does. `taken` is the client's taking of it."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if taken is not None:
            await taken(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (name.lower().encode(), value.encode())
            for name, value in {"Host": "localhost", **headers}.items()
        ],
        "client": ("test", 1),
        "server": ("test", 80),
    }
    client.portal.call(client.app, scope, receive, send)
    return sent
