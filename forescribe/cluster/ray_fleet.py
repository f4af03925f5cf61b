"""RayFleet: workers by number, as Ray actors: one for each accelerator or each share of a machine's cores.

A fleet starts workers, passes recordings to them and tells what has happened to them as events. Nothing here
waits, except `wait`. The `machine` of an event is a name for messages and for `exclude`, empty where it is
not known. Actors are not restarted by Ray, which would do so without end and without knowing which
recording was the reason: the run starts new ones. The only module of a batch run, besides `ray_connection`,
that calls Ray.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from forescribe.asr.child_process import portable
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.asr.records.sources import Source
from forescribe.speculative.errors import SpeculativeError

from .order import WorkOrder
from .ray_connection import connected
from .worker import ClusterWorker, Report, prepared_worker

EXCHANGE_S = 1.0
"""How long an exchange waits for news, on the worker."""

DRAIN_S = 20.0
"""Seconds for what has begun when a machine is taken away; the process ends after `LEAVE_S` at the latest."""

LEAVE_S = 25.0

PLACE_S = 5.0
"""Seconds for the answer of a call that has ended."""

END_S = 3.0
"""Seconds for workers to clean up at the end of a run."""

NODE_POLL_S = 5.0

DEFAULT_SLICE = 4
"""Cores of a worker on machines without accelerators, unless the user says otherwise."""


@dataclass(frozen=True)
class Started:
    """A worker has loaded its models."""

    worker: int
    machine: str = ""


@dataclass(frozen=True)
class Refused:
    """A worker cannot do this run: the models or the recordings are missing there, the version is another
    one. It holds its place until it is stopped."""

    worker: int
    error: ForescribeError | SpeculativeError
    machine: str = ""


@dataclass(frozen=True)
class Reported:
    """The answer to an exchange."""

    worker: int
    report: Report


@dataclass(frozen=True)
class Lost:
    """A worker has died. `taken`: its machine was taken away."""

    worker: int
    reason: str
    taken: bool = False
    machine: str = ""


Event = Started | Refused | Reported | Lost


@dataclass(frozen=True)
class Slot:
    """What a worker takes of a machine."""

    kind: str  # GPU, HPU or CPU
    cpus: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """The options of its actor."""
        own: dict[str, Any] = {"num_cpus": self.cpus, "max_restarts": 0, "max_task_retries": 0}
        if self.kind == "GPU":
            return own | {"num_gpus": 1}
        return own | ({"resources": {self.kind: 1}} if self.kind != "CPU" else {})

    def fit(self, resources: dict[str, float]) -> int:
        """How many of them a machine with these resources has room for."""
        cpus = int(resources.get("CPU", 0)) // self.cpus
        return cpus if self.kind == "CPU" else min(cpus, int(resources.get(self.kind, 0)))

    def __str__(self) -> str:
        cores = f"{self.cpus} core{'s' * (self.cpus > 1)}"
        return cores if self.kind == "CPU" else f"1 {self.kind} and {cores}"


def plan_slots(
    resources: dict[str, float], largest: int, *, device: str, workers: int | None, threads: int
) -> tuple[Slot, int]:
    """What each worker takes and how many there are, for the resources of a cluster whose largest machine has
    `largest` cores. Raises UsageError for a device that the cluster cannot give."""
    kind = {"cuda": "GPU", "hpu": "HPU", "cpu": "CPU"}.get(device)
    if device == "auto":
        kind = next((name for name in ("GPU", "HPU") if resources.get(name, 0) >= 1), "CPU")
    if kind is None:
        raise UsageError(
            f"--device {device}: on a cluster Ray chooses the devices; use auto, cuda, hpu or cpu"
        )
    cores = max(1, int(resources.get("CPU", 1)))
    if kind != "CPU":
        count = workers or int(resources.get(kind, 0))
        if count < 1:
            raise UsageError(
                f"--device {device}: the cluster has no {kind}; add one, or use --workers"
            )
        return Slot(kind), count
    share = threads or (max(1, cores // workers) if workers else DEFAULT_SLICE)
    slot = Slot("CPU", min(share, max(1, largest)))
    return slot, workers or max(1, cores // slot.cpus)


class RayFleet:
    """Workers as actors on the cluster at `address`, which is connected by `begin` and left by `close`.

    `workers` is their number, None for as many as there is room for. `threads` are the cores of one on
    machines without accelerators, 0 for a number that suits them.
    """

    ray: Any
    slot: Slot

    def __init__(
        self,
        address: str,
        *,
        device: str = "auto",
        workers: int | None = None,
        threads: int = 0,
        status: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.address, self.device = address, device
        self.workers, self.threads, self.status = workers, threads, status
        self._connection = ExitStack()
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}  # the worker of each call under way
        self._places: dict[int, Any] = {}  # the call that asks a worker where it runs
        self._excluded: dict[str, set[str]] = {}  # machines, with their nodes
        self._next = 0

    def begin(self, order: WorkOrder) -> int:
        """Called once, before the first worker. Returns how many there can be. Raises UsageError and
        CapacityError where none can."""
        self.ray = self._connection.enter_context(connected(self.address, status=self.status))
        largest = max(
            (int(node["Resources"].get("CPU", 0)) for node in self._nodes()),
            default=0,
        )
        self.slot, workers = plan_slots(
            self.ray.cluster_resources(),
            largest,
            device=self.device,
            workers=self.workers,
            threads=self.threads,
        )
        if self.slot.kind == "CPU":
            order = replace(order, threads=self.slot.cpus)
        self.status(f"{workers} worker{'s' * (workers > 1)}, each with {self.slot}")
        self._order = self.ray.put(order)
        self._kind = self.ray.remote(**self.slot.options)(RayWorker)
        return workers

    def start(self) -> int | None:
        """Start a worker, as soon as there is room for one; `Started`, `Refused` or `Lost` follows. None
        where the machines that are not excluded have no room for it."""
        nodes = sorted(set().union(*self._excluded.values()))
        if nodes and len(self._actors) >= self._room(nodes):
            return None
        kind = self._kind
        if nodes:
            kind = kind.options(label_selector={"ray.io/node-id": f"!in({','.join(nodes)})"})
        worker, self._next = self._next, self._next + 1
        self._actors[worker] = actor = kind.remote(self._order)
        self._places[worker] = actor.place.remote()
        self._calls[actor.load.remote()] = worker
        return worker

    def _room(self, excluded: Sequence[str]) -> int:
        """How many workers the nodes that are not excluded have room for."""
        nodes = (n["Resources"] for n in self._nodes() if n["NodeID"] not in excluded)
        return sum(self.slot.fit(resources) for resources in nodes)

    def exclude(self, machine: str) -> None:
        """Start no more workers on a machine; those that run there go on."""
        self._excluded[machine] = {
            node["NodeID"] for node in self._nodes() if machine in _names(node)
        }

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def exchange(self, worker: int, sources: Sequence[Source]) -> None:
        """Pass recordings to a worker; `Reported` or `Lost` follows, within about a second unless the
        machine is busy."""
        self._calls[self._actors[worker].exchange.remote(list(sources), EXCHANGE_S)] = worker

    def wait(self, seconds: float) -> list[Event]:
        """What has happened, after at most this time."""
        if not self._calls:
            time.sleep(seconds)
            return []
        ended, _ = self.ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        return [self._event(call) for call in ended]

    def stop(self, worker: int) -> None:
        """End a worker. No event follows."""
        self._calls = {call: own for call, own in self._calls.items() if own != worker}
        self._places.pop(worker, None)
        actor = self._actors.pop(worker, None)
        if actor is not None:
            with suppress(Exception):  # it is gone already
                self.ray.kill(actor)

    def shortage(self) -> str:
        """What a worker needs and what there is, for a message when none starts."""
        total = self.ray.cluster_resources()
        names = ("CPU", "GPU", "HPU")
        there = (
            ", ".join(f"{total[name]:.0f} {name}" for name in names if total.get(name)) or "nothing"
        )
        free = self.ray.available_resources()
        left = (
            ", ".join(f"{free.get(name, 0):.0f} {name}" for name in names if total.get(name))
            or "nothing"
        )
        return f"each needs {self.slot}; the cluster has {there}, of which {left} is free"

    def close(self) -> None:
        """End all workers."""
        ends = [actor.end.remote() for actor in self._actors.values()]
        if ends:
            with suppress(Exception):  # those that are loading, or gone, are killed as they are
                self.ray.wait(ends, num_returns=len(ends), timeout=END_S)
        for worker in list(self._actors):
            self.stop(worker)
        self._connection.close()

    def _event(self, call: Any) -> Event:
        worker = self._calls.pop(call)
        try:
            answer = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            machine = self._machine(worker) or self._machine_in(str(error))
            self.stop(worker)
            missing = _missing_module(error)
            if missing is not None:
                return Refused(worker, missing, machine)
            taken = getattr(error, "preempted", False)
            return Lost(worker, _reason(error), taken=taken, machine=machine)
        if isinstance(answer, Report):
            return Reported(worker, answer)
        machine = self._machine(worker)
        if isinstance(answer, ForescribeError | SpeculativeError):
            return Refused(worker, answer, machine)
        return Started(worker, machine)

    def _machine(self, worker: int) -> str:
        """Where a worker runs that has answered a call, or has died; empty where it could not tell."""
        try:
            # The first of its calls, which has ended before any other.
            return str(self.ray.get(self._places[worker], timeout=PLACE_S))
        except self.ray.exceptions.RayError:
            return ""

    def _machine_in(self, text: str) -> str:
        """The machine that an error of Ray names by its address, which several nodes may have; empty where
        it names none."""
        found = re.search(r"\bip[:=] ?([0-9a-fA-F.:]+)", text)
        names = [_names(node) for node in self._nodes() if found and found[1] in _names(node)]
        return names[0][len(names) > 1] if names else ""


def _names(node: dict[str, Any]) -> tuple[str, str]:
    """The names of a node's machine, as they are in events: the address is that of all nodes there."""
    return machine_name(node["NodeManagerHostname"], node["NodeID"]), node["NodeManagerAddress"]


def machine_name(host: str, node: str) -> str:
    """A machine in messages. Several nodes may run on one host, and several hosts may have one name."""
    return f"{host} (Ray node {node[:12]})"


class RayWorker:
    """The actor: a `ClusterWorker` that leaves when its machine is taken away.

    Its methods and the handler of SIGTERM run in the process's main thread.
    """

    def __init__(self, order: WorkOrder) -> None:
        self.order = order
        self.worker: ClusterWorker | None = None
        self._leave_by_s: float | None = None
        signal.signal(signal.SIGTERM, self._terminated)
        threading.Thread(target=self._watch_node, name="node watch", daemon=True).start()

    def place(self) -> str:
        """The machine that the worker runs on, before it loads anything."""
        import ray

        return machine_name(socket.gethostname(), ray.get_runtime_context().get_node_id())

    def load(self) -> Exception | None:
        """Load the models; errors that every worker would have are returned, as they keep their class."""
        try:
            self.worker = prepared_worker(self.order)
        except (ForescribeError, SpeculativeError) as error:
            return portable(error)
        return None

    def exchange(self, sources: list[Source], wait_s: float) -> Report:
        """As `ClusterWorker.exchange`."""
        assert self.worker is not None
        if self._leave_by_s is not None:
            self.worker.drain(self._leave_by_s - time.monotonic() - (LEAVE_S - DRAIN_S))
        return self.worker.exchange(sources, wait_s)

    def end(self) -> None:
        """Remove what lies on this machine's disk."""
        if self.worker is not None:
            self.worker.close()

    def leave(self) -> None:
        """The machine is taken away: drain, and end in `LEAVE_S` seconds."""
        if self._leave_by_s is not None:
            return
        self._leave_by_s = time.monotonic() + LEAVE_S
        timer = threading.Timer(LEAVE_S, os._exit, (0,))
        timer.daemon = True
        timer.start()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.leave()

    def _watch_node(self) -> None:
        """Look whether Ray drains this machine: a spot notice, or an autoscaler that takes it back."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        while self._leave_by_s is None:
            if own in ray._private.state.state.get_draining_nodes():  # what Ray Train reads, too
                return self.leave()
            time.sleep(NODE_POLL_S)


def _missing_module(error: Exception) -> UsageError | None:
    """The error of a machine on which a package is missing."""
    text = str(error)
    if "ModuleNotFoundError" not in text:
        return None
    line = next(line for line in text.splitlines() if "ModuleNotFoundError" in line)
    return UsageError(
        f"a machine of the cluster cannot load the worker ({line.strip()}); install the same forescribe "
        "in the environment of every machine"
    )


def _reason(error: Exception) -> str:
    """Why a worker has died: Ray's last line, which holds the cause."""
    text = str(error)
    for mark in ("Worker exit detail: ", "Worker exit type: "):
        if mark in text:
            return text.split(mark, 1)[1].split(". ", 1)[0].strip()
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__
