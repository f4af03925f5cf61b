"""Whether rounds run faster with one thread or with all of them.

A round of few rows on a CPU consists of operators so small that waking a second thread costs more than it
saves; one of many rows does not. Which of the two it is depends on model, batch and machine, so it is
measured. Prompts and encoders are not limited: their operators are large. Knows rounds; nothing of requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..device import at_most, can_set
from ..rounds.round import Parts, run_round
from ..rows import Counters, Rows

SECONDS = 0.4
"""Time after which no further pair of rounds is measured; nothing is measured where one round takes a
third of it, as its operators are large then."""

PAIRS = 8
"""Rounds measured with each number of threads, at most."""

CLEAR = 1.4
"""After two pairs nothing more is measured where one number takes so many times as long as the other. With
all pairs it took 0.4 s of every start at batch 8, where one thread takes 1.8 times as long."""

GAIN = 0.95
"""One thread is chosen where its best round takes less than this share of the other's."""


class RoundThreads:
    """The number of threads for the rounds of one engine: all, until `choose` finds one to be faster."""

    def __init__(self) -> None:
        self.limit: int | None = None  # None: all threads
        self.seconds: dict[int, float] = {}  # best round by number of threads; empty: not measured

    def choose(
        self, run: Callable[[], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Measures `run`, which runs a round, with one thread and with all threads in turn."""
        every = torch.get_num_threads()
        if every == 1 or not can_set():
            return
        began = clock()
        run()  # the first one allocates memory and starts threads
        if clock() - began > SECONDS / 3:
            return
        best = {every: float("inf"), 1: float("inf")}
        for pair in range(PAIRS):
            for count in best:
                with at_most(count):
                    start = clock()
                    run()
                    best[count] = min(best[count], clock() - start)
            low, high = sorted(best.values())
            if clock() - began > SECONDS or (pair and high > CLEAR * low):
                break
        self.seconds = best
        self.limit = 1 if best[1] < GAIN * best[every] else None


def measured_round(parts: Parts, gamma: int, *, batch: int, slots: int) -> Callable[[], object]:
    """A round of `batch` active rows with one token each, for measurement: it writes to rows of its own,
    and to the caches of target and drafter, whose rows must be free."""
    device = parts.eos.device
    rows = Rows.empty(batch, slots, device)
    rows.limits.fill_(slots - gamma - 1)
    rows.gamma.fill_(gamma)
    rows.reach = min(slots, 64)
    counters = Counters.zeros(max(gamma, 1), device)

    def run() -> None:
        rows.lengths.fill_(1)
        rows.active.fill_(True)
        run_round(rows, parts, gamma, counters)

    return run
