"""Runs jobs in turns, A B C A B C, so that changes in the speed of the machine affect all of them
alike.

Each run is a new process, so that its peak memory can be measured, no other run slows it, and
libraries cannot affect each other. Knows processes and repeats; nothing of the systems.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .systems.job import Job
from .worker import Outcome

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
        "from forescribe.bench.speech.worker import main; main(*sys.argv[1:])"
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
