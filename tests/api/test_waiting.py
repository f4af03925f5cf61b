"""What all clients share, the engine, the event loop and the readers, waits for none of them: one stops, or
reads nothing, in the middle of its request, and others are served. Live sessions: test_stream.py of asr/live,
test_ending.py of realtime; Wyoming: test_wyoming.py."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.conftest import FORM, TRANSCRIBE, sound, until
from tests.api.http import raw
from tests.api.uploads.test_uploads import MULTIPART, body, part

WHOLE = body(
    *(part(name, value.encode()) for name, value in {**FORM, "stream": "true"}.items()),
    part("file", sound(2, 3), "a.wav"),
)


@pytest.mark.parametrize("stops", ["in its body", "at the answer", "in the answer"])
def test_a_client_that_stops_keeps_nobody_waiting(service, stops: str) -> None:
    client, stopped, go_on = service(), threading.Event(), threading.Event()
    pieces = iter([WHOLE[:1000], WHOLE[1000:]])

    async def stop() -> None:
        stopped.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    async def receive() -> raw.Message:
        if (piece := next(pieces, None)) is None:  # it listens for the client's leaving
            await asyncio.sleep(3600)
        if piece is not None and stops == "in its body" and not piece.startswith(WHOLE[:10]):
            await stop()
        return {"type": "http.request", "body": piece, "more_body": piece == WHOLE[:1000]}

    async def taken(message: raw.Message) -> None:
        begins = message["type"] == "http.response.start"
        if not stopped.is_set() and begins == (stops == "at the answer"):
            await stop()

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(raw.post, client, TRANSCRIBE, MULTIPART, receive, taken=taken)
        assert stopped.wait(60)
        try:
            for seed in range(2):
                files = {"file": sound(1, seed)}
                assert client.post(TRANSCRIBE, files=files, data=FORM).status_code == 200
            assert not slow.done()
        finally:
            go_on.set()
        start, *rest = slow.result(60)
    assert start["status"] == 200
    assert b"transcript.text.done" in b"".join(message.get("body", b"") for message in rest)
    until(lambda: client.app.state.serving.admission.requests == 0)
