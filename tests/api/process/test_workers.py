"""Workers: one is kept alive for each device, and all of them give the same answers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

import httpx
import pytest

from forescribe.api.process.forward import WorkerAddress
from forescribe.api.process.listening_socket import bound
from forescribe.api.process.models import LASTING
from forescribe.api.process.workers import (
    MAX_WAIT_S,
    MIN_WAIT_S,
    STABLE_AFTER_S,
    Supervisor,
    Worker,
    devices,
)
from forescribe.api.settings import Settings
from forescribe.asr.errors import UsageError
from tests.api.access import seats
from tests.api.conftest import until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A process that lives until it is told."""

    sentinel = 0

    def __init__(self, index: int, stubborn: bool = False) -> None:
        self.index, self.exitcode, self.stubborn, self.said = index, None, stubborn, []

    def start(self) -> None:
        self.said.append("start")

    def terminate(self) -> None:
        self.said.append("terminate")
        if not self.stubborn:
            self.exitcode = -signal.SIGTERM

    def kill(self) -> None:
        self.said.append("kill")
        self.exitcode = -signal.SIGKILL

    def join(self, timeout: float | None = None) -> None:
        self.said.append("join")


@pytest.fixture
def house():
    made, clock = [], Clock()

    def make(index: int) -> Fake:
        made.append(Fake(index))
        return made[-1]

    supervisor = Supervisor(make, 2, 5.0, clock)
    supervisor.workers = [Worker(0), Worker(1)]
    return supervisor, made, clock


def test_who_dies_young_is_started_later_each_time(house) -> None:
    supervisor, made, clock = house
    supervisor.check()
    assert [process.index for process in made] == [0, 1]
    waits = []
    for _ in range(8):
        made[-1].exitcode = 1
        died = clock.now
        supervisor.check()
        while supervisor.workers[1].process is None:
            clock.now += 0.25
            supervisor.check()
        waits.append(clock.now - died)
    assert waits[:4] == [MIN_WAIT_S, 2, 4, 8] and waits[-1] == MAX_WAIT_S
    assert supervisor.workers[0].process is made[0]  # the other never noticed


def test_who_has_lived_long_is_started_at_once_again(house) -> None:
    supervisor, made, clock = house
    supervisor.check()
    for _ in range(3):
        clock.now += STABLE_AFTER_S
        made[-1].exitcode = -signal.SIGKILL
        supervisor.check()
        clock.now += MIN_WAIT_S
        supervisor.check()
        assert supervisor.workers[1].process is made[-1]
    assert len(made) == 5


def test_who_never_will_start_ends_the_house(house) -> None:
    supervisor, made, clock = house
    supervisor.check()
    made[0].exitcode = LASTING
    supervisor.check()
    clock.now += 2 * MAX_WAIT_S
    supervisor.check()
    assert supervisor.hopeless and len(made) == 2


def test_at_the_end_all_are_told_and_who_does_not_listen_is_ended(house) -> None:
    supervisor, made, _ = house
    supervisor.check()
    made[0].stubborn = True
    supervisor.end()
    assert made[0].said[-3:] == ["join", "kill", "join"] and "kill" not in made[1].said
    assert all(process.exitcode is not None for process in made)


def test_a_second_signal_ends_all_workers_at_once(house) -> None:
    supervisor, made, _ = house
    supervisor.check()
    supervisor.stop(signal.SIGTERM, None)
    assert all(process.exitcode is None for process in made)
    supervisor.stop(signal.SIGTERM, None)
    assert all(process.said[-1] == "kill" for process in made)


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
def test_a_device_for_each_or_a_word(device, there, expected) -> None:
    settings = Settings(workers=2, device=device)
    if isinstance(expected, list):
        assert devices(settings, lambda kind: there) == expected
        return
    with pytest.raises(UsageError, match=expected):
        devices(settings, lambda kind: there)


def test_one_device_for_all_where_that_is_asked_for() -> None:
    assert devices(Settings(workers=3, device="cpu", share_device=True)) == ["cpu"] * 3


def test_an_address_that_is_taken_is_a_word() -> None:
    with bound(Settings(port=0)) as taken:
        with pytest.raises(UsageError, match="cannot listen on 127.0.0.1"):
            bound(Settings(port=taken.getsockname()[1])).close()


@pytest.mark.slow
def test_processes_answer_behind_one_address_and_are_started_again(tmp_path) -> None:
    """Real processes without a model: if one is killed, another answers; worker 0 has the jobs."""
    context = multiprocessing.get_context("spawn")
    with bound(Settings(port=0)) as shared:

        def make(index: int):
            given = (WorkerAddress(index, 2, str(tmp_path)), shared)
            return context.Process(target=seats.work, args=given)

        supervisor = Supervisor(make, 2, grace_s=10)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        base = f"http://127.0.0.1:{shared.getsockname()[1]}"
        try:
            with httpx.Client(base_url=base, timeout=120, trust_env=False) as client:
                until(lambda: _up(client, 0) and _up(client, 1), 300)

                answer = client.post(
                    "/v1/jobs", content=b"x" * 300_000, headers={"authorization": "Bearer k"}
                )
                assert answer.status_code == 202 and answer.json() == {"worker": 0, "size": 300_000}
                assert answer.headers["location"] == "/v1/jobs/1"
                assert answer.headers["x-seen"] == "Bearer k"
                # From worker 1, by its own socket, whichever worker accepts on the shared port.
                uds = httpx.HTTPTransport(uds=WorkerAddress(1, 2, str(tmp_path)).path(1))
                with httpx.Client(transport=uds, base_url="http://localhost", timeout=120) as one:
                    assert one.get("/").json()["worker"] == 1
                    assert one.post("/v1/jobs", content=b"abc").json() == {"worker": 0, "size": 3}
                    text = one.get("/v1/jobs/1/events").text
                    assert text.count('"worker": 0') == 3
                    assert one.get("/metrics?worker=0").json()["worker"] == 0
                    assert one.get("/metrics?worker=7").status_code == 404

                killed = client.get("/metrics?worker=1").json()["pid"]
                os.kill(killed, signal.SIGKILL)
                for _ in range(5):
                    with httpx.Client(base_url=base, timeout=120, trust_env=False) as other:
                        assert other.get("/").json()["pid"] != killed
                until(lambda: _up(client, 1) not in (0, killed), 300)
        finally:
            supervisor.stopping = True
            thread.join(60)
        assert not thread.is_alive()
        assert all(w.process is None or w.process.exitcode is not None for w in supervisor.workers)


def _up(client: httpx.Client, index: int) -> int:
    """A worker's process id; 0 where it does not answer."""
    try:
        answer = client.get(f"/metrics?worker={index}")
    except httpx.TransportError:
        return 0
    return answer.json()["pid"] if answer.status_code == 200 else 0
