"""Runs rounds: a captured callable for each static shape, and row by row where a round fails.

A captured function reads and writes tensors that stay where they are, and what it allocates belongs to its
graph: CUDA graphs in one memory pool, and what Gaudi has instead. Knows slots, rounds and devices; nothing of
schedules, admission or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any, Protocol

import torch

from ..device import Device, hpu_is_lazy
from ..engine.context import (
    ENGINE,
    OF_THE_DRAFTER,
    EngineContext,
    SingleRowProcessor,
    stage_after,
)
from ..errors import DecodingError
from ..protocols import Processor
from ..requests import Mode
from ..rounds.accept import RuleChoice
from ..rounds.round import Parts, run_round
from ..rows import first_rows
from .shapes import Shape, ShapeSet

WARM_UP = 3
"""Runs before a capture: libraries choose their kernels and allocate workspaces, which a capture forbids."""

TIMED = frozenset({"draft", "score", "accept"})
"""Stages of a round whose time is measured; the others only locate a fault."""

Function = Callable[[], None]

Launch = Callable[[], int]
"""Runs a round; returns how many tokens were drafted."""


class GraphRunner:
    """Runs rounds of all slots. A row that fails when it is run alone is passed to `fail`."""

    def __init__(
        self,
        context: EngineContext,
        rules: RuleChoice,
        processors: Iterable[Processor],
        fail: Callable[[int, DecodingError], None],
        shapes: ShapeSet,
        capture: Capture | None = None,
    ) -> None:
        self._context, self._rules, self._fail = context, rules, fail
        self._processors = tuple(processors)
        self._capture = capture  # None: rounds are not captured
        self._shapes = shapes
        self._graphs: dict[Shape, Launch] = {}
        self._stage = ENGINE  # of the round under way

    def run(self, gamma: int, mode: Mode) -> None:
        """Runs one round of the occupied slots, without drafts where the drafter has failed. After a
        fault each row repeats it alone."""
        slots = self._context.slots
        slots.count_round(gamma)
        groups = slots.groups(gamma)
        for group in groups:
            rows = group.rows
            shape = self._shapes.pick(max(rows) + 1, group.gamma, mode, slots.longest)
            with slots.masked_to(rows) if len(groups) > 1 else nullcontext():
                try:
                    width = self._launch(shape, drafter=group.drafter)()
                except Exception as error:
                    self._context.faults.handle(self._stage, error)
                    self._run_alone(rows, shape, drafter=group.drafter)
                else:
                    self._count(width)

    def warm_up(self) -> None:
        """Runs shapes once on free rows, so that they are captured before there is work: those of all modes
        where shapes are compiled, of the first one where a capture takes no longer than a few rounds."""
        modes = self._shapes.modes
        wanted = modes[:1] if self._context.device.captures_at_once else modes
        for shape in self._shapes.common(wanted):
            self._launch(shape)()

    @property
    def captured(self) -> tuple[Shape, ...]:
        """The shapes that have been captured so far."""
        return tuple(self._graphs)

    def parts(
        self,
        mode: Mode,
        processors: tuple[Processor, ...] | None = None,
        *,
        drafter: bool = True,
    ) -> Parts:
        """The parts of a round in this mode, with the drafter or without."""
        context, rule = self._context, self._rules.pick(sampling=mode.sampling)
        chosen = self._processors if processors is None else processors
        drafting = context.active_drafter if drafter else None
        return Parts(context.target, drafting, rule, chosen, context.eos)

    def _launch(self, shape: Shape, *, drafter: bool = True) -> Launch:
        """The callable of a shape, captured where the device captures. A round that a drafter would observe
        and must not, as it has failed in these rows, runs operator by operator: it is rare."""
        self._stage = ENGINE  # a captured round has no stages
        unobserved = self._context.needs.always and not drafter
        if self._capture is None or unobserved:
            return self._eager(shape, self.parts(shape.mode, drafter=drafter))
        if shape not in self._graphs:
            assert shape in self._shapes, f"{shape} is not in the closed set"
            self._graphs[shape] = self._captured(shape, self._capture)
        return self._graphs[shape]

    def _captured(self, shape: Shape, capture: Capture) -> Launch:
        """Captures the rounds of a shape, on views of the first rows that belong to the graph."""
        context, parts = self._context, self.parts(shape.mode)
        rows = first_rows(context.rows, shape.rows, shape.mode, shape.reach)

        def round_() -> None:
            run_round(rows, parts, shape.gamma, context.counters)

        with context.slots.masked_to(()):  # capturing runs a few rounds
            graph = capture(round_)

        def replay() -> int:
            graph()
            return shape.gamma

        return replay

    def _eager(self, shape: Shape, parts: Parts) -> Launch:
        context = self._context
        context.rows.mode, context.rows.reach = shape.mode, shape.reach
        self._stage = stage_after(None)
        context.watch.start()
        return partial(
            run_round, context.rows, parts, shape.gamma, context.counters, self._stage_ended
        )

    def _stage_ended(self, stage: str) -> None:
        self._stage = stage_after(stage)
        if stage in TIMED:
            self._context.watch.mark(stage)

    def _run_alone(self, rows: Iterable[int], shape: Shape, *, drafter: bool) -> None:
        """Runs the round for each of `rows` alone, without drafts where drafting fails. Rows that fail
        alone are failed."""
        slots = self._context.slots
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
        batch = self._context.rows.batch
        processors = tuple(SingleRowProcessor(p, row, batch) for p in self._processors)
        try:
            parts = self.parts(shape.mode, processors, drafter=drafter)
            self._count(self._eager(shape, parts)())
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


class Capture(Protocol):
    """Makes a function that the device runs as one launch."""

    def __call__(self, fn: Function) -> Function:
        """A captured form of `fn`. Capturing runs `fn` a few times, so no row may be active meanwhile."""


def capture_for(device: Device) -> Capture | None:
    """How rounds are captured on this device; None where they are not.

    cuda: CUDA graphs. hpu: `torch.compile` in eager mode; lazy mode accumulates a round by itself until
    `mark_step`. Elsewhere nothing: measured on CPUs, inductor's code for these shapes was slower than eager.
    """
    if device.kind == "cuda":
        return CudaCapture(device)
    if device.kind == "hpu" and not hpu_is_lazy():
        return compiled_for_hpu
    return None


class CudaCapture:
    """CUDA graphs that share one memory pool.

    Sharing is safe because the graphs run one after another on one stream, and nothing that a graph
    allocates is read after it: a round leaves its results in the rows, which were allocated before.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool: Any = None
        self._stream: Any = None

    def __call__(self, fn: Function) -> Function:
        with self._device.guard():
            if self._pool is None:
                self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
            self._warm_up(fn)
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate meanwhile: a diarizer on the same card.
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                fn()

        def replay() -> None:
            with self._device.guard():
                graph.replay()

        return replay

    def _warm_up(self, fn: Function) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP):
                fn()
        torch.cuda.current_stream().wait_stream(self._stream)


def compiled_for_hpu(fn: Function) -> Function:
    """One recipe for the whole function, which runs once before: what it makes at its first call must not
    be a part of the recipe."""
    fn()
    compiled: Function = torch.compile(
        function_of_its_own(fn), backend="hpu_backend", fullgraph=True, dynamic=False
    )
    return compiled


def function_of_its_own(fn: Function) -> Function:
    """`fn` with a code object that no other function has: dynamo counts recompilations for each code
    object, and refuses the ninth."""
    assert isinstance(fn, FunctionType)
    code = fn.__code__.replace(co_name=f"{fn.__code__.co_name}{next(_count)}")
    return FunctionType(code, fn.__globals__, code.co_name, fn.__defaults__, fn.__closure__)


_count = count()
