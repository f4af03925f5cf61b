"""Runs rounds: a callable for each static shape, captured where the device captures, and row by row where a
round fails.

Every shape is a capture or a compilation, so each axis has few values, and the closed set of shapes is known
before the first request (`ShapeSet`).

Whether rounds run faster with one thread or with all of them is measured (`fastest`). A round of few
rows on a CPU consists of operators so small that waking a second thread costs more than it saves; one of many
rows does not. Which of the two it is depends on model, batch and machine. Prompts and encoders are not
limited: their operators are large. Knows tables, rounds and shapes; nothing of schedules, admission or
results.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from functools import partial, reduce
from itertools import product, starmap
from operator import or_

import torch
from torch import Tensor

from ..device import Device, at_most
from ..errors import DRAFT, ENGINE, OF_THE_DRAFTER, STAGE_AFTER, DecodingError
from ..protocols import Processor
from ..requests import Mode
from ..rounds.beams import BeamRows, beam_round
from ..rounds.round import Parts, run_round
from ..rows import Counters, Rows, selected
from ..types import Prefix
from .captures import Capture, Graphs
from .table import Table

Launch = Callable[[], int]
"""Runs a round; returns how many tokens were drafted."""

TIMED = frozenset({"draft", "score", "accept"})
"""Stages of a round whose time is measured; the others only locate a fault."""

EAGER_REACHES = (64, 128, 256, 512, 1024, 2048, 4096)
"""How many slots attention reads where a shape costs nothing: a window of 30 s usually fills a third of
Whisper's positions."""

SHORTEST_CAPTURED = 128
"""The shortest reach of captured rounds; the others double it. Keys below it are 4 % of those that a row of
large-v3 reads."""

SECONDS = 0.4
"""Time after which no further pair of rounds is measured; nothing is measured where one round takes a
third of it, as its operators are large then."""

PAIRS = 8
"""Rounds measured with each number of threads, at most."""

CLEAR = 1.4
"""After two pairs nothing more is measured where one number takes so many times as long as the other."""

GAIN = 0.95
"""One thread is chosen where its best round takes less than this share of the other's."""


class RoundRunner:
    """Runs rounds of the rows of a table. A row that fails when it is run alone is passed to `fail`."""

    def __init__(
        self,
        table: Table,
        fail: Callable[[int, DecodingError], None],
        shapes: ShapeSet,
        capture: Capture | None = None,
    ) -> None:
        self._table, self._fail, self._shapes = table, fail, shapes
        self._capture = capture  # None: rounds are not captured
        self._groups = isinstance(table.rows, BeamRows)
        self._round = beam_round if self._groups else run_round
        self.graphs = Graphs[Shape, Launch]("rounds")
        self._stage = ENGINE  # of the round under way
        shared, drafter = table.shared, table.drafter if table.drafting else None
        self.parts = {
            drafting: Parts(
                table.target, drafter if drafting else None, shared.processors, shared.eos
            )
            for drafting in (True, False)
        }
        """The parts of a round, with the drafter and without."""

    def run(self, gamma: int) -> bool:
        """Runs one round of the occupied rows, without drafts where the drafter has failed. After a fault
        each row repeats it alone; after one of the drafter the rows wait for the next round, without drafts.
        Returns whether all rows ran together, with this gamma."""
        table, mode = self._table, self._table.mode
        if table.device.static_shapes:
            mode = self._shapes.mode(mode)
        table.count_round(gamma)
        apart, reach = self._apart(gamma), min(table.longest + table.spare, table.slots)
        for rows, own, drafter in apart:
            shape = self._shapes.pick(rows[-1] + 1, own, mode, reach)
            with table.masked_to(rows) if len(apart) > 1 else nullcontext():
                try:
                    width = self._launch(shape, drafter)()
                except Exception as error:
                    found = table.faults.handle(self._stage, error)
                    if found.stage in OF_THE_DRAFTER:
                        for row in rows:
                            table.occupied[row].draft_error = found
                    else:
                        self._run_alone(rows, shape, drafter)
                else:
                    self._count(width)
        return len(apart) == 1 and apart[0][2] == (gamma > 0 or table.needs.always)

    def _apart(self, gamma: int) -> list[tuple[list[int], int, bool]]:
        """The parts of a round, with their gamma, and whether the drafter takes part: it proposes, or
        observes a round without drafts. They are all rows, or those whose drafter has failed apart from the
        others, so that the others' drafts stay what they would have been."""
        table = self._table
        if gamma == 0 and not table.needs.always:
            return [(list(table.occupied), 0, False)]
        drafting: list[int] = []
        plain: list[int] = []
        for row, entry in table.occupied.items():
            (drafting if entry.draft_error is None else plain).append(row)
        apart = [(drafting, gamma, True)] if drafting else []
        return [*apart, (plain, 0, False)] if plain else apart

    def warm_up(self) -> None:
        """Runs shapes once on free rows, so that they are captured before there is work: those of all modes
        where shapes are compiled, of the first one where a capture takes no longer than a few rounds."""
        modes = self._shapes.modes
        wanted = modes[:1] if self._table.device.captures_at_once else modes
        for shape in self._shapes.common(wanted):
            self._launch(shape, drafter=True)()

    def _launch(self, shape: Shape, drafter: bool) -> Launch:
        """The callable of a shape, captured where the device captures. A round that a drafter would observe
        and must not, as it has failed in these rows, runs operator by operator: it is rare."""
        self._stage = ENGINE  # a captured round has no stages
        unobserved = self._table.needs.always and not drafter
        launch: Launch | None = None
        if self._capture is not None and not unobserved:
            launch = self.graphs.get(shape, partial(self._captured, shape, self._capture))
        return launch or self._eager(shape, self.parts[drafter])

    def _captured(self, shape: Shape, capture: Capture) -> Launch:
        """Captures the rounds of a shape, on views of the first rows that belong to the graph."""
        table, parts, run = self._table, self.parts[True], self._round
        rows = selected(table.rows, slice(shape.rows), shape.mode, shape.reach)

        def round_() -> None:
            run(rows, parts, shape.gamma, table.counters)  # type: ignore[arg-type]

        with table.masked_to(()):  # capturing runs a few rounds
            graph = capture(round_)

        def replay() -> int:
            graph()
            return shape.gamma

        return replay

    def _eager(self, shape: Shape, parts: Parts) -> Launch:
        rows, table = self._table.rows, self._table
        self._stage = DRAFT
        table.watch.start()
        if self._groups and shape.rows < rows.batch:  # each costs as much as several texts
            rows = selected(rows, slice(shape.rows), shape.mode, shape.reach)
        else:
            rows.mode, rows.reach = shape.mode, shape.reach
        return partial(self._round, rows, parts, shape.gamma, table.counters, self._stage_ended)  # type: ignore[arg-type]

    def _stage_ended(self, stage: str) -> None:
        self._stage = STAGE_AFTER[stage]
        if stage in TIMED:
            self._table.watch.mark(stage)

    def _run_alone(self, rows: Sequence[int], shape: Shape, drafter: bool) -> None:
        """Runs an uncaptured round for each of `rows` alone. Those that fail are failed, or go on without
        drafts where the drafter has."""
        table, parts = self._table, self.parts[drafter]
        for row in rows:
            batch = shape.rows if self._groups else table.batch
            processors = tuple(SingleRowProcessor(p, row, batch) for p in parts.processors)
            error: DecodingError | None = None
            with table.masked_to([row]):
                try:
                    self._count(self._eager(shape, replace(parts, processors=processors))())
                except Exception as raised:
                    error = table.faults.handle(self._stage, raised)
            if error is not None and error.stage in OF_THE_DRAFTER:
                table.occupied[row].draft_error = error
            elif error is not None:
                self._fail(row, error)

    def _count(self, width: int) -> None:
        table, counts = self._table, self._table.counts
        counts.rounds += 1
        counts.widths += width
        counts.target_forwards += 1
        if width and table.drafter is not None:
            counts.draft_forwards += table.drafter.forwards(width)


@dataclass(frozen=True)
class SingleRowProcessor:
    """Applies a logits processor to the texts of one row; the logits of the others stay as they are.

    Processors are given no mask, so one that fails on a row would fail in every round of the others.
    """

    processor: Processor
    row: int
    batch: int

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        count, out = len(logits) // self.batch, logits.clone()
        texts = slice(self.row * count, (self.row + 1) * count)
        own = Prefix(prefix.tokens[texts], prefix.last[texts], prefix.begin[texts])
        out[texts] = self.processor(logits[texts], own)
        return out


@dataclass(frozen=True)
class Shape:
    """The static part of a round."""

    rows: int  # the first rows of the batch
    gamma: int
    mode: Mode
    reach: int


@dataclass(frozen=True)
class ShapeSet:
    """The values of a shape's axes, and the shapes that they make.

    Closed: requests that are admitted one by one, each in a mode that is covered, never meet in a round
    whose shape is not in the set.
    """

    batches: tuple[int, ...]  # ascending, the last one is the whole batch
    gammas: tuple[int, ...]  # of the schedule
    modes: tuple[Mode, ...]  # one of them covers all the others together
    reaches: tuple[int, ...]  # ascending, the last one is every slot

    @classmethod
    def of(
        cls,
        device: Device,
        batch: int,
        slots: int,
        gammas: Sequence[int],
        modes: Sequence[Mode],
        *,
        groups: bool = False,
    ) -> ShapeSet:
        """The axes on `device` for `batch` rows of `slots` slots; `groups` of texts fill them several at a
        time, and a row of them costs as much as several.

        cuda captures in tenths of a second: batches and reaches double. A Gaudi card compiles for minutes:
        batches grow by four, and every round reads all slots.
        """
        batches: tuple[int, ...] = (batch,)
        reaches: tuple[int, ...] = (*EAGER_REACHES[: bisect_left(EAGER_REACHES, slots)], slots)
        if groups:
            batches, reaches = (*range(1, batch + 1),), (*range(128, slots, 128), slots)
        if device.kind == "cuda":
            batches, reaches = powers(2, 1, batch), powers(2, SHORTEST_CAPTURED, slots)
        elif device.kind == "hpu":
            batches, reaches = powers(4, 1, batch), (slots,)
        # Requests of different modes share a round: one mode that covers everything is enough.
        together = reduce(or_, modes, Mode())
        closed = tuple(modes) if together in modes else (*modes, together)
        return cls(batches, tuple(gammas), closed, reaches)

    def covers(self, need: Mode) -> bool:
        """Whether a request that needs this mode can be decoded in a captured round."""
        return any(mode.covers(need) for mode in self.modes)

    def mode(self, need: Mode) -> Mode:
        """The mode of a round for requests that are covered one by one: the first that covers them all."""
        return next(mode for mode in self.modes if mode.covers(need))

    def batch_for(self, rows: int) -> int:
        """The smallest number of rows that holds the first `rows`."""
        return self.batches[bisect_left(self.batches, rows)]

    def pick(self, rows: int, gamma: int, mode: Mode, longest: int) -> Shape:
        """The smallest shape that holds the first `rows` rows of at most `longest` tokens."""
        return Shape(
            rows=self.batch_for(rows),
            gamma=gamma,
            mode=mode,
            reach=self.reaches[bisect_left(self.reaches, longest)],
        )

    def common(self, modes: Sequence[Mode]) -> Iterator[Shape]:
        """The shapes of these modes and the schedule's gammas, largest first: graphs of one memory pool
        reuse each other's blocks, and a smaller graph fits into those of a larger one."""
        dear = sorted(modes, key=lambda mode: sum(astuple(mode)), reverse=True)
        axes = (self.batches[::-1], sorted(self.gammas, reverse=True), dear, self.reaches[::-1])
        return starmap(Shape, product(*axes))


def powers(factor: int, first: int, last: int) -> tuple[int, ...]:
    """`first` and its multiples by powers of `factor` below `last`, then `last`."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return (*found, last)


def fastest(
    run: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> int | None:
    """1 where `run`, which runs a round, is faster with one thread than with all threads, in turns; else
    None."""
    if (every := torch.get_num_threads()) == 1:
        return None
    began = clock()
    run()  # the first one allocates memory and starts threads
    if clock() - began > SECONDS / 3:
        return None
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
    return 1 if best[1] < GAIN * best[every] else None


def measured_round(parts: Parts, gamma: int, *, batch: int, slots: int) -> Callable[[], object]:
    """A round of `batch` active rows with one token each, for measurement: it writes to rows of its own,
    and to the caches of target and drafter, whose rows must be free. A drafter learns nothing of it."""
    device = parts.eos.device
    rows = Rows.empty(batch, slots, device)
    rows.limits.fill_(slots - gamma - 1)
    rows.gamma.fill_(gamma)
    rows.reach = min(slots, 64)
    counters = Counters.zeros(max(gamma, 1), device)

    def stage_ended(stage: str) -> None:
        if stage == "score":  # what is observed next is not text that anybody wrote
            rows.active.fill_(False)

    def run() -> None:
        rows.lengths.fill_(1)
        rows.active.fill_(True)
        run_round(rows, parts, gamma, counters, stage_ended)

    return run
