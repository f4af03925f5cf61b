"""Engine: continuous batching of speculative decoding on the host side.

Knows requests, rows and when a step admits, runs and polls; nothing of tokenizers, audio or text:

    engine = Engine(target, ModelDrafter(draft), batch=8, schedule=Fixed(5), eos=(2,))
    for result in engine.run(requests):
        ...

Rows that share rounds are a `Lane`: those of one text each and, for each number of beams that is asked for,
those of a group of texts. All lanes are admitted to, polled, captured and isolated alike.

An exception in a model, a processor or a rule fails only the request in which it occurred: its result is
`Finish.FAILED` with the error. After an exception in a drafter the rows of its round are decoded plainly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ..device import Device, at_most, choose
from ..errors import ENGINE, BrokenError, DecodingError, RequestError, SpeculativeError
from ..protocols import Drafter, Model, Processor, Schedule
from ..requests import Mode, Partial, Request, Result, Stats
from ..rounds.beams import BeamRows
from ..rows import Rows
from .admission import Admission, DraftReader
from .captures import Capture, capture_for
from .polls import Period, Periods, Results
from .runner import RoundRunner, Shape, ShapeSet, fastest, measured_round
from .schedule import Fixed
from .table import Entry, Shared, Table, failed


class Engine:
    """Decodes requests in `batch` rows; a row that ends makes room for the next request at once.

    `schedule` gives gamma; 0, or no drafter, is plain decoding. What a request decodes to depends on neither:
    drafts count where they are what the target writes, at any temperature (`rounds.sampling`). `ranks` is how
    many of the most likely tokens a request may ask for at each position. `modes` are those that rounds are
    captured for, where the device captures: the first that covers the rows is run, and one that covers them
    all is added where there is none. `captured=False` runs rounds operator by operator there too.

    Requests with beams have `batch` rows of their own for each number of beams, and caches in a target of
    their own, which `beam_target` makes when they come; without it they are refused. A drafter that
    `beam_drafter` makes grows trees behind them, of as many levels as `beam_schedule` says.

    Raises `ValueError` for parts that do not fit: another vocabulary, a draft length without a drafter. Not
    thread-safe.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        *,
        batch: int,
        eos: Iterable[int],
        schedule: Schedule | None = None,
        processors: Iterable[Processor] = (),
        device: Device | None = None,
        ranks: int = 0,
        modes: Sequence[Mode] = (Mode(), Mode(sampling=True)),
        captured: bool = True,
        beam_target: Callable[[], Model] | None = None,
        beam_drafter: Callable[[], Drafter] | None = None,
        beam_schedule: Schedule | None = None,
    ) -> None:
        self.target, self.drafter, self.batch = target, drafter, batch
        self.device = choose("cpu") if device is None else device
        self.schedule = Fixed(5 if drafter is not None else 0) if schedule is None else schedule
        self.max_gamma = max(self.schedule.buckets)
        self._shared = Shared(self.device, eos, processors)
        self.faults: Sequence[DecodingError] = self._shared.faults.recent
        """The latest faults."""
        self._capture = capture_for(self.device) if captured else None
        self._beam_target, self._beam_drafter = beam_target, beam_drafter
        self.beam_schedule = Fixed(0) if beam_schedule is None else beam_schedule
        table = Table.of_texts(
            self._shared, target, drafter, batch=batch, max_gamma=self.max_gamma, ranks=ranks
        )
        self._texts = Lane(table, self.schedule, modes, self._capture)
        self._groups: dict[int, Lane] = {}  # by the number of beams
        self._lanes = [self._texts]  # and those of groups
        self.threads: int | None = None
        """Threads of the operators of a round of single texts; None: all."""
        self._before = Stats()  # of lanes that are gone
        self._stats = Stats()  # as last read
        self.broken: BrokenError | None = None
        """Why the device has failed; None while it answers."""

    @property
    def rows(self) -> Rows:
        """The rows of one text each."""
        assert isinstance(self._texts.table.rows, Rows)
        return self._texts.table.rows

    @property
    def free(self) -> int:
        """Requests of any kind that could be admitted in the next step."""
        return min(lane.free for lane in self._lanes)

    @property
    def takes_guesses(self) -> bool:
        """Whether requests may have a guess: a drafter that reads the target's states of prompts has none."""
        return self._texts.table.takes_guesses

    @property
    def captured(self) -> tuple[Shape, ...]:
        """The shapes that have been captured so far."""
        return tuple(shape for lane in self._lanes for shape in lane.runner.graphs.captured)

    @property
    def idle(self) -> bool:
        """Whether no request waits, is decoded, or has a result that `step` did not return yet."""
        return not self._shared.ended and all(lane.idle for lane in self._lanes)

    @property
    def stats(self) -> Stats:
        """Everything since the engine was made; waits for the device. A broken engine returns what was
        read last."""
        if self.broken is None:
            with self.device.guard():
                counted = sum((lane.stats for lane in self._lanes), self._before)
                self._stats = replace(counted, seconds=self._shared.watch.seconds)
        faults = self._shared.faults
        return replace(self._stats, faults=faults.count, draft_faults=faults.of_drafts)

    def submit(self, request: Request) -> None:
        """Queues a request; `step` returns its result. Raises `RequestError` if it cannot be decoded,
        `BrokenError` once the device has failed."""
        if self.broken is not None:
            raise BrokenError(str(self.broken)) from self.broken.__cause__
        lane = self._texts if request.beams is None else self._group(request.beams.size)
        lane.admission.check(request)
        lane.waiting.append(Entry(request))

    def _group(self, size: int) -> Lane:
        """The lane of so many beams. Those of other sizes that are idle make room: each has caches of its
        own."""
        if size not in self._groups:
            if self._beam_target is None:
                raise RequestError("this engine has no beams: give it a beam_target")
            for other in [n for n, lane in self._groups.items() if lane.idle]:
                self._before += self._groups.pop(other).stats
            schedule, drafter = self.beam_schedule, self._beam_drafter
            table = Table.of_groups(
                self._shared,
                self._beam_target(),
                None if drafter is None else drafter(),
                batch=self.batch,
                size=size,
                max_gamma=max(schedule.buckets),
            )
            self._groups[size] = Lane(table, schedule, (Mode(),), self._capture)
            self._lanes = [self._texts, *self._groups.values()]
        return self._groups[size]

    def cancel(self, tag: Hashable) -> int:
        """Cancels all requests with this tag, and returns how many there were. Their rows are free in the
        next step."""
        return self._cancel(lambda request: request.tag == tag)

    def _cancel(self, which: Callable[[Request], bool]) -> int:
        count = 0
        for lane in self._lanes:
            with self._guarded(lane):
                count += lane.cancel(which)
        return count

    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Decodes all requests, pulling them as rows become free; yields results as they end.

        One that cannot be decoded yields a failed result. Leaving the iteration cancels the remaining ones.
        Nobody else steps the engine meanwhile.
        """
        source, own = iter(requests), set[int]()  # by id, those that are under way
        try:
            request = next(source, None)
            while request is not None or own:
                while request is not None and self.free:
                    try:
                        self.submit(request)
                        own.add(id(request))
                    except RequestError as refused:
                        yield failed(request, refused)
                    request = next(source, None)
                for result in self.step():
                    if id(result.request) in own:  # else of a run that was left
                        own.remove(id(result.request))
                        yield result
        finally:
            self._cancel(lambda request: id(request) in own)

    def row_of(self, request: Request) -> int | None:
        """The row whose caches hold the text of a request that ended in the last step, but for its last
        token, until the next step; None for any other."""
        left = self._texts.table.left
        return next((row for row, own in left.items() if own() is request), None)

    @torch.inference_mode()
    def peek(self, known: Mapping[Any, int] | None = None) -> list[Partial]:
        """What unfinished rows of one text have written, as of the last poll; empty between two polls.
        `known` is how many tokens of a text, by tag, to leave out."""
        if self.broken is None and self._texts.periods.now.rounds == 0:
            with self._guarded(self._texts):
                return self._texts.results.partials(known or {})
        return []

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """Admits waiting requests, chooses gamma, runs a round, reads once which rows have ended, and returns
        the results of requests that have ended, often none. Errors are in the results; it does not raise."""
        for lane in self._lanes:
            if self.broken is not None:
                break
            # Groups are as large as batches: their operators are not limited.
            limit = self.threads if lane is self._texts else None
            with self._guarded(lane):
                period = lane.begin()
                if period is not None:
                    with nullcontext() if limit is None else at_most(limit):
                        period.disturbed |= not lane.runner.run(period.gamma)
                    period.rounds += 1
                lane.end(period)
        ended = list(self._shared.ended)
        self._shared.ended.clear()
        return ended

    @contextmanager
    def _guarded(self, lane: Lane) -> Iterator[None]:
        """Runs its block on the device. The last line of defence: what raises in it has failed for all
        requests in the rows of the lane. Where the device itself has failed, all others fail too, and later
        ones are refused. Does not raise."""
        try:
            with self.device.guard():
                yield
        except Exception as error:
            lane.fail_rows(self._shared.faults.record(ENGINE, error))
            try:
                with self.device.guard():
                    lane.table.reset()
                    self.device.synchronize()
            except Exception as lost:
                self.broken = BrokenError(f"the device {self.device.name} has failed: {lost}")
                self.broken.__cause__ = lost
                for each in self._lanes:
                    each.fail_rows(self.broken)
                    while each.waiting:
                        waiting = each.waiting.popleft().request
                        self._shared.ended.append(failed(waiting, self.broken))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs every static shape once on free rows, so that graphs are captured before the first request.
        What it counted is forgotten. No request may be under way."""
        table = self._texts.table
        before = replace(table.counts)
        with self.device.guard():
            self._texts.runner.warm_up()
            if self._texts.reader is not None:
                self._texts.reader.warm_up()
            self.device.synchronize()
        table.counts = before

    @torch.inference_mode()
    def choose_threads(self) -> None:
        """Measures on a CPU whether rounds are faster with one thread or with all that torch uses in the
        calling thread, within half a second, and keeps to the result in whichever thread calls `step`. No
        request may be under way."""
        if self.device.kind == "cpu":
            gamma, parts = min(self.max_gamma, 5), self._texts.runner.parts[True]
            run = measured_round(parts, gamma, batch=self.batch, slots=self.rows.scratch)
            try:
                self.threads = fastest(run)
            except Exception as error:
                self._shared.faults.record(ENGINE, error)


class Lane:
    """Rows that share rounds, and the requests that wait for one of them."""

    def __init__(
        self, table: Table, schedule: Schedule, modes: Sequence[Mode], capture: Capture | None
    ) -> None:
        self.table, self.waiting = table, deque[Entry]()
        device = table.device
        self._per_poll, self._late = device.rounds_per_poll, int(device.late_reads)
        groups, buckets = isinstance(table.rows, BeamRows), schedule.buckets
        shapes = ShapeSet.of(device, table.batch, table.slots, buckets, modes, groups=groups)
        self.reader = DraftReader(table, shapes, capture) if table.drafting else None
        at_once = self.reader.read_prompts if self.reader and table.needs.at_once else None
        prompts = capture if device.captures_at_once else None  # they have many lengths
        self.admission = Admission(table, shapes, at_once, prompts)
        self.periods = Periods(table, schedule)
        self.results = Results(table)
        self.runner = RoundRunner(table, self.results.fail, shapes, capture)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.table.occupied)

    @property
    def free(self) -> int:
        """Requests that could be admitted in the next step."""
        return max(0, self.table.batch - len(self.table.occupied) - len(self.waiting))

    @property
    def stats(self) -> Stats:
        """Its counts so far; waits for the device."""
        counts, counters = self.table.counts, self.table.counters
        return Stats(
            rounds=counts.rounds,
            row_rounds=int(counters.row_rounds),
            emitted=int(counters.emitted) + counts.emitted,
            drafted_at_depth=tuple(counters.drafted.tolist()),
            accepted_at_depth=tuple(counters.accepted.tolist()),
            target_forwards=counts.target_forwards,
            draft_forwards=counts.draft_forwards,
        )

    def cancel(self, which: Callable[[Request], bool]) -> int:
        """Cancels the requests that match; returns how many there were. Those that wait leave no result."""
        waiting = [entry for entry in self.waiting if not which(entry.request)]
        count, self.waiting = len(self.waiting) - len(waiting), deque(waiting)
        rows = [row for row, entry in self.table.occupied.items() if which(entry.request)]
        for row in rows:
            self.table.stop(row)
        return count + len(rows)

    def fail_rows(self, error: SpeculativeError) -> None:
        """Fails the requests in the rows, after a fault that cannot be isolated."""
        self.table.fail_all(error)
        self.periods.forget()

    def begin(self) -> Period | None:
        """Admits requests, and begins a period if the last one is over; None where no round is needed."""
        table, periods = self.table, self.periods
        table.left.clear()
        # Between two polls nobody is admitted, so that gamma is chosen for the rows that there are.
        admitted = periods.now.rounds == 0 and bool(self.waiting) and self._admit()
        if len(table.cancelled) == len(table.occupied):
            return None
        if admitted and self._all_guessed():
            return None
        if periods.now.rounds == 0:
            periods.begin(None if self.reader is None else self.reader.read)
        return periods.now

    def end(self, period: Period | None) -> None:
        """Ends rows: after the last round of a period, and at once where one was cancelled, so that its row
        and its encoder states are free with this step."""
        table, late = self.table, 0
        if period is None and not table.occupied:
            self.periods.forget()
            return
        if period is not None and not table.cancelled:
            if period.rounds < self._per_poll and not self.waiting:
                return
            late = self._late
        self.periods.end()
        for ended in self.periods.read(late=late):
            self.results.retire(ended)

    def _admit(self) -> bool:
        """Puts waiting requests into free rows; whether there were any."""
        rows = self.table.free()[: len(self.waiting)]
        chosen = [(row, self.waiting.popleft()) for row in rows]
        if chosen:
            self.admission.admit(chosen)
            self.periods.admitted += len(chosen)
        return bool(chosen)

    def _all_guessed(self) -> bool:
        """Whether all rows have ended with their guesses, so that no round is needed. Asked only where
        reading the device costs nothing."""
        if not self.table.device.synchronous:
            return False
        guessing = any(entry.request.guess for entry in self.table.occupied.values())
        return guessing and not bool(self.table.rows.active.any())
