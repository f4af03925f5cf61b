"""The faults that tests put in, by name, and the function that runs one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from tests.faults.clients import interrupt_uploads
from tests.faults.harness import Inconclusive, NotRun, Row, Wrong
from tests.faults.kills import kill_at_random_times, kill_during_acceptance, kill_within_groups
from tests.faults.partition import lose_the_database
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
    "F24": lose_the_database,
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
