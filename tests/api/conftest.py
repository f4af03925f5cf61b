"""A service in memory: the whole application over a Whisper with random weights."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import soundfile
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from forescribe.api.app import create_app
from forescribe.api.jobs import database
from forescribe.api.process import Failure
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.whisper import Whisper
from forescribe.diarize.diarizer import (
    Bounds,
    Diarization,
    Engine,
    Samples,
    StageHook,
    Voice,
    ignore_progress,
)
from forescribe.diarize.turns import Turns
from forescribe.speculative.device import choose
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders

RATE = 16_000
SAMPLE = Path(__file__).parents[2] / "samples" / "memo.flac"

TRANSCRIBE = "/v1/audio/transcriptions"
FORM = {"model": "random", "language": "de", "temperature": "0.5"}
"""For the model of these tests: one try a window."""

Service = Callable[..., TestClient]


def sound(seconds: float, seed: int = 0, rate: int = RATE) -> bytes:
    """A wav file that the detector takes for speech."""
    rng, t = np.random.default_rng(seed), np.arange(round(rate * seconds))
    samples = 0.3 * np.sin(t * rng.uniform(0.02, 0.3)) + 0.1 * rng.standard_normal(len(t))
    return wav(samples, rate)


def silence(seconds: float) -> bytes:
    return wav(np.zeros(round(RATE * seconds)))


def memo(seconds: float) -> bytes:
    """The beginning of the sample that ships, as a wav file."""
    samples, rate = soundfile.read(SAMPLE, stop=round(seconds * RATE), dtype="float32")
    assert rate == RATE
    return wav(samples)


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples.astype(np.float32), rate, format="WAV")
    return file.getvalue()


class Halves:
    """A diarizer whose speakers each speak half of the time, with distinct voices."""

    engine = Engine("halves", encoder="axes")

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook = ignore_progress
    ) -> Diarization:
        count = bounds.exactly or 2 if bounds else 2
        length = len(samples) // count
        spans = [(i * length, (i + 1) * length, f"s{i}") for i in range(count) if length]
        axes = np.eye(2, dtype=np.float32)
        voices = tuple(Voice(name, axes[i], length) for i, (_, _, name) in enumerate(spans))
        turns = Turns.of(spans)
        return Diarization.of(turns, turns, voices, len(samples), self.engine)


@pytest.fixture(scope="session", autouse=True)
def no_waits() -> Iterator[None]:
    """Nothing waits for the disk: what a process has handed to the system outlives it, and no test cuts the
    power. `test_storage` says that the service waits."""
    with pytest.MonkeyPatch.context() as patch:
        configure = database._configure_sqlite

        def unsynced(connection: Any, record: object) -> None:
            configure(connection, record)
            connection.execute("PRAGMA synchronous=OFF")

        patch.setattr(database, "_configure_sqlite", unsynced)
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def held(transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The engine stands still until `held.set()`."""
    go, step = threading.Event(), transcriber.engine.step
    monkeypatch.setattr(transcriber.engine, "step", lambda: step() if go.wait(0.01) else [])
    return go


@pytest.fixture(scope="session")
def whisper(tmp_path_factory) -> Whisper:
    folder = tmp_path_factory.mktemp("weights") / "target"
    return load(Pair(folders.write(folder, max_target_positions=24)), choose("cpu"))


@pytest.fixture(scope="session")
def transcriber(whisper: Whisper) -> Transcriber:
    """For one serving at a time."""
    return Transcriber(whisper, batch=4, gamma=2, detector=EnergyDetector())


@pytest.fixture
def service(transcriber: Transcriber, decoders: Decoders) -> Iterator[Service]:
    """`service(**settings)` starts one; it is ready when it is handed out."""
    failures: list[Failure] = []
    with ExitStack() as running:

        def start(
            load: Callable[[], Transcriber] = lambda: transcriber, **given: Any
        ) -> TestClient:
            settings = Settings(**{"model": "random", "drain_s": 0.0, **given})
            serving = Serving(settings, load, Halves, decoders)
            app = create_app(settings, serving, failed=failures.append)
            app.state.failures = failures
            client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
            return running.enter_context(client)

        def ready(**given: Any) -> TestClient:
            client = start(**given)
            until(lambda: client.app.state.serving.life.state == "ready")
            return client

        ready.loading = start  # type: ignore[attr-defined]
        yield ready


def keyed(key: str) -> dict[str, str]:
    """The header of a client with this key."""
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def served(app: FastAPI, lifespan: Literal["on", "off"] = "on", **options: Any) -> Iterator[str]:
    """The application at an address of this machine, in a thread; it has ended afterwards. `options` are
    further ones of uvicorn."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan=lifespan, **options))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for another thread; the last look decides."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()
