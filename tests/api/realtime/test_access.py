"""Who may open a session: keys, secrets and capacity, all told before the upgrade."""

from __future__ import annotations

import threading
import time

import pytest
from fastapi.testclient import TestClient
from openai.types.realtime.client_secret_create_response import ClientSecretCreateResponse
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.realtime import streams as streams_of
from forescribe.api.realtime.client_secrets import MAX_LENGTH, ClientSecrets
from forescribe.api.realtime.session import initial
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.conftest import Halves, keyed, until
from tests.api.realtime.sockets import PATH, connected, noise

KEY, OTHER = new_key(), new_key()
SECRETS = "/v1/realtime/client_secrets"


def keys(**rights: object) -> dict:
    return {
        "team": {"hashes": [digest(KEY)], **rights},
        "text": {"hashes": [digest(OTHER)], "scopes": ["text"]},
    }


def refusal(client, path: str = PATH, **options):
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        client.websocket_connect(path, **options),
    ):
        pass
    return refused.value


def opens(client, **options) -> dict:
    """The session of session.created."""
    with client.websocket_connect(PATH, **options) as session:
        return session.receive_json()["session"]


def offered(key: str) -> list[str]:
    return ["realtime", f"openai-insecure-api-key.{key}"]


def test_keys(service) -> None:
    client = service(api_keys=keys())
    assert opens(client, headers=keyed(KEY))["type"] == "transcription"
    for options in ({}, {"headers": keyed("wrong")}, {"subprotocols": offered("wrong")}):
        answer = refusal(client, **options)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["x-request-id"].startswith("req_")
    assert refusal(client, headers=keyed(OTHER)).status_code == 403


def test_a_browser_gives_its_key_as_a_subprotocol_and_does_not_get_it_back(service) -> None:
    client = service(api_keys=keys())
    with client.websocket_connect(PATH, subprotocols=offered(KEY)) as session:
        assert session.accepted_subprotocol == "realtime"
        assert KEY not in str(session.extra_headers)
        assert session.receive_json()["type"] == "session.created"


def test_a_page_of_another_origin_is_refused(service) -> None:
    client = service(allowed_origins=["https://app.example.com"])
    answer = refusal(client, headers={"Origin": "https://evil.example.com"})
    assert answer.status_code == 403 and "allowed_origins" in answer.json()["error"]["message"]
    for origin in ("https://app.example.com", "http://localhost"):
        assert opens(client, headers={"Origin": origin})


def test_an_address_with_a_key_or_another_intent_is_refused(service) -> None:
    client = service()
    for query, param in (
        ("api_key=x", "api_key"),
        ("intent=conversation", "intent"),
        ("model=x", "model"),
    ):
        answer = refusal(client, f"{PATH.partition('?')[0]}?{query}")
        assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param
    with client.websocket_connect(PATH.partition("?")[0] + "?model=whisper-1") as session:
        shown = session.receive_json()["session"]["audio"]["input"]["transcription"]
        assert shown["model"] == "whisper-1"  # as the client calls it


def test_secrets(service) -> None:
    client = service(api_keys=keys())
    given = {"audio": {"input": {"transcription": {"language": "de", "prompt": "Ein Wort."}}}}
    body = {"session": {"type": "transcription", **given}, "expires_after": {"seconds": 60}}
    assert client.post(SECRETS, json=body).status_code == 401
    made = client.post(SECRETS, json=body, headers=keyed(KEY)).json()
    ClientSecretCreateResponse.model_validate(made)
    assert abs(made["expires_at"] - time.time() - 60) < 5
    value = made["value"]
    for options in ({"headers": keyed(value)}, {"subprotocols": offered(value)}):
        shown = opens(client, **options)["audio"]["input"]["transcription"]
        assert (shown["language"], shown["prompt"]) == ("de", "Ein Wort.")
    for wrong in (
        value[:-2],
        value[:-1] + ("A" if value[-1] != "A" else "B"),
        "ek_",
        "ek_" + "A" * 90,
    ):
        assert refusal(client, headers=keyed(wrong)).status_code == 401
    assert client.get("/v1/models", headers=keyed(value)).status_code == 401
    assert client.post(SECRETS, json=body, headers=keyed(value)).status_code == 401
    for body in (
        {"expires_after": {"seconds": 9}},
        {"expires_after": {"seconds": 7201}},
        {"expires_after": {"anchor": "now"}},
        {"session": {"type": "realtime"}},
        {"session": {"audio": {"input": {"transcription": {"language": "tlh"}}}}},
        {"other": 1},
    ):
        answer = client.post(SECRETS, json=body, headers=keyed(KEY))
        assert answer.status_code == 400 and answer.json()["error"]["param"]


def test_without_keys_a_secret_is_checked_too(service) -> None:
    client = service()
    value = client.post(SECRETS, json={}).json()["value"]
    assert opens(client, headers=keyed(value))
    assert refusal(client, headers=keyed(value + "x")).status_code == 401
    assert opens(client, headers=keyed("anything else"))


def test_a_secret_ends_and_is_of_one_service() -> None:
    config, now = initial("random"), 1_000_000.0
    mine, other = Settings(api_keys=keys()), Settings(api_keys=keys() | {"new": digest(new_key())})
    mine, theirs = ClientSecrets.of(mine), ClientSecrets.of(other)
    value, expires_at = mine.new("team", config, seconds=60, now=now)
    assert mine.read(value, now + 59) == ("team", config) and expires_at == now + 60
    assert ClientSecrets.of(Settings(api_keys=keys())).read(value, now)  # another worker
    for secrets, when in ((mine, now + 60), (theirs, now)):
        with pytest.raises(Exception, match="wrong or has expired"):
            secrets.read(value, when)
    words = " ".join(f"{n:x}" for n in range(9_000))
    long = config.updated({"audio": {"input": {"transcription": {"prompt": words}}}})
    with pytest.raises(Exception, match="does not fit"):
        mine.new("team", long, seconds=60, now=now)
    assert len(value) < MAX_LENGTH / 10


def test_a_secret_ends_with_the_key_that_made_it(service) -> None:
    client = service(api_keys=keys())
    value = client.post(SECRETS, json={}, headers=keyed(KEY)).json()["value"]
    assert opens(client, headers=keyed(value))
    del client.app.state.keyring.rights["team"]
    assert refusal(client, headers=keyed(value)).status_code == 401


def test_sessions_are_limited_per_key_and_process(service, monkeypatch) -> None:
    monkeypatch.setattr(streams_of, "MAX_PER_CLIENT", 2)
    client = service(api_keys=keys(), max_streams=3)
    streams, named = client.app.state.streams, {"headers": keyed(KEY)}
    with client.websocket_connect(PATH, **named), client.websocket_connect(PATH, **named):
        answer = refusal(client, **named)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        assert "2 live sessions" in answer.json()["error"]["message"]
    until(lambda: streams.open == 0)
    assert opens(client, **named)


def test_a_full_process_and_a_full_address(service, monkeypatch) -> None:
    client = service(max_streams=1)
    with client.websocket_connect(PATH):
        assert refusal(client).json()["error"]["code"] == "overloaded"
    monkeypatch.setattr(streams_of, "MAX_PER_CLIENT", 1)
    client = service()
    with client.websocket_connect(PATH):
        answer = refusal(client)
        assert answer.status_code == 429 and "address" in answer.json()["error"]["message"]


def test_a_key_that_is_removed_ends_its_sessions(service) -> None:
    client = service(api_keys=keys())
    with connected(client, headers=keyed(KEY)) as socket:
        del client.app.state.keyring.rights["team"]
        socket.append(noise(11))
        while (event := socket.next())["type"] != "error":
            pass
        assert event["error"]["code"] == "invalid_api_key"
    until(lambda: client.app.state.serving.session.context.idle)


def test_a_model_that_is_not_loaded_takes_nobody(service, transcriber) -> None:
    go = threading.Event()

    def load():
        assert go.wait(60)
        return transcriber

    client = service.loading(load)
    answer = refusal(client)
    assert answer.status_code == 503 and "loading" in answer.json()["error"]["message"]
    go.set()
    until(lambda: client.app.state.serving.life.state == "ready")


def test_a_server_without_a_model_says_so(tmp_path, decoders) -> None:
    settings = Settings(model="random", front_end=True, database_url="postgresql://u:p@localhost/x")
    serving = Serving(settings, None, Halves, decoders)
    with TestClient(create_app(settings, serving), base_url="http://localhost") as client:
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(PATH):
            pass
        assert client.post(SECRETS, json={}).status_code == 404
