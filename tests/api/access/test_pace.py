"""Pace: a body that stalls or drips ends, and takes no place from others meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from forescribe.api.access import limits
from forescribe.api.access.limits import IDLE_S, SILENT_S, Body, Pace
from forescribe.api.errors import ApiError
from tests.api.conftest import sound, until
from tests.api.http import raw
from tests.api.uploads.test_uploads import FORM, MULTIPART, TRANSCRIBE, body, part


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


def test_a_bodys_rate_is_known_after_some_seconds_and_zero_once_it_stalls() -> None:
    sender, rates = Sender(4096, 1.0), []

    async def receive():
        rates.append(made.rate())
        if sender.pieces == 995:
            sender.now += SILENT_S
            rates.append(made.rate())
        return await sender.send()

    made = Body(receive, sender.clock)

    async def some() -> None:
        for _ in range(6):
            await made.receive()

    asyncio.run(some())
    assert rates == [float("inf")] * 2 + [4096.0] * 4 + [0.0]
    made._complete = True
    assert made.rate() == float("inf")


def test_a_body_that_is_dropped_ends_at_once_whether_it_waits_or_not() -> None:
    async def never():
        await asyncio.sleep(3600)

    async def dropped(wait: bool) -> ApiError:
        made = Body(never, Sender(0, 0).clock)
        if wait:
            asyncio.get_running_loop().call_later(0.02, made.drop)
        else:
            made.drop()
        with pytest.raises(ApiError, match="another needed its place") as caught:
            await asyncio.wait_for(made.receive(), 10)
        return caught.value

    for wait in (True, False):
        error = asyncio.run(dropped(wait))
        assert error.status == 408 and int(error.headers()["Retry-After"]) >= 1
        assert error.headers()["Connection"] == "close"


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


@pytest.mark.parametrize("limit", ["max_uploads", "MAX_UPLOADS_PER_ADDRESS"])
def test_stalled_uploads_give_way_when_places_run_out(service, monkeypatch, limit) -> None:
    """They end with 408, and others find room long before their time is over."""
    monkeypatch.setattr("forescribe.api.access.limits.YOUNG_S", 0.2)
    monkeypatch.setattr(limits, "MAX_UPLOADS_PER_ADDRESS", 3 if limit.isupper() else 64)
    client = service(max_uploads=64 if limit.isupper() else 3)
    admission, answers = client.app.state.serving.admission, []

    async def receive():
        await asyncio.sleep(3600)

    def stall() -> None:
        answers.append(raw.post(client, TRANSCRIBE, MULTIPART, receive)[0]["status"])

    stalled = [threading.Thread(target=stall) for _ in range(3)]
    for thread in stalled:
        thread.start()
    until(lambda: admission.uploads == 3)

    def send() -> int:  # from the address of the stalled bodies
        content = body(
            *(part(name, value.encode()) for name, value in FORM.items()),
            part("file", sound(0.3), "a.wav"),
        )
        sent = iter([{"type": "http.request", "body": content, "more_body": False}])

        async def once():
            for message in sent:
                return message
            await asyncio.sleep(3600)

        return raw.post(client, TRANSCRIBE, MULTIPART, once)[0]["status"]

    began = time.monotonic()
    while (status := send()) != 200:
        assert status == (503 if limit == "max_uploads" else 429)
        assert time.monotonic() - began < 20
        time.sleep(0.02)
    assert time.monotonic() - began < IDLE_S / 2
    until(lambda: answers == [408])
    assert admission.uploads == 2 and admission.requests == 0
    for upload in list(admission._inside):
        client.portal.call(upload.body.drop)
    for thread in stalled:
        thread.join()
    assert answers == [408] * 3 and admission.uploads == 0
