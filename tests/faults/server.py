"""The server of the fault tests: everything is real except the model.

    python -m tests.faults.server FOLDER PORT [--die-at file|commit] [--database URL]
    python -m tests.faults.server FOLDER PORT --database URL --blobs URL [--worker | --front-end]

A recording is JSON with the number of groups, the time per group and the text, so that the result is known.
Every group is logged to FOLDER/log, opened with O_APPEND, so that a kill loses no line. Does not need torch.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, ClassVar

import uvicorn

from forescribe.api.app import create_app, create_worker_app
from forescribe.api.jobs import files
from forescribe.api.jobs.callbacks import Webhooks
from forescribe.api.jobs.files import DiskFiles
from forescribe.api.jobs.service import Jobs
from forescribe.api.jobs.submissions import Submissions
from forescribe.api.jobs.walk import Run, Walk
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.asr.formats.transcript import Transcript
from tests.faults.recordings import GROUP_S, FakeGroups, Script


@dataclass(frozen=True)
class Plan:
    """Replaces `asr.segment.cut_plan.Plan`."""

    count: int

    @property
    def groups(self) -> range:
        return range(self.count)

    def until_s(self, k: int) -> float:
        return GROUP_S * (k + 1.0)

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count}


class Trap:
    """Kills the process in a phase if FOLDER/die-PHASE exists, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, phase: str) -> None:
        try:
            (self.folder / f"die-{phase}").unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Seams:
    """Where the fakes below report to."""

    log: ClassVar[Callable[[str], None]]
    trap: ClassVar[Trap]


class FakeWalk(Walk):
    """The walk without decoder, model and speakers, with a trap in some of its steps."""

    def __call__(self, run: Run) -> None:
        Seams.trap("queued")
        super().__call__(run)

    def samples(self, run: Run) -> Any:
        Seams.trap("decoding")
        return None

    def new_plan(self, run: Run) -> Any:
        self.samples(run)
        Seams.trap("planning")
        return Plan(self.script(run).groups)

    def stored_plan(self, run: Run) -> Any:
        return Plan(**self.store.read(run.job, "plan"))

    def submit(self, run: Run) -> Any:
        return FakeGroups(run.id, self.script(run), Seams.log, Seams.trap)

    def script(self, run: Run) -> Script:
        return Script.of(self.store.audio(run.job).read_bytes())

    def save_transcript(self, run: Run, role: str, transcript: Transcript) -> None:
        Seams.trap("assembling" if role == "spoken" else "result")
        super().save_transcript(run, role, transcript)

    def with_speakers(self, run: Run, transcript: Transcript, form: Any) -> Transcript:
        Seams.trap("speakers")
        return transcript

    def finish(self, run: Run) -> None:
        super().finish(run)
        Seams.trap("ended")


class FakeWebhooks(Webhooks):
    """Real callbacks, with a trap before and after each."""

    def deliver(self, job: Any) -> Any:
        Seams.trap("callback")
        answer = super().deliver(job)
        Seams.trap("called")
        return answer


class Measured:
    """Replaces a decoded recording."""

    def __init__(self, script: Script) -> None:
        self.script, self.duration_s = script, float(GROUP_S * script.groups)

    def close(self) -> None:
        """Does nothing."""


class FakeServing(Serving):
    """Ready at once, without a model."""

    trap: Callable[[str], None] = staticmethod(lambda phase: None)
    load_s = 0.0

    def start(self) -> None:
        if self.load_s:
            threading.Thread(target=self._slow, daemon=True).start()
        else:
            self.life.state = "ready"

    def _slow(self) -> None:
        time.sleep(self.load_s)
        self.trap("loading")
        self.life.state = "ready"

    async def stop(self) -> None:
        self.trap("draining")
        self.life.drain()
        self.life.state = "stopped"

    def check(self) -> None:
        """Does nothing, as there is no model."""

    async def decoded(self, file: BinaryIO) -> Any:
        self.trap("accepting")
        file.seek(0)
        return Measured(Script.of(await asyncio.to_thread(file.read)))


def _nothing() -> Any:
    raise AssertionError("there is no model here")


def die_at(place: str) -> None:
    """SIGKILL while a job is accepted: after the audio is stored, or after the transaction."""

    def after(made: Callable[..., Any]) -> Callable[..., Any]:
        def then_die(*args: Any, **named: Any) -> None:
            made(*args, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        return then_die

    if place == "file":
        DiskFiles.put = after(DiskFiles.put)  # type: ignore[method-assign]
    elif place == "commit":
        Submissions.submit = after(Submissions.submit)  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--die-at", choices=("file", "commit"))
    parser.add_argument("--database")
    parser.add_argument("--blobs", metavar="URL", help="object storage instead of FOLDER")
    parser.add_argument("--worker", action="store_true", help="no routes for clients")
    parser.add_argument("--front-end", action="store_true", help="no jobs of its own")
    parser.add_argument("--log", type=Path, help="instead of FOLDER/log")
    parser.add_argument("--load-s", type=float, default=0.0, help="for the fake model")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--clock", type=Path, help="a file that says by how many seconds it is wrong"
    )
    asked = parser.parse_args()
    settings = Settings(
        model="fake",
        host=asked.host,
        open_to_all=True,
        port=asked.port,
        data_dir=asked.folder,
        database_url=asked.database,
        blobs_url=asked.blobs,
        front_end=asked.front_end,
        job_concurrency=asked.concurrency,
        min_free_bytes=0,
        webhook_networks=("127.0.0.0/8", "10.0.0.0/8"),
        drain_s=0.0,
    )
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.clock:
        right = time.time
        time.time = lambda: right() + float(asked.clock.read_text() or 0)
        files.time = SimpleNamespace(time=right)  # the times of files stay those of the kernel
    faults = logging.FileHandler(asked.folder / "faults.log")
    faults.addFilter(lambda record: "fault" in record.getMessage())
    logging.basicConfig(level=logging.INFO, handlers=[faults])
    descriptor = os.open(asked.log or asked.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def log(line: str) -> None:
        os.write(descriptor, f"{os.getpid()} {line} {time.monotonic():.3f}\n".encode())

    serving = FakeServing(settings, _nothing, _nothing)
    FakeServing.trap, FakeServing.load_s = Trap(asked.folder), asked.load_s
    Seams.log, Seams.trap = log, Trap(asked.folder)
    allowed = settings.webhook_networks
    webhooks = FakeWebhooks(allowed=allowed, schedule_s=[0, 1, 1, 1], timeout_s=2)
    jobs = Jobs.open(settings, serving, webhooks=webhooks, walk=FakeWalk)
    if asked.die_at:
        die_at(asked.die_at)
    create = create_worker_app if asked.worker else create_app
    app = create(settings, serving, jobs)
    uvicorn.run(app, host=asked.host, port=asked.port, log_level="critical")


if __name__ == "__main__":
    main()
