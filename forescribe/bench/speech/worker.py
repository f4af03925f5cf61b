"""The process of one job, so that its peak memory is its own.

Started by `measure` with the names of three files: job, windows, and outcome. Loads no library
before the job's system does, as its memory is measured. Knows one job; nothing of repeats.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .clips import Samples, load_windows
from .systems.build import build
from .systems.job import Drafting, Job, Written

WARM_UP = 2
"""Windows decoded before the measurement: threads start, kernels are chosen, memory is touched."""


@dataclass(frozen=True)
class Outcome:
    """One run of a job over all windows, or the reason why it failed."""

    written: Written | None = None
    wall_s: float = 0.0
    load_s: float = 0.0
    peak_bytes: int = 0
    threads: int = 0
    error: str | None = None

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        record = json.loads(text)
        written = record.pop("written")
        if written is not None:
            drafting = written.pop("drafting")
            if drafting:  # JSON has lists for tuples
                at_depth = ("drafted_at_depth", "accepted_at_depth")
                drafting = Drafting(**drafting | {name: tuple(drafting[name]) for name in at_depth})
            written = Written(**written, drafting=drafting)
        return cls(written, **record)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class _Clock:
    started: float = field(default_factory=time.perf_counter)

    def lap(self) -> float:
        now = time.perf_counter()
        passed, self.started = now - self.started, now
        return passed


def perform(job: Job, windows: Sequence[Samples]) -> Outcome:
    """Load, warm up and run. Errors are results: a system that cannot load a model has a row too."""
    clock = _Clock()
    try:
        system = build(job)
        load_s = clock.lap()
        system.run(windows[:WARM_UP])
        clock.lap()
        written = system.run(windows)
        return Outcome(written, clock.lap(), load_s, peak_bytes(), system.threads)
    except Exception as error:  # other libraries may raise anything
        lines = str(error).strip().splitlines() or [""]
        return Outcome(error=f"{type(error).__name__}: {lines[0]}")


def peak_bytes() -> int:
    """Return the peak resident memory of this process.

    On Linux from /proc: `ru_maxrss` survives exec there, so a child would start with its parent's.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(job: str, windows: str, out: str) -> None:
    record = json.loads(Path(job).read_text())
    outcome = perform(Job(**record), load_windows(Path(windows)))
    Path(out).write_text(outcome.to_json())
