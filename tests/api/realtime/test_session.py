"""A session: what is configured, what comes of audio, and what is refused without an end of it."""

from __future__ import annotations

import base64
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.realtime import InputAudioBufferClearedEvent, RealtimeErrorEvent

from forescribe.api.app import create_app
from forescribe.api.realtime.session import DIARIZE, KNOWN
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.diarize.engines import registry
from forescribe.diarize.known_speakers import KnownSpeaker
from forescribe.diarize.turns import Turns
from forescribe.speculative.models import hub
from tests.api.conftest import FORM, RATE, TRANSCRIBE, Halves, sound, until, wav
from tests.api.realtime.sockets import PATH, Socket, audio, connected, noise, quiet

VAD = {"type": "server_vad", "silence_duration_ms": 300, "prefix_padding_ms": 0}
SEMANTIC = {"type": "semantic_vad"}


def test_an_items_text_is_that_of_an_upload_of_its_samples(service) -> None:
    client = service()
    samples = (np.clip(noise(2.5), -1, 1) * 32767).astype("<i2") / 32768
    upload = client.post(
        TRANSCRIBE, files={"file": wav(samples)}, data={**FORM, "temperature": "0"}
    )
    with connected(client) as socket:
        for at in range(0, len(samples), 1600):
            socket.append(noise(2.5)[at : at + 1600])
        socket.commit()
        done = socket.until("completed")
    assert done["transcript"] == upload.json()["text"] != ""
    assert done["languages"] == [{"code": "de"}]
    assert done["usage"] == {"type": "duration", "seconds": 2.5}


def test_short_messages_share_the_way_to_a_thread(service, monkeypatch) -> None:
    client, samples, calls = service(), noise(0.64), 0
    with connected(client) as socket:
        threads = client.app.state.streams.threads
        submit = threads.submit

        def counted(*work):
            nonlocal calls
            calls += 1
            return submit(*work)

        monkeypatch.setattr(threads, "submit", counted)
        for at in range(0, len(samples), 320):
            socket.append(samples[at : at + 320])
        socket.commit()
        assert socket.until("completed")["usage"]["seconds"] == 0.64
    assert calls == 3  # after 0.26 and 0.52 s, and the commit with the rest


class Alternating:
    """The speakers of a stream: the windows are of two in turn, the first one the known person, if any."""

    def __init__(
        self, engine: object, label: Callable[[int], str], known: Sequence[KnownSpeaker]
    ) -> None:
        names = [*(person.name for person in known), *map(label, range(2))][:2]
        self.labels = itertools.cycle(names)

    def turns(self, samples: np.ndarray) -> tuple[Turns, Turns]:
        found = Turns.of([(0, len(samples), next(self.labels))])
        return found, found


def speakers_of_two_items(socket: Socket) -> list[set[str]]:
    for seed in range(2):
        socket.append(noise(1, seed))
        socket.commit()
        socket.until("completed")
    return [
        {e["speaker"] for e in socket.of("segment") if e["item_id"] == done["item_id"]}
        for done in socket.of("completed")
    ]


def test_speakers_are_told_with_the_segments_of_an_item(service, monkeypatch) -> None:
    fake = SimpleNamespace(OnlineSpeakers=Alternating)
    monkeypatch.setitem(sys.modules, "forescribe.diarize.engines.online", fake)  # it takes seconds
    monkeypatch.setattr(registry, "load_online", lambda *_, **options: Halves())
    client = service()
    with connected(client) as socket:
        socket.send(
            "session.update", session={"audio": audio(diarize=True, known_speaker_names="a")}
        )
        lone = {"diarize": True, "known_speaker_names": ["Laura"]}
        socket.send("session.update", session={"audio": audio(**lone)})
        assert [socket.next()["error"]["param"].rpartition(".")[2] for _ in range(2)] == [
            "known_speaker_names", "known_speaker_references"
        ]  # fmt: skip
        shown = socket.configure(audio=audio(diarize=True))
        assert shown["audio"]["input"]["transcription"]["diarize"] is True
        assert speakers_of_two_items(socket) == [{"A"}, {"B"}]
        socket.send("session.update", session={"audio": audio(diarize=None)})
        assert socket.next()["error"]["param"] == DIARIZE  # audio has come
    voice = f"data:audio/wav;base64,{base64.b64encode(sound(4)).decode()}"
    with connected(client) as socket:
        shown = socket.configure(audio=audio(**lone, known_speaker_references=[voice]))
        assert "known_speaker_references" not in shown["audio"]["input"]["transcription"]
        assert speakers_of_two_items(socket) == [{"Laura"}, {"A"}]
    wrong = {**lone, "known_speaker_references": ["no data URL"]}
    body = {"session": {"audio": {"input": {"transcription": wrong}}}}
    secret = client.post("/v1/realtime/client_secrets", json=body).json()["value"]
    with client.websocket_connect(PATH, headers={"Authorization": f"Bearer {secret}"}) as raw:
        assert raw.receive_json()["error"]["param"].endswith("known_speaker_references")
        assert raw.receive()["code"] == 1008  # the next session would end likewise
    with connected(client) as socket:  # labels are those of a session, and cost nothing unasked
        socket.append(noise(1))
        socket.commit()
        socket.until("completed")
        assert {e["speaker"] for e in socket.of("segment")} == {"unknown"}

    monkeypatch.setattr(hub, "FOLDER", Path("nowhere"))
    with connected(client) as socket:
        socket.send("session.update", session={"audio": audio(diarize=True)})
        error = socket.next()["error"]
        assert error["param"] == DIARIZE and "cannot diarize" in error["message"]
        assert socket.configure()["audio"]["input"]["transcription"]["diarize"] is False


def test_items_are_linked_and_each_ends_once(service) -> None:
    with connected(service()) as socket:
        for seed in range(3):
            socket.append(noise(1, seed))
            socket.commit()
        for _ in range(3):
            socket.until("completed")
    committed = [e for e in socket.received if e["type"] == "input_audio_buffer.committed"]
    ids = [event["item_id"] for event in committed]
    assert [event["previous_item_id"] for event in committed] == [None, *ids[:2]]
    assert sorted(event["item_id"] for event in socket.of("completed")) == sorted(ids)
    added = [e for e in socket.received if e["type"] == "conversation.item.added"]
    assert [event["item"]["id"] for event in added] == ids
    events = [event["event_id"] for event in socket.received]
    assert len(set(events)) == len(events)


def test_what_is_cleared_is_no_item(service) -> None:
    with connected(service()) as socket:
        socket.append(noise(2))
        socket.send("input_audio_buffer.clear")
        InputAudioBufferClearedEvent.model_validate(socket.until("input_audio_buffer.cleared"))
        socket.commit()
        error = socket.next()
        assert error["error"]["code"] == "input_audio_buffer_commit_empty"
        socket.append(noise(1, 1))
        socket.commit()
        assert socket.until("completed")["usage"]["seconds"] == 1


def test_turns(service) -> None:
    with connected(service()) as socket:
        socket.configure(audio=audio(VAD))
        socket.append(np.concatenate([quiet(1), noise(1.5), quiet(1), noise(1.5, 1), quiet(1)]))
        done = {socket.until("completed")["item_id"] for _ in range(2)}
    started, stopped = (
        [e for e in socket.received if e["type"] == f"input_audio_buffer.speech_{name}"]
        for name in ("started", "stopped")
    )
    assert {event["item_id"] for event in started} == done
    spans = [
        (a["audio_start_ms"], b["audio_end_ms"]) for a, b in zip(started, stopped, strict=True)
    ]
    for (begin, end), (voice, silence) in zip(spans, [(1000, 2500), (3500, 5000)], strict=True):
        assert abs(begin - voice) < 100
        assert silence + 300 <= end < silence + 300 + 2 * 256 + 100  # audio is judged in steps


def test_a_session_is_changed_while_it_runs(service) -> None:
    with connected(service()) as socket:
        socket.append(noise(1))
        wanted = {"prompt": "Ein Wort.", "beam_size": "auto"}
        changed = socket.configure(
            audio={"input": {"turn_detection": VAD, "transcription": wanted}},
            include=["item.input_audio_transcription.logprobs", "forescribe.hypothesis"],
        )
        shown = changed["audio"]["input"]
        assert shown["turn_detection"]["threshold"] == 0.5  # a default
        assert shown["transcription"]["language"] == "de"  # from before
        assert wanted.items() <= shown["transcription"].items()
        assert shown["format"] == {"type": "audio/pcm", "rate": RATE}
        socket.send(
            "session.update", session={"audio": {"input": {"format": {"type": "audio/pcmu"}}}}
        )
        assert socket.next()["error"]["param"] == "session.audio.input.format"
        socket.append(np.concatenate([noise(1.5), quiet(1)]))
        done = socket.until("completed")
        assert done["logprobs"]
        changed = socket.configure(audio={"input": {"turn_detection": None}}, include=None)
        assert changed["audio"]["input"]["turn_detection"] is None and changed["include"] is None


@pytest.mark.parametrize(
    ("session", "param", "says"),
    [
        ({"type": "realtime"}, "session.type", "transcription"),
        ({"voice": "alloy"}, "session.voice", "is not a field"),
        ({"audio": None}, "session.audio", ""),
        ({"audio": {"output": {}}}, "session.audio.output", "is not a field"),
        ({"include": ["everything"]}, "session.include[0]", ""),
        *[
            ({"audio": {"input": {name: value}}}, f"session.audio.input.{where}", says)
            for name, value, where, says in [
                ("noise_reduction", {"type": "near_field"}, "noise_reduction", "None"),
                ("transcription", None, "transcription", "required"),
                ("transcription", {"model": "large-v9"}, "transcription.model", "large-v9"),
                ("transcription", {"language": "tlh"}, "transcription.language", "tlh"),
                ("transcription", {"languages": []}, "transcription.languages", ""),
                ("transcription", {"languages": ["en"]}, "transcription.languages", "not both"),
                ("transcription", {"delay": "never"}, "transcription.delay", "minimal"),
                ("transcription", {"beam_size": 0}, "transcription.beam_size", "greater than"),
                ("transcription", {"prompt": "x" * 100_001}, "transcription.prompt", ""),
                ("transcription", {KNOWN[0]: ["a"]}, f"transcription.{KNOWN[0]}", "needs diarize"),
                ("format", {"type": "audio/opus"}, "format", "audio/pcm"),
                ("format", {"type": "audio/pcm", "rate": 44_100}, "format.rate", "16000"),
                ("format", {"type": "audio/pcmu", "rate": 16_000}, "format.rate", "8000"),
                ("turn_detection", {"type": "none"}, "turn_detection", "server_vad"),
                ("turn_detection", {**VAD, "threshold": 2}, "turn_detection.threshold", ""),
                ("turn_detection", {**VAD, "idle_timeout_ms": 5}, "turn_detection.idle_timeout_ms", ""),
                ("turn_detection", {**SEMANTIC, "eagerness": "x"}, "turn_detection.eagerness", ""),
            ]
        ],
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(refusing, session, param, says) -> None:
    refusing.send("session.update", session=session, event_id="it")
    error = refusing.next()["error"]
    assert (error["type"], error["event_id"]) == ("invalid_request_error", "it")
    assert error["param"] == param and says in error["message"]


@pytest.fixture(scope="module")
def refusing_client(transcriber, decoders):
    serving = Serving(Settings(model="random", drain_s=0.0), lambda: transcriber, Halves, decoders)
    app = create_app(serving.settings, serving)
    with TestClient(app, base_url="http://localhost") as client:
        until(lambda: serving.life.state == "ready")
        yield client


@pytest.fixture(scope="module")
def refusing(refusing_client):
    """A session that lives through all of a module's mistakes."""
    with connected(refusing_client) as socket:
        yield socket
        socket.append(noise(1))
        socket.commit()
        assert socket.until("completed")["transcript"]


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("", "event"),
        ("{", "event"),
        ("[]", "event"),
        ("null", "event"),
        ('{"type": 5}', "type"),
        ("{}", "type"),
        ('{"type": "response.create"}', "type"),
        ('{"type": "conversation.item.create", "item": {}}', "type"),
        ('{"type": "input_audio_buffer.append"}', "audio"),
        ('{"type": "input_audio_buffer.append", "audio": 5}', "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "####"}', "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "AAA"}', "audio"),
        ('{"type": "input_audio_buffer.commit", "now": true}', "now"),
        ('{"type": "input_audio_buffer.commit", "event_id": 7}', "event_id"),
        ('{"type": "session.update"}', "session"),
        ('{"type": "session.update", "session": []}', "session"),
        ('{"type": "session.update", "session": ' + "[" * 500 + "]" * 500 + "}", "event"),
        ('{"type": "\\ud800"}', "event"),
        ('{"type": "input_audio_buffer.append", "audio": NaN}', "event"),
    ],
)
def test_a_malformed_event_is_an_error(refusing, text, param) -> None:
    refusing.session.send_text(text)
    event = refusing.next()
    RealtimeErrorEvent.model_validate(event)
    assert event["type"] == "error" and event["error"]["param"] == param


def test_a_binary_message_is_an_error(refusing) -> None:
    refusing.session.send_bytes(bytes(3200))
    assert "base64" in refusing.next()["error"]["message"]


def test_more_audio_than_an_event_may_have_is_an_error(refusing) -> None:
    refusing.send("input_audio_buffer.append", audio="A" * (21 << 20))
    assert refusing.next()["error"]["code"] == "file_too_large"


@given(texts=st.lists(st.text(max_size=80), max_size=5))
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_an_open_session_survives_anything(refusing, texts) -> None:
    for text in texts:
        refusing.session.send_text(text)
        assert refusing.next()["type"] == "error"


def test_a_request_that_is_no_socket_is_told_so(refusing_client) -> None:
    answer = refusing_client.get("/v1/realtime")
    assert answer.status_code == 400 and "WebSocket" in answer.json()["error"]["message"]
