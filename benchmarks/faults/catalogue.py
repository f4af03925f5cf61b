"""The catalogue of all faults, and the function that runs one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

from benchmarks.faults.clients import call_failing_receivers, cancel_jobs, interrupt_uploads
from benchmarks.faults.deployment import deploy_new_version
from benchmarks.faults.engine import break_engine
from benchmarks.faults.harness import (
    Inconclusive,
    NotRun,
    Row,
    Wrong,
)
from benchmarks.faults.kills import (
    kill_at_random_times,
    kill_during_acceptance,
    lose_workflow,
    stop_one_of_two,
)
from benchmarks.faults.machines.replicas import kill_replicas_and_workers
from benchmarks.faults.overload import overload_service
from benchmarks.faults.phases import kill_in_every_phase, poison_job
from benchmarks.faults.storage import delete_in_every_state, fill_disk, stop_database

Fault = Callable[[bool, random.Random], str]


FAULTS: Mapping[str, Fault | str] = {
    "F1": kill_at_random_times,
    "F2": stop_one_of_two,
    "F3": stop_database,
    "F4": kill_during_acceptance,
    "F5": break_engine,
    "F6": "the decoder's child has tests of its own, tests/api/speech/test_decoding.py",
    "F7": fill_disk,
    "F8": deploy_new_version,
    "F9": cancel_jobs,
    "F10": call_failing_receivers,
    "F11": interrupt_uploads,
    "F12": "bombs and false headers are the decoder's: tests/api/speech/test_decoding.py",
    "F13": overload_service,
    "F14": delete_in_every_state,
    "F15": "Ray Serve is no part of this service: the model runs in its process",
    "F16": "clocks are arguments: tests/api/jobs/test_keeper.py",
    "F17": lose_workflow,
    "F18": "tests/api/test_schema.py, tests/api/jobs/test_jobs_machine.py",
    "F19": kill_in_every_phase,
    "F20": poison_job,
    "F21": kill_replicas_and_workers,
}


def run(name: str, long: bool, seed: int) -> Row:
    fault, began = FAULTS[name], time.monotonic()
    if isinstance(fault, str):
        return Row(name, "not run", fault)
    try:
        what, held = fault(long, random.Random(seed)), "yes"
    except Wrong as error:
        what, held = str(error), "no"
    except Inconclusive as error:
        what, held = str(error), "inconclusive"
    except NotRun as error:
        what, held = str(error), "not run"
    return Row(name, held, what, round(time.monotonic() - began, 1))
