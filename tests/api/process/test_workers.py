"""Workers: one is kept alive for each device, and all of them answer on one port."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from forescribe.api import workers
from forescribe.api.process import LASTING
from forescribe.api.settings import Settings
from forescribe.api.workers import Supervisor, bound, devices
from forescribe.asr.errors import UsageError

SPAWN = multiprocessing.get_context("spawn")


def answer(sockets: list[socket.socket]) -> None:
    """A worker without a model: says which process it is."""

    def who(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(os.getpid()))

    app = Starlette(routes=[Route("/", who)])
    uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off")).run(sockets)


def hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def until(holds: Callable[[], object]) -> None:
    """Not the one of `conftest`, for which every process here would import torch."""
    end_s = time.monotonic() + 300
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert holds()


@contextmanager
def supervised(*acts, grace_s: float = 10.0):
    supervisor = Supervisor([partial(SPAWN.Process, target=act) for act in acts], grace_s)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert all(process.exitcode is not None for process in supervisor.processes)


@pytest.mark.slow
def test_processes_answer_on_one_port_and_each_on_its_own_and_are_started_again(
    monkeypatch,
) -> None:
    monkeypatch.setattr(workers, "RESTART_S", 0.1)
    settings = Settings(port=0)
    with bound(settings) as shared, bound(settings) as one, bound(settings) as two:
        acts = [partial(answer, [shared, own]) for own in (one, two)]
        with supervised(*acts):

            def asked(at: socket.socket) -> int:
                try:
                    url = f"http://127.0.0.1:{at.getsockname()[1]}"
                    return int(httpx.get(url, timeout=10, trust_env=False).text)
                except httpx.TransportError:
                    return 0

            until(lambda: asked(one) and asked(two))
            first, second = asked(one), asked(two)
            assert 0 != first != second != 0 and asked(shared) in (first, second)
            os.kill(first, signal.SIGKILL)
            until(lambda: asked(one) not in (0, first))
            assert asked(two) == second


@pytest.mark.slow
def test_a_worker_that_never_will_start_ends_all() -> None:
    with supervised(partial(sys.exit, LASTING), hang, grace_s=0.5) as supervisor:
        until(lambda: all(process.exitcode is not None for process in supervisor.processes))
        assert supervisor.hopeless


@pytest.mark.slow
def test_a_second_signal_ends_who_does_not_listen() -> None:
    with supervised(hang, grace_s=600) as supervisor:
        until(lambda: bool(supervisor.processes) and supervisor.processes[0].is_alive())
        supervisor.stop()


@pytest.mark.parametrize(
    ("device", "there", "expected"),
    [
        ("cuda", 2, ["cuda:0", "cuda:1"]),
        ("hpu", 8, ["hpu", "hpu"]),  # Gaudi's runtime gives each its own
        ("cuda", 1, "2 workers, but 1 devices"),
        ("cuda:1", 2, "cuda:1 is a single device"),
        ("cpu", 1, "share_device"),
    ],
)
def test_a_device_for_each_or_a_word(device, there, expected, monkeypatch) -> None:
    monkeypatch.setattr("forescribe.speculative.device.device_count", lambda kind: there)
    settings = Settings(workers=2, device=device)
    if isinstance(expected, list):
        assert devices(settings) == expected
        return
    with pytest.raises(UsageError, match=expected):
        devices(settings)


def test_one_device_for_all_where_that_is_asked_for() -> None:
    assert devices(Settings(workers=3, device="cpu", share_device=True)) == ["cpu"] * 3


def test_an_address_that_is_taken_is_a_word() -> None:
    with bound(Settings(port=0)) as taken:
        with pytest.raises(UsageError, match="cannot listen on 127.0.0.1"):
            bound(Settings(port=taken.getsockname()[1])).close()
