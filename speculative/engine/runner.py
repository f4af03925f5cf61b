"""Runs rounds: a callable for each static shape, captured where the device captures, and row by row where a
round fails.

Knows slots, rounds and shapes; nothing of schedules, admission or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ..errors import DecodingError
from ..protocols import Processor
from ..requests import Mode
from ..rounds.accept import RuleChoice
from ..rounds.round import Parts, run_round
from ..rows import first_rows
from ..types import Prefix
from .captures import Capture
from .faults import DRAFT, ENGINE, OF_THE_DRAFTER, STAGE_AFTER
from .shapes import Shape, ShapeSet
from .shared import Shared

TIMED = frozenset({"draft", "score", "accept"})
"""Stages of a round whose time is measured; the others only locate a fault."""

Launch = Callable[[], int]
"""Runs a round; returns how many tokens were drafted."""


class RoundRunner:
    """Runs rounds of all slots. A row that fails when it is run alone is passed to `fail`."""

    def __init__(
        self,
        shared: Shared,
        rules: RuleChoice,
        processors: Iterable[Processor],
        fail: Callable[[int, DecodingError], None],
        shapes: ShapeSet,
        capture: Capture | None = None,
    ) -> None:
        self._shared, self._rules, self._fail = shared, rules, fail
        self._processors = tuple(processors)
        self._capture = capture  # None: rounds are not captured
        self._shapes = shapes
        self._graphs: dict[Shape, Launch] = {}
        self._parts: dict[tuple[Mode, bool], Parts] = {}
        self._stage = ENGINE  # of the round under way

    def run(self, gamma: int, mode: Mode) -> bool:
        """Runs one round of the occupied slots, without drafts where the drafter has failed. After a fault
        each row repeats it alone. Returns whether all rows ran together, with this gamma."""
        slots = self._shared.slots
        slots.count_round(gamma)
        groups = slots.groups(gamma)
        for group in groups:
            rows = group.rows
            shape = self._shapes.pick(rows[-1] + 1, group.gamma, mode, slots.longest)
            with slots.masked_to(rows) if len(groups) > 1 else nullcontext():
                try:
                    width = self._launch(shape, drafter=group.drafter)()
                except Exception as error:
                    self._shared.faults.handle(self._stage, error)
                    self._run_alone(rows, shape, drafter=group.drafter)
                else:
                    self._count(width)
        return len(groups) == 1 and groups[0].drafter == (gamma > 0 or slots.observed)

    def warm_up(self) -> None:
        """Runs shapes once on free rows, so that they are captured before there is work: those of all modes
        where shapes are compiled, of the first one where a capture takes no longer than a few rounds."""
        modes = self._shapes.modes
        wanted = modes[:1] if self._shared.device.captures_at_once else modes
        for shape in self._shapes.common(wanted):
            self._launch(shape)()

    @property
    def captured(self) -> tuple[Shape, ...]:
        """The shapes that have been captured so far."""
        return tuple(self._graphs)

    def parts(self, mode: Mode, *, drafter: bool = True) -> Parts:
        """The parts of a round in this mode, with the drafter or without."""
        found = self._parts.get((mode, drafter))
        if found is None:
            shared, rule = self._shared, self._rules.pick(sampling=mode.sampling)
            drafting = shared.active_drafter if drafter else None
            found = Parts(shared.target, drafting, rule, self._processors, shared.eos)
            self._parts[mode, drafter] = found
        return found

    def _launch(self, shape: Shape, *, drafter: bool = True) -> Launch:
        """The callable of a shape, captured where the device captures. A round that a drafter would observe
        and must not, as it has failed in these rows, runs operator by operator: it is rare."""
        self._stage = ENGINE  # a captured round has no stages
        unobserved = self._shared.needs.always and not drafter
        if self._capture is None or unobserved:
            return self._eager(shape, self.parts(shape.mode, drafter=drafter))
        if shape not in self._graphs:
            assert shape in self._shapes, f"{shape} is not in the closed set"
            self._graphs[shape] = self._captured(shape, self._capture)
        return self._graphs[shape]

    def _captured(self, shape: Shape, capture: Capture) -> Launch:
        """Captures the rounds of a shape, on views of the first rows that belong to the graph."""
        shared, parts = self._shared, self.parts(shape.mode)
        rows = first_rows(shared.rows, shape.rows, shape.mode, shape.reach)

        def round_() -> None:
            run_round(rows, parts, shape.gamma, shared.counters)

        with shared.slots.masked_to(()):  # capturing runs a few rounds
            graph = capture(round_)

        def replay() -> int:
            graph()
            return shape.gamma

        return replay

    def _eager(self, shape: Shape, parts: Parts) -> Launch:
        shared = self._shared
        shared.rows.mode, shared.rows.reach = shape.mode, shape.reach
        self._stage = DRAFT
        shared.watch.start()
        return partial(
            run_round, shared.rows, parts, shape.gamma, shared.counters, self._stage_ended
        )

    def _stage_ended(self, stage: str) -> None:
        self._stage = STAGE_AFTER[stage]
        if stage in TIMED:
            self._shared.watch.mark(stage)

    def _run_alone(self, rows: Iterable[int], shape: Shape, *, drafter: bool) -> None:
        """Runs the round for each of `rows` alone, without drafts where drafting fails. Rows that fail
        alone are failed."""
        slots = self._shared.slots
        for row in rows:
            with slots.masked_to([row]):
                error = self._try_row(row, shape, drafter=drafter)
                if error is not None and error.stage in OF_THE_DRAFTER:
                    slots.stop_drafting(row, error)
                    error = self._try_row(row, replace(shape, gamma=0), drafter=False)
            if error is not None:
                self._fail(row, error)

    def _try_row(self, row: int, shape: Shape, *, drafter: bool) -> DecodingError | None:
        """Runs an uncaptured round with only `row` active; returns the fault if it raises."""
        batch = self._shared.rows.batch
        processors = tuple(SingleRowProcessor(p, row, batch) for p in self._processors)
        try:
            parts = replace(self.parts(shape.mode, drafter=drafter), processors=processors)
            self._count(self._eager(shape, parts)())
        except Exception as error:
            return self._shared.faults.handle(self._stage, error)
        return None

    def _count(self, width: int) -> None:
        shared, counts = self._shared, self._shared.counts
        if shared.device.kind == "hpu":
            shared.device.mark_step()
        counts.rounds += 1
        counts.target_forwards += 1
        if width and shared.drafter is not None:
            counts.draft_forwards += shared.drafter.forwards(width)


@dataclass(frozen=True)
class SingleRowProcessor:
    """Applies a logits processor to one row; the logits of the others stay as they are.

    Processors are given no mask, so one that fails on a row would fail in every round of the others.
    """

    processor: Processor
    row: int
    batch: int

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        span = slice(self.row, self.row + 1)
        own = Prefix(prefix.tokens[span], prefix.last[span], prefix.begin[span])
        out = logits.clone()
        out[span] = self.processor(logits[span], own)
        return out
