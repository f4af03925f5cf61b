"""A client of live sessions: what it sends, and what it has received."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketTestSession

from tests.api.conftest import RATE

PATH = "ws://localhost/v1/realtime?intent=transcription"
TRANSCRIPT = "conversation.item.input_audio_transcription"

Message = dict[str, Any]


class Socket:
    """`received` are all events so far."""

    def __init__(self, session: WebSocketTestSession) -> None:
        self.session = session
        self.received: list[Message] = []

    def send(self, type: str, **fields: object) -> None:
        self.session.send_text(json.dumps({"type": type, **fields}))

    def append(self, samples: np.ndarray) -> None:
        """16 kHz; the session has to be configured for it."""
        self.send("input_audio_buffer.append", audio=pcm(samples))

    def commit(self) -> None:
        self.send("input_audio_buffer.commit")

    def configure(self, **session: object) -> Message:
        self.send("session.update", session={"type": "transcription", **session})
        return self.until("session.updated")["session"]

    def next(self) -> Message:
        event = json.loads(self.session.receive_text())
        self.received.append(event)
        return event

    def until(self, *types: str) -> Message:
        """The next event of these types."""
        while True:
            event = self.next()
            if event["type"] in types or event["type"].removeprefix(f"{TRANSCRIPT}.") in types:
                return event
            assert event["type"] != "error", event

    def of(self, name: str) -> list[Message]:
        """What was received of a type of an item's transcript."""
        return [event for event in self.received if event["type"] == f"{TRANSCRIPT}.{name}"]


@contextmanager
def connected(client: TestClient, path: str = PATH, **options: Any) -> Iterator[Socket]:
    """A session on 16 kHz audio in German, whose events so far are session.created and .updated."""
    with client.websocket_connect(path, **options) as session:
        socket = Socket(session)
        assert socket.next()["type"] == "session.created"
        socket.configure(audio=audio())
        yield socket


def audio(turn_detection: object = None, rate: int = RATE, **transcription: object) -> Message:
    """The `audio` of a session."""
    return {
        "input": {
            "format": {"type": "audio/pcm", "rate": rate},
            "transcription": {"language": "de", **transcription},
            "turn_detection": turn_detection,
        }
    }


def pcm(samples: np.ndarray) -> str:
    """In base64."""
    return base64.b64encode((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()).decode()


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    """What the detector of these tests takes for speech."""
    rng, t = np.random.default_rng(seed), np.arange(round(RATE * seconds))
    return 0.3 * np.sin(t * rng.uniform(0.02, 0.3)) + 0.1 * rng.standard_normal(len(t))


def quiet(seconds: float) -> np.ndarray:
    return np.zeros(round(RATE * seconds))
