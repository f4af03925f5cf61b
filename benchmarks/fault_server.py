"""The service as the fault tests drive it: everything real but the model.

    python -m benchmarks.fault_server FOLDER PORT [--die-at blob|commit] [--database URL]

A job's "audio" is JSON that says how many groups it has, how long each takes and what its text is, so
what comes out is known. Every group that is worked on is a line in FOLDER/log, written with O_APPEND: the
record that a kill cannot take back. Needs no torch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import uvicorn

from api import ssrf
from api.app import create_app
from api.jobs import service
from api.jobs.blobs import Draft
from api.jobs.durable import Durable
from api.jobs.engine import Stopping
from api.jobs.steps import Over, Steps
from api.jobs.store import Store
from api.jobs.webhooks import Webhooks
from api.serving import Serving
from api.settings import Settings
from asr.transcript import SAMPLE_RATE, Coverage, Segment, Span, Transcript

GROUP_S = 60
"""Of audio, that a group stands for."""


@dataclass(frozen=True)
class Script:
    """What a job's audio says of itself."""

    text: str
    groups: int
    pace_s: float

    @classmethod
    def of(cls, data: bytes) -> Script:
        return cls(**json.loads(data))

    def said(self, k: int) -> str:
        return f" {self.text} {k}."


@dataclass(frozen=True)
class Plan:
    """Stands in for `asr.planned.Plan`."""

    count: int

    @property
    def groups(self) -> range:
        return range(self.count)

    def until_s(self, k: int) -> float:
        return GROUP_S * (k + 1.0)

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count}


@dataclass(frozen=True)
class Group:
    """Stands in for `asr.planned.Group`."""

    k: int
    text: str

    @property
    def segments(self) -> tuple[str]:
        return (self.text,)

    def to_dict(self) -> dict[str, Any]:
        start = GROUP_S * self.k
        return {"segments": [{"start": start, "end": start + GROUP_S, "text": self.text}]}


@dataclass(frozen=True)
class Outcome:
    """Stands in for `asr.outcome.Outcome`, which brings torch: ten kills would wait for it."""

    transcript: Transcript
    error: None = None
    wall_s: float = 0.0
    decoded: tuple[()] = ()


@dataclass(eq=False)
class Lane:
    """Stands in for the engine: takes its time, writes down what it did, can be left."""

    job: str
    script: Script
    log: Callable[[str], None]
    left: list[BaseException] = field(default_factory=list)

    def group(self, k: int) -> Group:
        self.log(f"begin {self.job} {k}")
        end = time.monotonic() + self.script.pace_s
        while time.monotonic() < end:
            if self.left:
                raise self.left[0]
            time.sleep(0.005)
        self.log(f"end {self.job} {k}")
        return Group(k, self.script.said(k))

    def outcome(self) -> Outcome:
        size = GROUP_S * SAMPLE_RATE
        count = self.script.groups
        segments = (
            Segment(
                k, k, k * size, k * size, (k + 1) * size, self.script.said(k), (), 0.0, -0.1, 1, 0
            )
            for k in range(count)
        )
        transcript = Transcript(
            segments=tuple(segments),
            sample_count=count * size,
            coverage=Coverage((Span(0, count * size, "decoded"),)),
            language="en",
            settings={"task": "transcribe"},
            stats={"tokens": 0, "drafted": 0, "accepted": 0},
        )
        return Outcome(transcript)

    def leave(self, reason: BaseException) -> None:
        self.left.append(reason)

    def wait(self, seconds: float) -> None:
        """Nobody reads."""


class FakeSteps(Steps):
    """The steps, with a lane that needs no model."""

    log: ClassVar[Callable[[str], None]]

    def _script(self, job: str) -> Script:
        return Script.of(self._audio(job).read_bytes())

    def _planned(self, job: str) -> Any:
        return Plan(self._script(job).groups)

    def _plan(self, name: str) -> Any:
        return Plan(**json.loads(self.store.blobs.read(name)))

    def _lane(self, job: str) -> Any:
        with self._lock:
            lane: Any = self._lanes.setdefault(job, Lane(job, self._script(job), type(self).log))  # type: ignore[arg-type]
        if self.stopping.is_set():
            raise Stopping
        if job in self._left:
            raise Over
        return lane


class Measured:
    """Stands in for a spool."""

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s

    def close(self) -> None:
        """Nothing is open."""


class FakeServing(Serving):
    """Ready at once."""

    def start(self) -> None:
        self.state = "ready"

    async def stop(self) -> None:
        self.state = "stopped"

    def drain(self) -> None:
        self.state = "draining"

    def check(self) -> None:
        """There is no model to wait for."""

    async def decoded(self, file: BinaryIO) -> Any:
        file.seek(0)
        return Measured(float(GROUP_S * Script.of(await asyncio.to_thread(file.read)).groups))


def _nothing() -> Any:
    raise AssertionError("there is no model here")


def die_at(place: str) -> None:
    """SIGKILL in a gap of the acceptance: behind the audio's commit, behind the transaction's."""

    def after(made: Callable[..., Any]) -> Callable[..., Any]:
        def then_die(*args: Any, **named: Any) -> Any:
            made(*args, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        return then_die

    if place == "blob":
        Draft.commit = after(Draft.commit)  # type: ignore[method-assign]
    elif place == "commit":
        service.Jobs.submit = after(service.Jobs.submit)  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--die-at", choices=("blob", "commit"))
    parser.add_argument("--database")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--schedule", type=float, nargs="+", default=[0, 1, 1, 1])
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=JSON")
    asked = parser.parse_args()
    given = {
        name: json.loads(value) for name, _, value in (s.partition("=") for s in asked.setting)
    }
    settings = Settings(
        model="fake",
        port=asked.port,
        data_dir=asked.folder,
        database_url=asked.database,
        **{"min_free_bytes": 0, "webhook_networks": ("127.0.0.0/8",), "drain_s": 0.0, **given},
    )
    asked.folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(asked.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log(line: str) -> None:
        os.write(descriptor, f"{os.getpid()} {line}\n".encode())

    serving = FakeServing(settings, _nothing, _nothing)
    store = Store.at(asked.folder, asked.database)
    engine = Durable(store.engine, concurrency=asked.concurrency)
    alone = asked.database is None
    allowed = Webhooks(
        allowed=ssrf.networks(settings.webhook_networks),
        schedule_s=asked.schedule,
        timeout_s=2,
    )
    FakeSteps.log = log
    jobs = service.Jobs(
        settings, serving, store, engine, alone=alone, webhooks=allowed, steps=FakeSteps
    )
    if asked.die_at:
        die_at(asked.die_at)
    uvicorn.run(create_app(settings, serving, jobs), port=asked.port, log_level="critical")


if __name__ == "__main__":
    main()
