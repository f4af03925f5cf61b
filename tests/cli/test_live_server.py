"""`forescribe listen --server`: a client of Realtime transcription sessions, and a server in this process."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from forescribe.asr.decode.options import Options
from forescribe.asr.errors import CapacityError, ForescribeError, UsageError
from forescribe.asr.live.events import Completed, Delta, Failed, Hypothesis, LiveOptions
from forescribe.asr.live.turns import Turns
from forescribe.cli.live_server import ServerEngine, realtime_url, session_of
from tests.cli.test_listen import Run, run  # noqa: F401

TRANSCRIPT = "conversation.item.input_audio_transcription"


class Leave(Exception):
    """Of a script: the server closes the session."""


Script = Callable[[Any, dict[str, Any]], None]


@contextmanager
def serving(script: Script, key: str | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that does what `script` says to each message; its address, and what it received."""
    server_module = pytest.importorskip("websockets.sync.server")
    received: list[dict[str, Any]] = []

    def answer(socket: Any) -> None:
        socket.send(json.dumps({"type": "session.created", "session": {}}))
        try:
            for text in socket:
                received.append(json.loads(text))
                script(lambda **message: socket.send(json.dumps(message)), received[-1])
        except Leave:
            socket.close(1012, "restarting")

    def admitted(connection: Any, request: Any) -> Any:
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return connection.respond(401, json.dumps({"error": {"message": "wrong key"}}))
        return None

    with server_module.serve(answer, "127.0.0.1", 0, process_request=admitted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", received
        finally:
            server.shutdown()
            thread.join()


def turn(send: Any, name: str, start_ms: int, end_ms: int, text: str) -> None:
    send(type="input_audio_buffer.speech_started", item_id=name, audio_start_ms=start_ms)
    send(type=f"{TRANSCRIPT}.delta", item_id=name, content_index=0, delta=text)
    send(type="input_audio_buffer.speech_stopped", item_id=name, audio_end_ms=end_ms)
    send(type="input_audio_buffer.committed", item_id=name, previous_item_id=None)
    send(
        type=f"{TRANSCRIPT}.completed",
        item_id=name,
        content_index=0,
        transcript=f"{text}.",
        usage={"type": "duration", "seconds": 1},
    )


class Turns2:
    """Two turns after 1 s of audio each, and a third that only the end of the audio ends."""

    def __init__(self) -> None:
        self.heard = 0

    def __call__(self, send: Any, message: dict[str, Any]) -> None:
        if message["type"] == "input_audio_buffer.append":
            before, self.heard = self.heard, self.heard + len(base64.b64decode(message["audio"]))
            for number in (1, 2):
                if before < number * 48_000 <= self.heard:
                    turn(send, f"i{number}", 1000 * number - 800, 1000 * number, f"turn {number}")
        elif message["type"] == "input_audio_buffer.commit":
            send(type="input_audio_buffer.committed", item_id="i3", previous_item_id="i2")
            send(type=f"{TRANSCRIPT}.completed", item_id="i3", content_index=0, transcript="end")
        elif message.get("event_id") == "hypotheses":
            error = {"code": "invalid_value", "message": "include", "event_id": "hypotheses"}
            send(type="error", error=error)


def heard(url: str, seconds: float = 2.5, key: str | None = None) -> list[Any]:
    options = LiveOptions(Options(language="en"), turns=Turns())
    with ServerEngine(url, key, None, options) as engine:
        for _ in range(round(seconds * 10)):
            engine.feed(np.zeros(1600, np.float32))
        engine.finish()
        while not engine.wait(1.0):
            pass
        return list(engine.events())


def test_turns_become_events_with_the_times_of_the_stream() -> None:
    with serving(Turns2()) as (url, received):
        events = heard(url)
    done = [event for event in events if isinstance(event, Completed)]
    assert [(d.item, d.transcript.text, d.start_s) for d in done] == [
        (1, "turn 1.", 0.2),
        (2, "turn 2.", 1.2),
        (3, "end", 2.0),
    ]
    assert [round(d.transcript.duration, 3) for d in done] == [0.8, 0.8, 0.5]
    assert [event.text for event in events if isinstance(event, Delta)] == ["turn 1", "turn 2"]
    assert [event.committed for event in events if isinstance(event, Hypothesis)]
    audio = b"".join(base64.b64decode(m["audio"]) for m in received if "audio" in m)
    assert len(audio) == 2 * 24_000 * 2.5
    assert received[0]["session"]["audio"]["input"]["transcription"]["language"] == "en"


def test_nothing_was_left_to_commit() -> None:
    def empty(send: Any, message: dict[str, Any]) -> None:
        if message["type"] == "input_audio_buffer.commit":
            code = "input_audio_buffer_commit_empty"
            send(type="error", error={"code": code, "message": "nothing", "event_id": None})

    with serving(empty) as (url, _):
        assert heard(url) == []


def test_a_turn_that_fails_is_one_event() -> None:
    def failing(send: Any, message: dict[str, Any]) -> None:
        if message["type"] == "input_audio_buffer.commit":
            send(type="input_audio_buffer.committed", item_id="i", previous_item_id=None)
            send(type=f"{TRANSCRIPT}.failed", item_id="i", error={"message": "no memory"})

    with serving(failing) as (url, _):
        (failed,) = (event for event in heard(url) if isinstance(event, Failed))
    assert "no memory" in str(failed.error)


@pytest.mark.parametrize(
    ("answer", "kind", "word"),
    [
        (
            {"type": "error", "error": {"code": "x", "message": "no such model"}},
            UsageError,
            "no such",
        ),
        ({"kind": "hello"}, UsageError, "no Realtime transcription session"),
    ],
)
def test_what_a_server_says_ends_it_with_its_words(answer, kind, word) -> None:
    def refuse(send: Any, message: dict[str, Any]) -> None:
        send(**answer)

    with serving(refuse) as (url, _), pytest.raises(kind, match=word):
        heard(url)


def test_a_server_that_goes_away_is_told() -> None:
    def leave(send: Any, message: dict[str, Any]) -> None:
        raise Leave

    with (
        serving(leave) as (url, _),
        pytest.raises(CapacityError, match=r"ended the session.*restarting"),
    ):
        heard(url)


def test_a_server_that_ends_the_session_tells_the_last_turn(run, tmp_path) -> None:  # noqa: F811
    """The files have it too, and no silence in its place where a turn is lost."""
    turns = Turns2()

    def script(send: Any, message: dict[str, Any]) -> None:
        turns(send, message)
        if turns.heard >= 48_000 * 2:
            error = {"code": "session_expired", "message": "60 minutes", "event_id": None}
            send(type="error", error=error)
            turn(send, "i4", 2000, 2500, "last")
            raise Leave

    with serving(script) as (url, _):
        command = ("-", "--server", url, "-o", "out", "-f", "json")
        done: Run = run(*command, stdin=bytes(32_000 * 3))
    assert (done.status, done.out) == (2, "turn 1.\nturn 2.\nlast.\n") and "60 minutes" in done.err
    (file,) = (tmp_path / "out").iterdir()
    assert json.loads(file.read_text())["coverage"]["failed_s"] >= 0.1


def test_the_key() -> None:
    with serving(Turns2(), key="right") as (url, _):
        assert heard(url, key="right")
        with pytest.raises(UsageError, match=r"401.*wrong key.*OPENAI_API_KEY"):
            heard(url, key="wrong")


def test_no_server_is_there() -> None:
    pytest.importorskip("websockets")
    with pytest.raises(ForescribeError, match="cannot be reached"):
        heard("http://127.0.0.1:9")


def test_addresses() -> None:
    end = "/v1/realtime?intent=transcription"
    assert realtime_url("http://localhost:8000") == f"ws://localhost:8000{end}"
    assert realtime_url("localhost:8000/v1/") == f"ws://localhost:8000{end}"
    assert realtime_url("https://api.openai.com/v1") == f"wss://api.openai.com{end}"
    assert realtime_url("wss://a/x/realtime?y=1") == "wss://a/x/realtime?y=1"
    with pytest.raises(UsageError, match="--server"):
        realtime_url("ftp://a")


def test_sessions() -> None:
    sentence = Turns(eagerness="auto")
    options = LiveOptions(
        Options(language="de,en", initial_prompt="Zoë"), delay="low", turns=sentence
    )
    given = session_of(options, "m")["audio"]["input"]
    assert given["transcription"] == {
        "model": "m", "languages": ["de", "en"], "prompt": "Zoë", "delay": "low"
    }  # fmt: skip
    assert given["turn_detection"] == {"type": "semantic_vad", "eagerness": "auto"}
    assert session_of(LiveOptions(), "m")["audio"]["input"]["turn_detection"] is None


def test_the_command(run, tmp_path) -> None:  # noqa: F811
    with serving(Turns2()) as (url, _):
        done: Run = run("-", "--server", url, "-o", "out", "-f", "srt", stdin=bytes(32_000 * 3))
    assert (done.status, done.out) == (0, "turn 1.\nturn 2.\nend\n"), done.err
    (file,) = (tmp_path / "out").iterdir()
    assert "00:00:01,200 --> 00:00:02,000\nturn 2." in file.read_text()
    for option in (["--draft", "none"], ["--step", "2"], ["--num-speakers", "2", "--diarize"]):
        refused = run("-", "--server", url, *option)
        assert refused.status == 2 and f"{option[0]} cannot be chosen" in refused.err


def test_speakers_of_a_server_begin_lines_and_are_in_the_files(run, tmp_path) -> None:  # noqa: F811
    def script(send: Any, message: dict[str, Any]) -> None:
        if message["type"] != "input_audio_buffer.commit":
            return
        send(type="input_audio_buffer.committed", item_id="i", previous_item_id=None)
        for speaker, start, end, text in (
            ("A", 0.0, 1.0, " Good morning."),
            ("unknown", 1.0, 1.5, " Hm."),
            ("Laura", 1.5, 2.0, " Hello."),
        ):
            segment = {"id": "s", "start": start, "end": end, "text": text, "speaker": speaker}
            send(type=f"{TRANSCRIPT}.segment", item_id="i", content_index=0, **segment)
        whole = "Good morning. Hm. Hello."
        send(type=f"{TRANSCRIPT}.completed", item_id="i", content_index=0, transcript=whole)

    with serving(script) as (url, received):
        done: Run = run(
            "-", "--server", url, "--diarize", "-o", "out", "-f", "srt,rttm", stdin=bytes(64_000)
        )
    assert done.status == 0, done.err
    assert done.out == "A: Good morning.\nunknown: Hm.\nLaura: Hello.\n"
    asked = [m["session"]["audio"]["input"] for m in received if "audio" in m.get("session", {})]
    assert [a["transcription"]["diarize"] for a in asked] == [True]
    files = {path.suffix: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert "00:00:01,500 --> 00:00:02,000\n[Laura]: Hello." in files[".srt"], files
    rows = [line.split() for line in files[".rttm"].splitlines()]
    assert [row[7] for row in rows] == ["A", "Laura"] and rows[0][1].startswith("live-2")
