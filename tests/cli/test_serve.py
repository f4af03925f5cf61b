"""The command: `serve` and `key` stand beside asr's own, and cost nothing where they are not used."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forescribe.api import workers
from forescribe.api.settings import Settings, load
from forescribe.cli import main
from forescribe.cli.service import ServeOptions, WorkerOptions

ROOT = Path(__file__).parents[2]


def test_serve_hands_its_options_to_the_settings(monkeypatch, tmp_path) -> None:
    file, ran = tmp_path / "service.toml", list[Settings]()
    file.write_text("max_requests = 7\nport = 1\n")
    monkeypatch.setattr(workers, "run", lambda settings, listening: ran.append(settings))
    monkeypatch.setattr(workers, "bound", lambda chosen: socket.create_server(("127.0.0.1", 0)))
    options = ["--model", "tiny.en", "--port", "2", "--batch-size", "3", "--settings", str(file)]
    options += ["--data-dir", str(tmp_path / "data")]
    result = CliRunner().invoke(main.app, ["serve", *options])
    assert result.exit_code == 0, result.output
    (made,) = ran
    given = {"model": "tiny.en", "port": 2, "batch_size": 3, "data_dir": tmp_path / "data"}
    assert made.model_dump() == load(file, **given).model_dump()
    assert (made.max_requests, made.port, made.batch_size) == (7, 2, 3)
    assert made.data_folder == tmp_path / "data"


@pytest.mark.parametrize("record", [ServeOptions, WorkerOptions])
def test_options_of_the_service_are_settings_with_their_defaults(record) -> None:
    no_settings = {"settings", "until_idle"}
    if record is WorkerOptions:
        no_settings |= {"port"}  # a worker listens only where it is asked to
    for field in (f for f in fields(record) if f.name not in no_settings):
        setting = Settings.model_fields[field.name]
        shown = field.metadata["cli"].shown
        assert field.default is None, field.name
        assert setting.default is None or shown in (None, str(setting.default)), field.name


def test_a_port_that_is_taken_is_told_before_anything_heavy_is_imported(tmp_path) -> None:
    heavy = {"torch", "transformers", "fastapi", "uvicorn", "av", "sqlalchemy"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = (
            "import atexit, sys\n"
            f"atexit.register(lambda: print(*sorted({heavy!r} & sys.modules.keys())))\n"
            f"sys.argv = ['forescribe', 'serve', '--port', '{port}']\n"
            "from forescribe.cli.main import main\n"
            "main()\n"
        )
        environment = {**os.environ, "FORESCRIBE_DATA_DIR": str(tmp_path)}
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
        )
    assert run.returncode == 2 and run.stdout.split() == [], run.stderr
    (line,) = run.stderr.strip().splitlines()
    assert f"cannot listen on 127.0.0.1:{port}" in line and "--port" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "arguments", "spins"),
    [
        ({}, ["models"], "3000"),
        ({"GOMP_SPINCOUNT": "7"}, ["models"], "7"),
        ({"OMP_WAIT_POLICY": "passive"}, ["models"], None),
    ],
)
def test_helpers_wait_briefly_where_nobody_says_otherwise(monkeypatch, given, arguments, spins):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    seen = []
    run = lambda *_, **__: seen.append(os.environ.get("GOMP_SPINCOUNT"))  # noqa: E731
    monkeypatch.setattr(type(main.command()), "__call__", run)
    monkeypatch.setattr(sys, "argv", ["forescribe", *arguments])
    main.main()
    assert seen == [spins]


@pytest.mark.slow
def test_a_server_that_is_told_to_stop_stops(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["serve", "--model", "tiny.en", "--port", str(port)]
    command = [sys.executable, "-m", "forescribe", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORESCRIBE_")}
    environment["FORESCRIBE_DATA_DIR"] = str(tmp_path)  # jobs are on, and not at home
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as running:
        try:
            end = time.monotonic() + 120
            while not _ready(port):
                assert running.poll() is None and time.monotonic() < end
                time.sleep(0.2)
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == -signal.SIGTERM  # as the sender expects
    assert b"Traceback" not in errors


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
