"""Measure: every job in turn, then all again: A B C A B C, so that a machine that slows down or
speeds up meanwhile hits all alike.

Each run is a fresh process: its peak of memory is its own, nothing idles beside it, and what one
library sets for a process cannot touch another.
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
"""A decode that never ends is known of one peer (a whole draft with timestamps)."""

Runner = Callable[[Job], Outcome]


@dataclass
class Series:
    """A job's repeats."""

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
        """The run of the median wall (the faster of the middle two), so that its stages add up."""
        middle = statistics.median_low(self.walls)
        return next(o for o in self.outcomes if o.wall_s == middle)

    @property
    def steady(self) -> bool:
        """Whether all repeats wrote the same tokens."""
        written = [o.written.tokens for o in self.outcomes if o.written is not None]
        return all(tokens == written[0] for tokens in written)


def measure(
    jobs: Sequence[Job], run: Runner, repeats: int, say: Callable[[str], None]
) -> list[Series]:
    """All series; a job that has failed is not tried again."""
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
    """Runs a job in a process of its own."""

    def run(job: Job) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            ticket, out = Path(folder) / "job.json", Path(folder) / "out.json"
            ticket.write_text(json.dumps(asdict(job)))
            return _spawn([str(ticket), str(windows), str(out)], out, job.threads)

    return run


def _spawn(arguments: list[str], out: Path, threads: int) -> Outcome:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    # The path as it is here: with -m, a folder called `asr` where the user stands would be ours.
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
        return Outcome(error=f"no end within {LIMIT_S} s")
    if not out.is_file():
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return Outcome(error=f"the process ended with status {ended.returncode}: {last}")
    return Outcome.from_json(out.read_text())
