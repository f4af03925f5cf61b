"""The interface between a run and what starts its workers: Ray, or a fake in tests.

A fleet starts workers, passes recordings to them and tells what has happened to them as events. Knows
nothing of which worker should get which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forescribe.asr.errors import ForescribeError
from forescribe.asr.records.sources import Source
from forescribe.speculative.errors import SpeculativeError

from .worker import Report, WorkerInfo, WorkOrder


@dataclass(frozen=True)
class Started:
    """A worker has loaded its models."""

    worker: int
    info: WorkerInfo
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


class Fleet(Protocol):
    """Workers by number. Nothing here waits, except `wait`.

    The `machine` of an event is a name for messages and for `exclude`, empty where it is not known.
    """

    def begin(self, order: WorkOrder) -> int:
        """Called once, before the first worker. Returns how many there can be. Raises UsageError and
        CapacityError where none can."""

    def start(self) -> int | None:
        """Start a worker, as soon as there is room for one; `Started`, `Refused` or `Lost` follows. None
        where the machines that are not excluded have no room for it."""

    def exclude(self, machine: str) -> None:
        """Start no more workers on a machine; those that run there go on."""

    def exchange(self, worker: int, sources: Sequence[Source]) -> None:
        """Pass recordings to a worker; `Reported` or `Lost` follows, within about a second unless the
        machine is busy."""

    def wait(self, seconds: float) -> list[Event]:
        """What has happened, after at most this time."""

    def stop(self, worker: int) -> None:
        """End a worker. No event follows."""

    def shortage(self) -> str:
        """What a worker needs and what there is, for a message when none starts."""

    def close(self) -> None:
        """End all workers."""
