"""RayFleet on a module that stands in for Ray: the few calls that are used, and what becomes of errors."""

from __future__ import annotations

import signal
import time
import types
from contextlib import contextmanager

import pytest

from forescribe.asr.decode.options import Options
from forescribe.asr.errors import ModelError, UsageError
from forescribe.asr.records.sources import Source
from forescribe.cluster import ray_fleet
from forescribe.cluster.order import WorkOrder
from forescribe.cluster.ray_fleet import (
    Lost,
    RayFleet,
    RayWorker,
    Refused,
    Reported,
    Slot,
    Started,
    plan_slots,
)
from forescribe.cluster.worker import Report

ORDER = WorkOrder("1", {}, Options())
LOADED = None  # the answer of a worker that has loaded its models
M1 = "m1 (Ray node aaaaaaaaaaaa)"


class RayError(Exception):
    preempted = False


class FakeRay:
    """Calls end at once, with what `answers` has next; an exception is raised by `get`."""

    def __init__(self, *answers, resources=None, more=None) -> None:
        self.answers = list(answers)
        self.more = more or {}  # of a second machine
        self.place: str | RayError = M1
        self.resources = resources or {"CPU": 8.0}
        self.exceptions = types.SimpleNamespace(RayError=RayError)
        self.options: dict = {}
        self.killed: list = []
        self.calls: list = []
        self.waited: list[float] = []

    def nodes(self):
        names = {"NodeID": "a" * 56, "NodeManagerHostname": "m1", "NodeManagerAddress": "10.0.0.1"}
        other = {"NodeID": "b" * 56, "NodeManagerHostname": "m2", "NodeManagerAddress": "10.0.0.2"}
        return [
            {"Alive": True, "Resources": self.resources, **names},
            {"Alive": bool(self.more), "Resources": self.more, **other},
        ]

    def cluster_resources(self):
        return self.resources

    def available_resources(self):
        return {"CPU": 1.0}

    def put(self, value):
        return value

    def remote(self, **options):
        self.options = options
        ray = self

        class Method:
            def __init__(self, name) -> None:
                self.name = name

            def remote(self, *arguments):
                ray.calls.append((self.name, arguments))
                return f"call {len(ray.calls)}"

        class Actor:
            def __init__(self, order) -> None:
                self.load, self.exchange = Method("load"), Method("exchange")
                self.end, self.place = Method("end"), Method("place")

        class Kind:
            remote = Actor

            @staticmethod
            def options(**more):
                ray.options = {**options, **more}
                return Kind

        return lambda kind: Kind

    def wait(self, calls, *, num_returns, timeout):
        self.waited.append(timeout)
        return calls[:num_returns], calls[num_returns:]

    def get(self, call, timeout=None):
        number = int(call.removeprefix("call ")) - 1
        asked = self.calls[number][0] == "place"
        answer = self.place if asked else self.answers.pop(0)
        if isinstance(answer, RayError):
            raise answer
        return answer

    def kill(self, actor) -> None:
        self.killed.append(actor)


@pytest.fixture
def fleet_on(monkeypatch: pytest.MonkeyPatch):
    left = []

    def make(ray: FakeRay, **more) -> RayFleet:
        @contextmanager
        def connected(address, *, status):
            yield ray
            left.append(address)

        monkeypatch.setattr(ray_fleet, "connected", connected)
        fleet = RayFleet("auto", **more)
        fleet.left = left  # type: ignore[attr-defined]
        return fleet

    return make


def test_actors_are_never_restarted_by_ray(fleet_on) -> None:
    ray = FakeRay()
    fleet = fleet_on(ray)
    assert fleet.begin(ORDER) == 2
    assert ray.options == {"num_cpus": 4, "max_restarts": 0, "max_task_retries": 0}


def test_a_worker_starts_works_and_is_ended(fleet_on) -> None:
    ray = FakeRay(LOADED, Report(returned=("b",)))
    fleet = fleet_on(ray)
    fleet.begin(ORDER)
    worker = fleet.start()
    assert fleet.wait(0.5) == [Started(worker, M1)]
    fleet.exchange(worker, [Source("a")])
    assert ray.calls[-1] == ("exchange", ([Source("a")], ray_fleet.EXCHANGE_S))
    assert fleet.wait(0.5) == [Reported(worker, Report(returned=("b",)))]
    fleet.close()
    assert ray.calls[-1] == ("end", ())
    assert len(ray.killed) == 1
    assert fleet.left == ["auto"]


def test_without_calls_waiting_takes_its_time(fleet_on) -> None:
    fleet = fleet_on(FakeRay())
    fleet.begin(ORDER)
    began = time.monotonic()
    assert fleet.wait(0.05) == []
    assert time.monotonic() - began >= 0.05


def test_an_error_of_the_model_keeps_its_class(fleet_on) -> None:
    fleet = fleet_on(FakeRay(ModelError("no weights")))
    fleet.begin(ORDER)
    (event,) = [fleet.start(), *fleet.wait(0)][1:]
    assert isinstance(event, Refused) and isinstance(event.error, ModelError)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "The actor died.\nWorker exit type: SYSTEM_ERROR Worker exit detail: Killed for memory. More.",
            "Killed for memory",
        ),
        ("The actor is unavailable: connection reset\nmore", "connection reset"),
    ],
)
def test_a_dead_actor_is_a_lost_worker_with_rays_reason(fleet_on, text: str, reason: str) -> None:
    ray = FakeRay(RayError(text))
    fleet = fleet_on(ray)
    fleet.begin(ORDER)
    worker = fleet.start()
    (event,) = fleet.wait(0)
    assert isinstance(event, Lost)
    assert (event.worker, event.taken) == (worker, False)
    assert reason in event.reason
    assert len(ray.killed) == 1  # it may only have been out of reach


def test_a_preempted_machine_is_told_apart(fleet_on) -> None:
    error = RayError("gone")
    error.preempted = True
    fleet = fleet_on(FakeRay(error))
    fleet.begin(ORDER)
    fleet.start()
    (event,) = fleet.wait(0)
    assert isinstance(event, Lost) and event.taken


def test_a_machine_without_the_package_is_refused(fleet_on) -> None:
    fleet = fleet_on(FakeRay(RayError("died\nModuleNotFoundError: No module named 'forescribe'")))
    fleet.begin(ORDER)
    fleet.start()
    (event,) = fleet.wait(0)
    assert isinstance(event, Refused)
    assert "No module named 'forescribe'" in event.error.message


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (M1, "died"),
        (RayError("gone"), "The actor died.\n\tpid: 7\n\tip: 10.0.0.1\nKilled"),
        (RayError("gone"), "ray::RayWorker.__init__() (pid=7, ip=10.0.0.1, actor_id=3)\nboom"),
    ],
)
def test_no_worker_starts_on_a_machine_that_was_excluded(fleet_on, place, text: str) -> None:
    ray = FakeRay(RayError(text), LOADED, resources={"CPU": 4.0}, more={"CPU": 4.0})
    fleet = fleet_on(ray)
    assert fleet.begin(ORDER) == 1
    ray.place = place
    fleet.start()
    (event,) = fleet.wait(0)
    assert isinstance(event, Lost) and event.machine == M1
    fleet.exclude(event.machine)
    assert fleet.start() == 1
    assert ray.options["label_selector"] == {"ray.io/node-id": f"!in({'a' * 56})"}
    assert fleet.start() is None  # the other machine has room for one
    fleet.stop(1)
    assert fleet.start() == 2


def test_several_nodes_at_one_address_are_named_by_it_and_excluded_together(fleet_on) -> None:
    ray = FakeRay(RayError("died, ip=10.0.0.1"), more={"CPU": 8.0})
    nodes = [node | {"NodeManagerAddress": "10.0.0.1"} for node in ray.nodes()]
    ray.nodes, ray.place = lambda: nodes, RayError("gone")  # type: ignore[method-assign]
    fleet = fleet_on(ray)
    fleet.begin(ORDER)
    fleet.start()
    (event,) = fleet.wait(0)
    assert isinstance(event, Lost) and event.machine == "10.0.0.1"
    fleet.exclude(event.machine)
    assert fleet.start() is None


def test_a_machine_that_nobody_knows_has_no_name(fleet_on) -> None:
    ray = FakeRay(RayError("died, ip=10.9.9.9"))
    ray.place = RayError("gone")
    fleet = fleet_on(ray)
    fleet.begin(ORDER)
    fleet.start()
    (event,) = fleet.wait(0)
    assert isinstance(event, Lost) and event.machine == ""


@pytest.mark.parametrize(
    ("slot", "resources", "room"),
    [
        (Slot("GPU"), {"CPU": 64.0, "GPU": 8.0}, 8),
        (Slot("GPU"), {"CPU": 4.0, "GPU": 8.0}, 4),
        (Slot("GPU"), {"CPU": 4.0}, 0),
        (Slot("CPU", 4), {"CPU": 10.0}, 2),
    ],
)
def test_the_room_of_a_machine(slot: Slot, resources: dict, room: int) -> None:
    assert slot.fit(resources) == room


def test_calls_of_an_ended_worker_are_not_waited_for(fleet_on) -> None:
    ray = FakeRay(LOADED)
    fleet = fleet_on(ray)
    fleet.begin(ORDER)
    worker = fleet.start()
    fleet.stop(worker)
    assert fleet.wait(0) == []
    assert ray.waited == []


def test_the_message_of_a_shortage_names_need_and_stock(fleet_on) -> None:
    fleet = fleet_on(FakeRay(resources={"CPU": 8.0, "GPU": 2.0}))
    fleet.begin(ORDER)
    text = (
        "each needs 1 GPU and 1 core; the cluster has 8 CPU, 2 GPU, of which 1 CPU, 0 GPU is free"
    )
    assert fleet.shortage() == text


@pytest.mark.parametrize(
    ("resources", "options", "expected"),
    [
        ({"CPU": 64.0, "GPU": 8.0}, {}, (Slot("GPU"), 8)),
        ({"CPU": 64.0, "GPU": 8.0}, {"workers": 3}, (Slot("GPU"), 3)),
        ({"CPU": 64.0, "HPU": 8.0}, {}, (Slot("HPU"), 8)),
        ({"CPU": 64.0, "GPU": 8.0}, {"device": "cpu"}, (Slot("CPU", 4), 16)),
        ({"CPU": 2.0}, {}, (Slot("CPU", 2), 1)),
        ({"CPU": 2.0}, {"workers": 2}, (Slot("CPU", 1), 2)),
        ({"CPU": 64.0}, {"threads": 8}, (Slot("CPU", 8), 8)),
        ({"CPU": 64.0}, {"threads": 8, "workers": 2}, (Slot("CPU", 8), 2)),
        ({"CPU": 2.0}, {"workers": 5}, (Slot("CPU", 1), 5)),
        ({"CPU": 8.0}, {"device": "cuda", "workers": 2}, (Slot("GPU"), 2)),  # of an autoscaler
    ],
)
def test_slots(resources: dict, options: dict, expected: tuple) -> None:
    largest = min(16, int(resources["CPU"]))
    given = {"device": "auto", "workers": None, "threads": 0} | options
    assert plan_slots(resources, largest, **given) == expected


@pytest.mark.parametrize("device", ["cuda:1", "mps", "cuda"])
def test_devices_that_a_cluster_does_not_give(device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device}"):
        plan_slots({"CPU": 4.0}, 4, device=device, workers=None, threads=0)


def test_slots_ask_ray_for_accelerators() -> None:
    assert Slot("GPU").options["num_gpus"] == 1
    assert Slot("HPU").options["resources"] == {"HPU": 1}


def test_sigterm_makes_a_worker_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray: the look at the node needs it."""
    monkeypatch.setattr(RayWorker, "_watch_node", lambda self: None)
    ended = []
    monkeypatch.setattr(ray_fleet.os, "_exit", ended.append)
    monkeypatch.setattr(ray_fleet, "LEAVE_S", 0.05)
    before = signal.getsignal(signal.SIGTERM)
    try:
        worker = RayWorker(ORDER)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        for _ in range(1000):
            if ended:
                break
            time.sleep(0.01)
        assert ended == [0]
        assert worker._leave_by_s is not None
    finally:
        signal.signal(signal.SIGTERM, before)
