"""Settings without a restart: what changes at once, what is named, and what a mistake leaves alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from forescribe.api.access.keys import digest, new_key
from forescribe.api.access.limits import Admission, Client
from forescribe.api.app import use_settings
from forescribe.api.errors import ApiError
from forescribe.api.process.workers import Supervisor, Worker
from forescribe.api.settings import Settings, load
from forescribe.api.settings_reload import RELOADABLE, Reloaded, Reloader
from tests.api.conftest import FORM, TRANSCRIBE, keyed, sound, until

KEY, OTHER = new_key(), new_key()


def write(file: Path, text: str = "", **keys: str) -> Path:
    """A settings file with keys, replaced at once as operators do."""
    lines = [f'{name} = "{digest(key)}"' for name, key in keys.items()]
    new = file.with_suffix(".new")
    new.write_text("\n".join([text, "[api_keys]", *lines]))
    return new.replace(file)


@pytest.fixture
def file(tmp_path) -> Path:
    return write(tmp_path / "service.toml", 'model = "random"', team=KEY)


@pytest.fixture
def client(service, file, monkeypatch):
    """A service whose settings come from the file, with `reload`."""
    read = load(file, drain_s=0.0)
    monkeypatch.setattr("tests.api.conftest.Settings", lambda **given: read)
    client = service()
    reloader = Reloader(read, lambda: use_settings(client.app))
    client.reload = reloader.reload
    yield client
    reloader.stop()


def post(client, key: str = KEY):
    return client.post(TRANSCRIBE, files={"file": sound(1)}, data=FORM, headers=keyed(key))


def test_keys_and_limits_change_at_once(client, file) -> None:
    assert post(client).status_code == 200 and post(client, OTHER).status_code == 401
    write(file, 'model = "random"\nmax_audio_s = 0.5\naliases = ["mine"]', other=OTHER)
    assert client.reload() == Reloaded(("aliases", "api_keys", "max_audio_s"))
    assert post(client).status_code == 401
    assert post(client, OTHER).json()["error"]["code"] == "audio_too_long"
    models = client.get("/v1/models", headers=keyed(OTHER)).json()["data"]
    assert [model["id"] for model in models] == ["random", "mine"]


def test_what_cannot_change_is_named_and_keeps_its_value(client, file, caplog) -> None:
    write(file, 'model = "large"\nbatch_size = 3\nport = 9\nmax_requests = 7', team=KEY)
    with caplog.at_level("INFO"):
        result = client.reload()
    assert result.changed == ("max_requests",)
    assert set(result.needs_restart) == {"model", "batch_size", "port"}
    settings = client.app.state.settings
    assert (settings.model, settings.batch_size, settings.max_requests) == ("random", 8, 7)
    (told,) = [json.loads(m) for m in caplog.messages if '"settings reloaded"' in m]
    assert told["changed"] == ["max_requests"]
    assert set(told["needs_restart"]) == {"model", "batch_size", "port"}


@pytest.mark.parametrize(
    "text",
    [
        "max_requests = 0",
        "max_requests = ",
        "no_such_setting = 1",
        "allowed_origins = ['nonsense']",
        "jobs = false\n[api_keys.team]\nrequests_per_day = 1\nhash = '" + digest(KEY) + "'",
    ],
)
def test_a_mistake_leaves_everything_as_it_was(client, file, caplog, text) -> None:
    before = client.app.state.settings.model_dump()
    file.write_text(f"{text}\n")
    with caplog.at_level("INFO"):
        result = client.reload()
    assert result.refused and result.changed == ()
    assert client.app.state.settings.model_dump() == before
    assert post(client).status_code == 200
    (told,) = [json.loads(m) for m in caplog.messages if "settings not reloaded" in m]
    assert told["reason"] == result.refused
    file.unlink()
    assert "no such settings file" in (client.reload().refused or "")


def test_keys_do_not_all_disappear_at_once(client, file) -> None:
    """Without keys other checks hold, and those were chosen at the start."""
    file.write_text('model = "random"\n')
    assert "need a restart" in (client.reload().refused or "")
    assert post(client).status_code == 200 and client.get("/v1/models").status_code == 401


def test_requests_in_progress_go_on(client, file, held) -> None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(client)))
    thread.start()
    admission = client.app.state.serving.admission
    until(lambda: admission.requests == 1)
    write(file, 'model = "random"\nmax_requests = 1\nmax_upload_bytes = 10', other=OTHER)
    assert client.reload().refused is None
    assert post(client, OTHER).status_code == 503  # the new limit, full of the old request
    held.set()
    thread.join()
    assert answers[0].status_code == 200 and admission.requests == 0
    assert post(client, OTHER).json()["error"]["code"] == "file_too_large"


def test_what_was_used_of_a_limit_still_counts() -> None:
    def settings(**rights) -> Settings:
        return Settings(api_keys={"team": {"hash": digest(KEY), **rights}})

    live = settings(requests_per_minute=3)
    admission = Admission(live, lambda: 1000.0)
    for _ in range(3):
        admission.start(Client("team")).release()
    for most, allowed in ((3, False), (4, True), (4, False)):
        keys = settings(requests_per_minute=most, audio_s_per_hour=5).api_keys
        object.__setattr__(live, "api_keys", keys)
        admission.use_limits()
        if allowed:
            admission.start(Client("team")).release()
        else:
            with pytest.raises(ApiError, match="requests in 60 s"):
                admission.start(Client("team"))
    admission.charge("team", 5)


def test_a_changed_file_is_noticed(client, file, monkeypatch) -> None:
    settings = client.app.state.settings
    object.__setattr__(settings, "watch_settings_s", 0.05)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    reloader = Reloader(settings, lambda: use_settings(client.app))
    reloader.install()
    write(file, 'model = "random"', other=OTHER)
    until(lambda: client.get("/v1/models", headers=keyed(OTHER)).status_code == 200)
    reloader.stop()


def test_only_settings_that_are_read_at_each_use_can_be_reloaded() -> None:
    assert set(RELOADABLE) <= set(Settings.model_fields) and len(set(RELOADABLE)) == len(RELOADABLE)
    page = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    rows = page.read_text(encoding="utf-8").splitlines()
    marked = {row.split("`")[1] for row in rows if re.match(r"- `\w+` R\b", row)}
    assert marked == set(RELOADABLE)


def test_the_supervisor_passes_the_signal_on(monkeypatch) -> None:
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    supervisor = Supervisor(lambda index: None, 3, 5.0)
    processes = (SimpleNamespace(pid=5), None, SimpleNamespace(pid=7))
    supervisor.workers = [Worker(i, process) for i, process in enumerate(processes)]
    supervisor.reload(signal.SIGHUP, None)
    assert sent == [(5, signal.SIGHUP), (7, signal.SIGHUP)] and not supervisor.stopping


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_running_service_reloads_at_sighup(tmp_path, workers) -> None:
    """With two workers, both do."""
    file = tmp_path / "service.toml"
    text = f"workers = {workers}\nshare_device = true\njobs = false\nannounce_s = 0\ndrain_s = 0"
    write(file, text, team=KEY)
    command = "from forescribe.cli.main import main; main()"
    arguments = ["serve", "--model", "tiny.en", "--port", "0", "--settings", str(file)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    try:
        assert process.stderr is not None
        stderr = process.stderr
        threading.Thread(
            target=lambda: lines.extend(iter(stderr.readline, "")), daemon=True
        ).start()
        until(lambda: sum('"ready"' in line for line in lines) == workers, 240)
        (url,) = [line.split()[1] for line in lines if line.startswith("forescribe: http")]

        def status(key: str) -> int:
            return httpx.get(f"{url}/v1/models", headers=keyed(key)).status_code

        assert status(KEY) == 200
        write(file, text, other=OTHER)
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: sum("settings reloaded" in line for line in lines) == workers, 60)
        assert [status(OTHER) for _ in range(8)] == [200] * 8
        assert [status(KEY) for _ in range(8)] == [401] * 8
        file.write_text("no_such = 1")
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: sum("settings not reloaded" in line for line in lines) == workers, 60)
        assert status(OTHER) == 200 and process.poll() is None
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()
