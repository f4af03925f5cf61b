"""The faults that tests put in, by name, and the function that runs one.

python -m tests.faults.catalogue F26
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from tests.faults.clients import interrupt_uploads
from tests.faults.harness import Inconclusive, NotRun, Row, Wrong
from tests.faults.kills import kill_at_random_times, kill_during_acceptance, kill_within_groups
from tests.faults.partition import (
    clock_moved,
    cut_from_database,
    cut_from_objects,
    database_clock_moved,
    database_killed,
    disk_full,
    disturbed,
    packets_late,
    packets_lost,
)
from tests.faults.phases import kill_in_every_phase, poison_job
from tests.faults.replicas import kill_replicas_and_workers
from tests.faults.service import kill_the_service

FAULTS: Mapping[str, Callable[[bool, random.Random], str]] = {
    "F1": kill_at_random_times,
    "F4": kill_during_acceptance,
    "F11": interrupt_uploads,
    "F19": kill_in_every_phase,
    "F20": poison_job,
    "F21": kill_replicas_and_workers,
    "F22": kill_within_groups,
    "F23": kill_the_service,
    "F24": partial(disturbed, cut_from_database, 5.0),
    "F25": partial(disturbed, cut_from_database, 60.0),
    "F26": partial(disturbed, cut_from_database, 600.0),
    "F27": partial(disturbed, cut_from_objects, 30.0),
    "F28": partial(disturbed, packets_lost, 30.0),
    "F29": partial(disturbed, packets_late, 30.0),
    "F30": partial(disturbed, database_killed, 30.0),
    "F31": partial(disturbed, disk_full, 30.0),
    "F32": partial(disturbed, clock_moved, 20.0),
    "F33": partial(disturbed, database_clock_moved, 20.0),
}


def run(name: str, long: bool, seed: int) -> Row:
    fault, began = FAULTS[name], time.monotonic()
    try:
        what, held = fault(long, random.Random(seed)), "yes"
    except Wrong as error:
        what, held = str(error), "no"
    except Inconclusive as error:
        what, held = str(error), "inconclusive"
    except NotRun as error:
        what, held = str(error), "not run"
    return Row(name, held, what, round(time.monotonic() - began, 1))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(f"{run(name, long=False, seed=0)}\n")
