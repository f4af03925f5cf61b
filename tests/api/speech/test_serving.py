"""Serving: one engine for all; who leaves frees its slots, who is too much is told so."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from forescribe.api.app import create_app
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.audio.inputs import DecodedFile
from forescribe.asr.errors import UsageError
from tests.api.conftest import FORM, TRANSCRIBE, Halves, sound, until
from tests.api.http import raw

PATIENCE = 120.0


def post(client, audio: bytes, **fields):
    return client.post(TRANSCRIBE, files={"file": audio}, data={**FORM, **fields})


def test_uploads_share_the_slots(service, held, transcriber) -> None:
    """Four short uploads are in the engine at the same time, not one after the other."""
    client = service()
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(post, client, sound(2, seed)) for seed in range(4)]
        until(lambda: transcriber.engine.free == 0)
        assert client.get("/health").status_code == 200  # while every slot is busy
        held.set()
        answers = [future.result(PATIENCE) for future in made]
    assert [answer.status_code for answer in answers] == [200] * 4
    texts = [answer.json()["text"] for answer in answers]
    assert len(set(texts)) > 1
    assert texts == [post(client, sound(2, seed)).json()["text"] for seed in range(4)]


def test_an_engine_that_hangs_ends_its_process(transcriber, decoders, monkeypatch) -> None:
    gave_up, go, step = threading.Event(), threading.Event(), transcriber.engine.step
    monkeypatch.setattr(transcriber.engine, "step", lambda: step() if go.wait(PATIENCE) else [])
    settings = Settings(model="random", drain_s=0.0, stall_s=0.5)
    serving = Serving(settings, lambda: transcriber, Halves, decoders)
    with (
        TestClient(
            create_app(settings, serving, hung=gave_up.set), base_url="http://localhost"
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        until(lambda: serving.life.state == "ready")
        pool.submit(post, client, sound(2))
        assert gave_up.wait(PATIENCE)
        refused = client.get("/ready")
        assert refused.status_code == 503 and "broken" in refused.json()["error"]["message"]
        go.set()


def test_a_full_house_answers_at_once_and_stays_as_full_as_it_is(service, held) -> None:
    client = service(max_requests=2)
    admission = client.app.state.serving.admission
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(post, client, sound(2)) for _ in range(2)]
        until(lambda: admission.seconds == 4)
        for _ in range(20):
            refused = post(client, sound(2))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1
            assert (admission.requests, admission.seconds) == (2, 4)
        held.set()
        assert [future.result(PATIENCE).status_code for future in made] == [200, 200]
    assert (admission.requests, admission.seconds) == (0, 0)


def test_what_takes_too_long_is_told_so_and_leaves_its_slots(service, held, transcriber) -> None:
    client = service(timeout_s=0.3)
    answer = post(client, sound(2))
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "inference_timeout"
    until(lambda: client.app.state.serving.admission.requests == 0)
    held.set()
    until(lambda: transcriber.engine.idle)


@pytest.mark.parametrize("stream", ["", "true"])
def test_a_client_that_leaves_frees_its_slots(service, held, transcriber, stream) -> None:
    """Seen from the server: the connection closes while the engine works."""
    client = service()
    request = client.build_request(
        "POST",
        "http://testserver" + TRANSCRIBE,
        files={"file": sound(100)},
        data={**FORM, "stream": stream},
    )
    content, leave = request.read(), asyncio.Event()
    bodies = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive():
        if bodies:
            return bodies.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(raw.post, client, TRANSCRIBE, request.headers, receive)
        until(lambda: transcriber.engine.free == 0)
        client.portal.call(leave.set)
        call.result(PATIENCE)
    until(lambda: client.app.state.serving.admission.requests == 0)
    assert client.app.state.serving.session.idle
    assert not transcriber.engine.rows.active.any()


def test_who_is_inside_when_the_server_stops_may_end(service, held) -> None:
    client = service(drain_s=20.0)
    serving = client.app.state.serving
    with ThreadPoolExecutor(2) as pool:
        inside = pool.submit(post, client, sound(2))
        until(lambda: serving.admission.seconds == 2)
        stopping = pool.submit(client.portal.call, serving.stop)
        until(lambda: serving.life.state == "draining")
        assert client.get("/ready").status_code == 503
        assert post(client, sound(1)).json()["error"]["code"] == "not_ready"
        held.set()
        assert inside.result(PATIENCE).status_code == 200
        stopping.result(PATIENCE)
    assert serving.life.state == "stopped"


def test_who_does_not_end_in_time_is_told_to_come_again(service, held) -> None:
    client = service(drain_s=0.2)
    serving = client.app.state.serving
    with ThreadPoolExecutor(2) as pool:
        inside = pool.submit(post, client, sound(2))
        until(lambda: serving.admission.seconds == 2)
        pool.submit(client.portal.call, serving.stop).result(PATIENCE)
        answer = inside.result(PATIENCE)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"


def test_a_fault_of_the_engine_is_a_500_without_its_words(
    service, transcriber, monkeypatch
) -> None:
    client, step = service(), transcriber.engine.step

    def faulty():
        monkeypatch.setattr(transcriber.engine, "step", step)
        raise RuntimeError("secret")

    monkeypatch.setattr(transcriber.engine, "step", faulty)
    answer = post(client, sound(2))
    assert answer.status_code == 500 and "secret" not in answer.text
    assert post(client, sound(2)).status_code == 200


def test_what_cannot_be_queued_is_given_back(service, monkeypatch) -> None:
    client, taken = service(), list[DecodedFile]()
    serving = client.app.state.serving

    def refuse(samples: DecodedFile, *_: object, **__: object) -> None:
        taken.append(samples)
        raise UsageError("not this one")

    monkeypatch.setattr(serving.session, "submit", refuse)
    assert post(client, sound(2)).status_code == 400
    assert taken[0].file.closed and serving.admission.requests == 0
