"""Runs jobs in turns, A B C A B C, so that changes in the speed of the machine affect all of them
alike.

Each run is a new process, so that its peak memory can be measured, no other run slows it, and
libraries cannot affect each other. It is started with the names of three files: job, windows, and outcome,
and loads no library before the job's system does. Knows processes and repeats; nothing of how systems work.
Import is light.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.comparison import Row, error_rate, normalise
from benchmarks.systems.jobs import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    GENERATE,
    NAMES,
    OURS,
    SEQUENTIAL,
    Job,
    Material,
    Samples,
    System,
    Written,
    load_windows,
)
from forescribe.speculative.requests import Stats


def build(job: Job) -> System:
    """Load the system of a job. Raises whatever its library raises."""
    if job.system == OURS:
        from benchmarks.systems.ours import Ours

        return Ours(job)
    if job.system in (GENERATE, ASSISTED, ASSISTED_DEFAULTS):
        from benchmarks.systems.speech import Generate

        return Generate(job)
    if job.system in (SEQUENTIAL, BATCHED):
        from benchmarks.systems.faster import FasterWhisper

        return FasterWhisper(job)
    raise ValueError(f"unknown system {job.system!r}; known: {', '.join(NAMES)}")


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
            stats = written.pop("stats")
            for name in ("drafted_at_depth", "accepted_at_depth"):
                stats[name] = tuple(stats[name])  # JSON has lists for tuples
            written = Written(**written, stats=Stats(**stats))
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


LIMIT_S = 3600
"""Time limit of a run; one system (a whole draft model with timestamps) is known to decode for ever."""

Runner = Callable[[Job], Outcome]


@dataclass
class Series:
    """The repeated runs of a job."""

    job: Job
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def error(self) -> str | None:
        return next((o.error for o in self.outcomes if o.error is not None), None)

    @property
    def walls(self) -> list[float]:
        return [o.wall_s for o in self.outcomes if o.written is not None]

    @property
    def median(self) -> Outcome:
        """The run with the median wall time (the faster of the middle two), so that its stages add
        up."""
        middle = statistics.median_low(self.walls)
        return next(o for o in self.outcomes if o.wall_s == middle)

    @property
    def steady(self) -> bool:
        """Whether all runs gave the same tokens."""
        written = [o.written.tokens for o in self.outcomes if o.written is not None]
        return all(tokens == written[0] for tokens in written)

    def row(self, material: Material) -> Row:
        """The row of the job, compared with nothing; no error rate where there is no reference text."""
        if self.error is not None:
            return unmeasured_row(self.job, self.error)
        run = self.median
        assert run.written is not None
        rate = None
        if normalise(material.reference):
            rate = error_rate(material.reference, " ".join(run.written.texts))
        return replace(
            unmeasured_row(self.job),
            threads=run.threads,
            engine=run.written.engine,
            walls_s=self.walls,
            tokens=run.written.tokens,
            stats=run.written.stats,
            steady=self.steady,
            audio_s=material.length_s,
            word_error_rate=rate,
            load_s=run.load_s,
            peak_bytes=max(outcome.peak_bytes for outcome in self.outcomes),
            notes=run.written.notes,
        )


def unmeasured_row(job: Job, error: str | None = None) -> Row:
    """A row without figures."""
    return Row(job.system, job.batch, job.gamma, job.dtype, job.threads, error=error)


def measure(
    jobs: Sequence[Job], run: Runner, repeats: int, say: Callable[[str], None]
) -> list[Series]:
    """Run all jobs `repeats` times; a job that has failed is not run again. `say` gets a line per
    run."""
    all_series = [Series(job) for job in jobs]
    for repeat in range(1, repeats + 1):
        for series in all_series:
            if series.error is not None:
                continue
            outcome = run(series.job)
            series.outcomes.append(outcome)
            what = outcome.error or f"{outcome.wall_s:.2f} s"
            say(f"{repeat}/{repeats} {series.job.label}: {what}")
    return all_series


def child(windows: Path) -> Runner:
    """Return a runner that runs each job in a separate process."""

    def run(job: Job) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            ticket, out = Path(folder) / "job.json", Path(folder) / "out.json"
            ticket.write_text(json.dumps(asdict(job)))
            return _spawn([str(ticket), str(windows), str(out)], out, job.threads)

    return run


def _spawn(arguments: list[str], out: Path, threads: int) -> Outcome:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    # The search path of this process: `-m` would add the working directory, whose modules may shadow ours.
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "from benchmarks.systems.runs import main; main(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *arguments]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return Outcome(error=f"not finished within {LIMIT_S} s")
    if not out.is_file():
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return Outcome(error=f"the process ended with status {ended.returncode}: {last}")
    return Outcome.from_json(out.read_text())
