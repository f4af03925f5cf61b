"""What an engine does before its first request, on free rows: shapes are captured, threads are counted.

Knows rounds and the drafter's reading; nothing of requests, queues or results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from ..engine import faults
from ..engine.context import EngineContext
from ..engine.draft_reader import DraftReader
from ..engine.scheduler import Scheduler
from ..requests import Mode
from ..rounds.threads import RoundThreads, measured_round
from .graph_runner import GraphRunner


class Preparation:
    """Runs rounds that no request needs, while the engine is idle. Raises `RuntimeError` otherwise."""

    def __init__(
        self,
        context: EngineContext,
        runner: GraphRunner,
        reader: DraftReader | None,
        scheduler: Scheduler,
    ) -> None:
        self._context, self._runner, self._reader = context, runner, reader
        self._scheduler = scheduler
        self.threads = RoundThreads()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs every common shape once, so that it is captured. What it counted is forgotten."""
        self._check_idle("warm_up")
        context = self._context
        before = replace(context.counts)
        with context.device.guard():
            self._runner.warm_up()
            if self._reader is not None:
                self._reader.warm_up()
            context.device.synchronize()
        context.counts = before

    @torch.inference_mode()
    def choose_threads(self) -> None:
        """Measures on a CPU whether one thread or all run rounds faster."""
        self._check_idle("choose_threads")
        context = self._context
        if context.device.kind != "cpu":
            return
        gamma = min(context.max_gamma, 5)
        run = measured_round(
            self._runner.parts(Mode()), gamma, batch=context.rows.batch, slots=context.rows.scratch
        )
        context.faults.attempt(partial(self.threads.choose, run), faults.ENGINE)

    def _check_idle(self, name: str) -> None:
        if not self._scheduler.idle:
            raise RuntimeError(f"{name}() needs an idle engine: it runs rounds")
