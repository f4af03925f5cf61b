"""Times jobs in turns, A B C A B C, so that changes in the speed of the machine affect all alike.

Knows callables and threads; nothing of models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")


@dataclass(frozen=True)
class Timing:
    """The best time of a job, and its last output."""

    ms: float
    output: Tensor


@torch.inference_mode()
def in_turns(
    jobs: Mapping[Key, Callable[[], Tensor]], threads: Callable[[Key], int], turns: int
) -> dict[Key, Timing]:
    """Runs every job `turns` times, and once before for its memory and kernels."""
    best = dict.fromkeys(jobs, float("inf"))
    output = {key: _run(jobs[key], threads(key)) for key in jobs}
    for _ in range(turns):
        for key, job in jobs.items():
            torch.set_num_threads(threads(key))
            job()  # the caches of the CPU hold another job's numbers
            began = time.perf_counter()
            job()
            best[key] = min(best[key], time.perf_counter() - began)
    return {key: Timing(1000 * best[key], output[key].clone()) for key in jobs}


def distinct(values: Iterable[int]) -> tuple[int, ...]:
    """The values in order, each once."""
    return tuple(dict.fromkeys(values))


def _run(job: Callable[[], Tensor], threads: int) -> Tensor:
    torch.set_num_threads(threads)
    return job().clone()
