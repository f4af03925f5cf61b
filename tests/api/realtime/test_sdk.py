"""OpenAI's own client against the running service with the bundled model."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
import soxr
from openai.types.realtime import (
    ConversationItemAdded,
    ConversationItemDone,
    ConversationItemInputAudioTranscriptionCompletedEvent,
    ConversationItemInputAudioTranscriptionDeltaEvent,
    ConversationItemInputAudioTranscriptionSegment,
    InputAudioBufferCommittedEvent,
    InputAudioBufferSpeechStartedEvent,
    InputAudioBufferSpeechStoppedEvent,
    SessionCreatedEvent,
    SessionUpdatedEvent,
)

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.http.protocols import SocketProtocol
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.conftest import RATE, SAMPLE, served, until
from tests.docs.pages import ROOT, blocks

KEY = new_key()
INTENT = {"intent": "transcription"}
TRANSCRIPT = "conversation.item.input_audio_transcription"
TYPES: dict[str, Any] = {
    "session.created": SessionCreatedEvent,
    "session.updated": SessionUpdatedEvent,
    "input_audio_buffer.speech_started": InputAudioBufferSpeechStartedEvent,
    "input_audio_buffer.speech_stopped": InputAudioBufferSpeechStoppedEvent,
    "input_audio_buffer.committed": InputAudioBufferCommittedEvent,
    "conversation.item.added": ConversationItemAdded,
    "conversation.item.done": ConversationItemDone,
    f"{TRANSCRIPT}.delta": ConversationItemInputAudioTranscriptionDeltaEvent,
    f"{TRANSCRIPT}.segment": ConversationItemInputAudioTranscriptionSegment,
    f"{TRANSCRIPT}.completed": ConversationItemInputAudioTranscriptionCompletedEvent,
}

SECONDS = 5


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = Settings(model="tiny.en", api_keys={"sdk": digest(KEY)}, drain_s=10, jobs=False)
    serving = Serving.of(settings)
    app = create_app(settings, serving)
    with served(app, ws=SocketProtocol) as url:
        until(lambda: serving.life.state == "ready")
        yield f"{url}/v1"


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """The beginning of the sample that ships, in 16 bits at 16 kHz."""
    samples, rate = soundfile.read(SAMPLE, stop=SECONDS * RATE, dtype="int16")
    assert rate == RATE
    return samples


@pytest.fixture(scope="module")
def uploaded(address: str, speech: np.ndarray) -> str:
    """The text of an upload of the same samples."""
    file = io.BytesIO()
    soundfile.write(file, speech, RATE, format="WAV")
    with openai.OpenAI(base_url=address, api_key=KEY) as client:
        made = client.audio.transcriptions.create(model="whisper-1", file=("a.wav", file))
    assert len(made.text.split()) > 8
    return made.text


def session(format: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "transcription", "audio": {"input": {"format": format, **more}}}


def pieces(data: bytes, size: int) -> Iterator[str]:
    for at in range(0, len(data), size):
        yield base64.b64encode(data[at : at + size]).decode()


def checked(event: Any) -> Any:
    """The event, if it has the fields and types of the client's own model."""
    if event.type in TYPES:
        # The client takes the session of an event for one of conversations, and warns of its type.
        data = json.loads(event.to_json(warnings=False))
        if "session" in data:  # without our extensions
            data["session"]["include"] = None
            data["session"]["audio"]["input"]["format"] = None
        made = TYPES[event.type].model_validate(data)
        assert not made.model_extra, made.model_extra
    else:
        assert event.type.startswith("forescribe."), event.type
    return event


def until_end(events: Iterator[Any]) -> list[Any]:
    """All events up to the first that ends an item."""
    received = []
    for event in events:
        received.append(checked(event))
        assert event.type != "error", event
        if event.type in (f"{TRANSCRIPT}.completed", f"{TRANSCRIPT}.failed"):
            return received
    raise AssertionError("the session has ended")


def test_what_is_said_arrives_while_it_is_said_and_is_an_uploads_text(
    client, speech, uploaded
) -> None:
    with client.realtime.connect(extra_query=INTENT) as connection:
        created = checked(connection.recv())
        assert created.type == "session.created" and created.session.id.startswith("sess_")
        connection.session.update(session=session({"type": "audio/pcm", "rate": RATE}))
        assert checked(connection.recv()).type == "session.updated"
        for piece in pieces(speech.tobytes(), 3333):  # odd: samples are torn apart
            connection.input_audio_buffer.append(audio=piece)
        while True:  # before anything is committed
            event = checked(connection.recv())
            if event.type == f"{TRANSCRIPT}.delta":
                break
        connection.input_audio_buffer.commit()
        received = [event, *until_end(iter(connection))]
    done = received[-1]
    assert done.transcript == uploaded and done.usage.seconds == SECONDS
    assert [language.code for language in done.languages] == ["en"]
    deltas = [e for e in received if e.type.endswith(".delta")]
    assert {(e.item_id, e.content_index) for e in deltas} == {(done.item_id, 0)}
    said = "".join(event.delta for event in deltas)
    assert said.split()[:5] == uploaded.split()[:5]
    kinds = [event.type for event in received]
    assert kinds.index("input_audio_buffer.committed") < kinds.index("conversation.item.added")
    assert f"{TRANSCRIPT}.segment" in kinds


def resampled(speech: np.ndarray, rate: int) -> np.ndarray:
    return soxr.resample(speech, RATE, rate)


@pytest.mark.parametrize(
    "format",
    [
        {"type": "audio/pcm", "rate": 24_000},
        pytest.param({"type": "audio/pcm", "rate": 8_000}, marks=pytest.mark.slow),
        {"type": "audio/pcmu"},
        pytest.param({"type": "audio/pcma"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_format_gives_the_same_words(client, speech, uploaded, format) -> None:
    from tests.asr.live.test_formats import encoded

    samples = resampled(speech, format.get("rate", 8_000))
    data = samples.tobytes() if format["type"] == "audio/pcm" else encoded(samples, format["type"])
    with client.realtime.connect(model="whisper-1") as connection:
        connection.session.update(session=session(format))
        connection.input_audio_buffer.append(audio=base64.b64encode(data).decode())
        connection.input_audio_buffer.commit()
        done = until_end(iter(connection))[-1]
    assert words(done.transcript) == words(uploaded)


def words(text: str) -> list[str]:
    return [word.strip(",.?!").lower() for word in text.split()]


@pytest.mark.slow
def test_the_example_of_the_page(address, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = [block for block in blocks("python") if block.page == "docs/live.md"]
    text = example.text.replace("http://localhost:8000/v1", address)
    names: dict[str, Any] = {}
    exec(compile(text.replace('"none"', repr(KEY)), example.name, "exec"), names)
    names["client"].close()
    said, transcript = capsys.readouterr().out.strip().split("\n")
    assert words(said)[:5] == words(transcript)[:5] and len(words(transcript)) > 60
