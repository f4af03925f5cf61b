"""Runs rounds: one callable per static shape, and row by row where a round fails.

Knows slots, rounds and devices; nothing of schedules, admission or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from ..errors import DecodingError
from ..protocols import Processor
from ..requests import Mode
from ..rounds.processing import Parts
from ..rounds.round import run_round
from ..rounds.rule_choice import RuleChoice
from . import faults
from .context import EngineContext
from .faults import SingleRowProcessor

REACH_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096)
"""How many slots attention reads: a window of 30 s usually fills a third of Whisper's positions. Each
bucket is a shape of its own."""

TIMED = frozenset({"draft", "score", "accept"})
"""Stages of a round whose time is measured; the others only locate a fault."""

Launch = Callable[[], int]
"""Runs a round; returns how many tokens were drafted."""


@dataclass(frozen=True)
class Shape:
    """The static part of a round."""

    gamma: int
    mode: Mode
    reach: int


class GraphRunner:
    """Runs rounds of all slots. A row that fails when it is run alone is passed to `fail`."""

    def __init__(
        self,
        context: EngineContext,
        rules: RuleChoice,
        processors: Iterable[Processor],
        fail: Callable[[int, DecodingError], None],
    ) -> None:
        self._context, self._rules, self._fail = context, rules, fail
        self._processors = tuple(processors)
        self._graphs: dict[Shape, Launch | None] = {}  # None: the device does not capture
        self._stage = faults.ENGINE  # of the round under way

    def run(self, gamma: int, mode: Mode) -> None:
        """Runs one round of the occupied slots, without drafts where the drafter has failed. After a
        fault each row repeats it alone."""
        slots = self._context.slots
        slots.count_round(gamma)
        reach = next(r for r in self._reaches() if r >= slots.longest)
        groups = slots.groups(gamma)
        for rows, drafts in groups:
            shape = Shape(drafts, mode, reach)
            with slots.masked_to(rows) if len(groups) > 1 else nullcontext():
                try:
                    width = self._launch(shape)()
                except Exception as error:
                    self._context.faults.handle(self._stage, error)
                    self._run_alone(rows, shape)
                else:
                    self._count(width)

    def warm_up(self, gammas: Iterable[int], modes: Sequence[Mode]) -> None:
        """Runs every shape once on free rows, so that it is captured before there is work."""
        for gamma in gammas:
            for mode in modes:
                for reach in self._reaches():
                    self._launch(Shape(gamma, mode, reach))()

    def parts(self, mode: Mode, processors: tuple[Processor, ...] | None = None) -> Parts:
        """The parts of a round in this mode."""
        context, rule = self._context, self._rules.pick(sampling=mode.sampling)
        chosen = self._processors if processors is None else processors
        return Parts(context.target, context.drafter, rule, chosen, context.eos)

    def _reaches(self) -> list[int]:
        slots = self._context.rows.scratch
        return [*(r for r in REACH_BUCKETS if r < slots), slots]

    def _launch(self, shape: Shape) -> Launch:
        """The callable of a shape, captured where the device captures."""
        self._stage = faults.ENGINE  # a captured round has no stages
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(shape)
        return self._graphs[shape] or self._eager(shape, self.parts(shape.mode))

    def _capture(self, shape: Shape) -> Launch | None:
        context, parts = self._context, self.parts(shape.mode)

        def round_() -> None:
            context.rows.mode, context.rows.reach = shape.mode, shape.reach
            run_round(context.rows, parts, shape.gamma, context.counters)

        with context.slots.masked_to(()):  # capturing runs a few rounds
            graph = context.device.graph(round_)
        if graph is round_:
            return None

        def replay() -> int:
            graph()
            return shape.gamma

        return replay

    def _eager(self, shape: Shape, parts: Parts) -> Launch:
        context = self._context
        context.rows.mode, context.rows.reach = shape.mode, shape.reach
        self._stage = faults.stage_after(None)
        context.watch.start()
        return partial(
            run_round, context.rows, parts, shape.gamma, context.counters, self._stage_ended
        )

    def _stage_ended(self, stage: str) -> None:
        self._stage = faults.stage_after(stage)
        if stage in TIMED:
            self._context.watch.mark(stage)

    def _run_alone(self, rows: Iterable[int], shape: Shape) -> None:
        """Runs the round for each of `rows` alone, without drafts where drafting fails. Rows that fail
        alone are failed."""
        slots = self._context.slots
        for row in rows:
            with slots.masked_to([row]):
                error = self._try_row(row, shape)
                if error is not None and error.stage in faults.OF_THE_DRAFTER:
                    slots.stop_drafting(row, error)
                    error = self._try_row(row, replace(shape, gamma=0))
            if error is not None:
                self._fail(row, error)

    def _try_row(self, row: int, shape: Shape) -> DecodingError | None:
        """Runs an uncaptured round with only `row` active; returns the fault if it raises."""
        batch = self._context.rows.batch
        processors = tuple(SingleRowProcessor(p, row, batch) for p in self._processors)
        try:
            self._count(self._eager(shape, self.parts(shape.mode, processors))())
        except Exception as error:
            return self._context.faults.handle(self._stage, error)
        return None

    def _count(self, width: int) -> None:
        context, counts = self._context, self._context.counts
        context.device.mark_step()
        counts.rounds += 1
        counts.target_forwards += 1
        if width and context.drafter is not None:
            counts.draft_forwards += context.drafter.forwards(width)
