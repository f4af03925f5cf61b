"""An idle model leaves memory, never below a running request, and comes back for the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from forescribe.api.app import create_app
from forescribe.api.process import IdleUnload
from forescribe.api.settings import Settings, load
from forescribe.api.speech.serving import Serving
from forescribe.asr.errors import UsageError
from tests.api.conftest import FORM, TRANSCRIBE, memo, until
from tests.api.jobs.application import application, ended, submit


class Model:
    """What is unloaded, by a clock that the test moves."""

    def __init__(self, after_s: float = 10.0) -> None:
        self.now_s, self.busy, self.unloads = 0.0, False, 0
        self.idle = IdleUnload(after_s, lambda: self.busy, self._unload, lambda: self.now_s)
        self.idle.loaded()

    def _unload(self) -> None:
        self.unloads += 1

    def after(self, seconds: float) -> bool:
        self.now_s += seconds
        self.idle.look()
        return self.idle.unloaded


def test_it_is_unloaded_once_after_the_time_without_work() -> None:
    model = Model()
    assert not model.after(9.9) and model.after(0.2) and model.after(100)
    assert model.unloads == 1
    model.idle.loaded()
    assert not model.after(9.9) and model.after(0.2) and model.unloads == 2


def test_work_begins_the_time_anew() -> None:
    model = Model()
    model.busy = True
    assert not model.after(100)
    model.busy = False
    assert not model.after(9.9)
    model.idle.want()  # a request that ended before the next look
    assert not model.after(9.9) and model.after(0.2)


def test_what_holds_it_keeps_it() -> None:
    model = Model()
    with model.idle.hold():
        with model.idle.hold():
            assert not model.after(100)
        assert not model.after(100)
    assert not model.after(9.9) and model.after(0.2)


@pytest.mark.parametrize(("act", "again"), [("want", True), ("stop", False)])
def test_the_thread_waits_until_it_is_wanted_or_the_end(act: str, again: bool) -> None:
    model = Model()
    assert not model.idle.wanted(), "it has ended for another reason"
    assert model.after(11)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(model.idle.wanted)
        time.sleep(0.05)
        assert not told.done()
        getattr(model.idle, act)()
        assert told.result(10) is again


def test_settings_that_it_does_not_go_with_are_refused() -> None:
    with pytest.raises(UsageError, match="text model must not run while another is"):
        load(idle_unload_s=60, text_model="demo-text")


# With the bundled model


@pytest.fixture
def client() -> Iterator[TestClient]:
    settings = Settings(model="tiny.en", jobs=False, drain_s=0, idle_unload_s=0.4, device="cpu")
    app = create_app(settings, Serving.of(settings), failed=lambda failure: None)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        until(lambda: app.state.serving.life.state == "ready", 120)
        yield client


def post(client: TestClient, seconds: float = 3) -> str:
    answer = client.post(TRANSCRIBE, files={"file": memo(seconds)}, data={"model": "whisper-1"})
    assert answer.status_code == 200, answer.text
    return answer.json()["text"]


def asleep(client: TestClient) -> None:
    idle = client.app.state.serving.idle
    until(lambda: idle.unloaded, 60)


def gauge(client: TestClient, name: str) -> float:
    registry = client.app.state.serving.metrics.registry
    return registry.get_sample_value(f"forescribe_{name}")


def resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_its_memory_is_free_and_the_next_request_waits_and_loses_nothing(client) -> None:
    serving = client.app.state.serving
    first = post(client)
    until(lambda: gauge(client, "rounds_total"))  # told behind the answer
    rounds = gauge(client, "rounds_total")
    with serving.idle.hold():
        used = resident()
        assert gauge(client, "model_loaded") == 1 and client.get("/ready").text == "OK"
    asleep(client)
    until(lambda: resident() < used - 60e6, 20)  # measured: 190 MB less
    assert serving.session is None and serving.life.state == "ready"
    assert client.get("/health").text == "OK"
    told = client.get("/ready")
    assert (told.status_code, told.text) == (
        200,
        "OK, and the next request waits until the model is loaded",
    )
    assert gauge(client, "model_loaded") == 0 and gauge(client, "ready") == 1
    assert (known := gauge(client, "rounds_total")) >= rounds, "counters go on"
    assert client.get("/v1/models").status_code == 200
    refused = client.post(TRANSCRIBE, files={"file": memo(1)}, data={"language": "xx"})
    assert refused.status_code == 400  # known without the model
    assert post(client) == first and first
    assert gauge(client, "model_loaded") == 1
    until(lambda: gauge(client, "rounds_total") > known)


def test_requests_that_come_while_it_leaves_and_comes_back_all_have_their_text(
    tmp_path, transcriber, decoders
) -> None:
    """Bursts around the moment of unloading, with a model that loads at once."""
    with application(tmp_path, transcriber, decoders, idle_unload_s=0.02) as client:
        serving, said, unloads = client.app.state.serving, set(), []
        until(lambda: serving.life.state == "ready")
        unload = serving.idle._unload
        serving.idle._unload = lambda: (unloads.append(1), unload())

        def one(number: int) -> str:
            time.sleep(number * 0.013)
            answer = client.post(TRANSCRIBE, files={"file": memo(1)}, data=FORM)
            assert answer.status_code == 200, answer.text
            return answer.json()["text"]

        with ThreadPoolExecutor(4) as pool:
            for pause_s in (0.0, 0.01, 0.02, 0.03):
                said |= set(pool.map(one, range(8)))
                until(lambda: serving.idle.unloaded, 20)
                time.sleep(pause_s)
        assert len(said) == 1 and len(unloads) >= 4


def test_a_job_wakes_it_and_keeps_it(tmp_path, transcriber, decoders) -> None:
    with application(tmp_path, transcriber, decoders, idle_unload_s=0.05) as client:
        serving = client.app.state.serving
        until(lambda: serving.life.state == "ready")
        until(lambda: serving.idle.unloaded, 20)
        job = submit(client, memo(3)).json()["id"]
        assert ended(client, job)["state"] == "succeeded"
        until(lambda: serving.idle.unloaded, 20)
