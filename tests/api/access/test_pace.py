"""Pace: a body that stalls or drips ends, and takes no place from others meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from forescribe.api.access import limits
from forescribe.api.access.limits import IDLE_S, Body, Pace
from forescribe.api.errors import ApiError
from tests.api.http import raw
from tests.api.uploads.test_uploads import MULTIPART, TRANSCRIBE, part


class Sender:
    """Sends `size` bytes after each `wait_s`, by its own clock."""

    def __init__(self, size: int, wait_s: float, pieces: int = 1000) -> None:
        self.now, self.size, self.wait_s, self.pieces = 0.0, size, wait_s, pieces

    def clock(self) -> float:
        return self.now

    async def send(self):
        self.now += self.wait_s
        self.pieces -= 1
        return {"type": "http.request", "body": b"x" * self.size, "more_body": self.pieces > 0}


def read(client: Sender, think_s: float = 0.0) -> int:
    """All of its body, by a reader that takes so long over each piece; how many bytes there were."""

    async def whole() -> int:
        received, size = Body(client.send, client.clock).receive, 0
        while True:
            message = await received()
            size += len(message["body"])
            client.now += think_s
            if not message["more_body"]:
                return size

    return asyncio.run(whole())


def test_a_body_that_drips_ends_once_its_average_is_too_low() -> None:
    """A byte before each limit on silence: the average ends it, at 30 s and a little."""
    dripping = Sender(1, 10.0)
    with pytest.raises(ApiError) as caught:
        read(dripping)
    assert caught.value.status == 408 and caught.value.headers()["Connection"] == "close"
    assert IDLE_S < dripping.now <= IDLE_S + 10.0 + 1


def test_a_body_that_stalls_behind_the_beginning_of_its_answer_ends_that_quietly(
    monkeypatch,
) -> None:
    """A stream of events listens for the client's leaving; there is no second answer."""
    sent, heard = [], []

    async def never():
        await asyncio.sleep(3600)

    async def send(message) -> None:
        sent.append(message["type"])

    async def streaming(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        heard.append((await receive())["type"])

    monkeypatch.setattr(limits, "IDLE_S", 0.01)
    asyncio.run(Pace(streaming)({"type": "http"}, never, send))
    assert sent == ["http.response.start"] and heard == ["http.disconnect"]


@pytest.mark.parametrize("path", [TRANSCRIBE, "/predict", "/v1/audio/translations"])
def test_a_stalled_upload_is_told_so_and_leaves_nothing(service, path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "IDLE_S", 0.1)
    client, sent = service(), []

    async def receive():
        if sent:
            await asyncio.sleep(3600)
        sent.append(1)
        return {"type": "http.request", "body": part("model", b"random"), "more_body": True}

    start, rest = raw.post(client, path, MULTIPART, receive)
    assert start["status"] == 408
    told = json.loads(rest["body"])
    assert "detail" in told or told["error"]["code"] == "request_timeout"
    assert client.app.state.serving.admission.uploads == 0
