"""The application: who is let in, what is told, and what every answer carries."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest

from forescribe.api.access.keys import digest, new_key
from forescribe.api.settings import OPENAI_NAMES
from forescribe.asr.errors import ModelError
from tests.api.conftest import TRANSCRIBE, sound, until
from tests.api.contract import conforms
from tests.api.http import raw


def test_it_is_alive_before_it_is_ready(service, transcriber) -> None:
    go = threading.Event()
    client = service.loading(lambda: (go.wait(20), transcriber)[1])
    assert client.get("/health").text == client.get("/").text == "OK"
    early = client.get("/ready")
    assert early.status_code == 503 and early.json()["error"]["code"] == "not_ready"
    refused = client.post(TRANSCRIBE, files={"file": sound(1)}, data={"model": "random"})
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    go.set()
    until(lambda: client.get("/ready").status_code == 200)


@pytest.mark.parametrize(
    ("error", "lasting"), [(ModelError("no such model"), True), (RuntimeError("a device"), False)]
)
def test_a_model_that_cannot_be_loaded_is_never_ready_and_ends_the_process(
    service, error, lasting
) -> None:
    def load():
        raise error

    client = service.loading(load)
    until(lambda: client.app.state.failures)
    (failure,) = client.app.state.failures
    assert failure.lasting == lasting and str(error) in failure.line
    refused = client.get("/ready")  # until it has ended
    assert refused.status_code == 503 and "failed" in refused.json()["error"]["message"]
    assert client.get("/health").status_code == 200


def test_the_model_has_its_own_name_and_those_that_clients_send(service, monkeypatch) -> None:
    client = service()
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["random", *OPENAI_NAMES]
    assert client.get("/v1/models/whisper-1").json()["id"] == "whisper-1"
    known = client.get("/v1/models/random").json()
    assert known["languages"] == {"en": "English", "de": "German", "fr": "French"}
    assert known["translates"] and "languages" not in listed["data"][0]
    tokens = client.app.state.serving.tokens
    monkeypatch.setattr(client.app.state.serving, "tokens", replace(tokens, languages={}))
    english = client.get("/v1/models/random").json()
    assert english["languages"] == {"en": "English"} and not english["translates"]
    monkeypatch.setattr(client.app.state.serving, "tokens", None)  # it is loading
    assert {"de", "ba", "yue"} <= client.get("/v1/models/random").json()["languages"].keys()
    unknown = client.get("/v1/models/openai/whisper-large-v9")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


def test_without_a_key_not_a_byte_of_the_body_is_read(service) -> None:
    client, read = service(api_keys={"team": digest(new_key())}), []

    async def receive():
        read.append(1)
        return {"type": "http.request", "body": b"x" * 1024, "more_body": True}

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    sent = raw.post(client, TRANSCRIBE, headers, receive)
    assert sent[0]["status"] == 401 and not read


def test_every_answer_has_a_request_id(service) -> None:
    client = service()
    first, second = client.get("/health"), client.get("/nowhere")
    ids = [answer.headers["x-request-id"] for answer in (first, second)]
    assert ids[0] != ids[1] and all(re.fullmatch("req_[0-9a-f]{24}", name) for name in ids)
    mine = client.get("/health", headers={"x-request-id": "my-own.1"})
    assert mine.headers["x-request-id"] == "my-own.1"
    for unfit in ("a b", "x" * 200, "{json}"):
        given = client.get("/health", headers={"x-request-id": unfit})
        assert given.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("verb", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", TRANSCRIBE, 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
    ],
)
def test_what_the_framework_refuses_has_the_same_body(service, verb, path, status, code) -> None:
    answer = service().request(verb, path)
    assert answer.status_code == status
    conforms(answer.json(), "ErrorResponse")
    assert answer.json()["error"]["code"] == code


def test_a_fault_of_ours_is_told_without_its_cause_and_logged_without_its_words(
    service, caplog, monkeypatch
) -> None:
    client = service()
    monkeypatch.setattr(
        "forescribe.api.routers.operations._speech_model", lambda *_: 1 / 0 or "secret"
    )
    with caplog.at_level("INFO", "forescribe.api"):
        answer = client.get("/v1/models", headers={"x-request-id": "mine"})
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"
    assert "zero" not in answer.text and "ZeroDivisionError" not in answer.text
    lines = [line for line in caplog.messages if '"fault"' in line]
    assert len(lines) == 1 and '"mine"' in lines[0] and "ZeroDivisionError" in lines[0]
    assert "division by zero" not in lines[0]
