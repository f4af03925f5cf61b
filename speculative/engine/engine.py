"""Engine: continuous batching of speculative decoding on the host side.

Knows requests, slots and when a step admits, runs and polls; nothing of tokenizers, audio or text:

    engine = Engine(target, ModelDrafter(draft), batch=8, schedule=Fixed(5), eos=(2,))
    for result in engine.run(requests):
        ...

An exception in a model, a drafter, a processor or a rule fails only the request in which it occurred:
its result is `Finish.FAILED` with the error. After an exception in a drafter the row is decoded plainly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from ..device import Device, at_most, choose
from ..errors import ENGINE, BrokenError, DecodingError
from ..protocols import Drafter, Model, Processor, Schedule
from ..requests import Mode, Partial, Request, Result, Stats
from .admission import Admission, DraftReader
from .captures import capture_for
from .polls import Periods, Results
from .runner import RoundRunner, RoundThreads, Shape, ShapeSet, measured_round
from .schedule import Fixed
from .slots import Inbox, RequestQueue, Run, Shared, SlotState

_NOTHING: Mapping[Any, int] = MappingProxyType({})


class Engine:
    """Decodes requests in `batch` rows; a row that ends makes room for the next request at once.

    `schedule` gives gamma; 0, or no drafter, is plain decoding. What a request decodes to depends on neither:
    drafts count where they are what the target writes, at any temperature (`rounds.sampling`). `ranks` is how
    many of the most likely tokens a request may ask for at each position. `modes` are those that rounds are
    captured for, where the device captures: the first that covers the rows is run, and one that covers them
    all is added where there is none. `captured=False` runs rounds operator by operator there too. Raises
    `ValueError` for parts that do not fit: another vocabulary, a draft length without a drafter. Not
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
        max_tokens: int | None = None,
        ranks: int = 0,
        modes: Sequence[Mode] = (Mode(), Mode(sampling=True)),
        captured: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target, self.drafter = target, drafter
        self.device = choose("cpu") if device is None else device
        self.schedule = Fixed(5 if drafter is not None else 0) if schedule is None else schedule
        self.max_gamma = max(self.schedule.buckets)
        self._shared = shared = Shared.allocate(
            self.device,
            target,
            drafter,
            eos,
            batch=batch,
            max_gamma=self.max_gamma,
            ranks=ranks,
            max_tokens=max_tokens,
        )
        self.batch, self.rows = batch, shared.rows
        self.faults: Sequence[DecodingError] = shared.faults.recent
        """The latest faults."""
        gammas, slots = self.schedule.buckets, self.rows.scratch
        self._shapes = shapes = ShapeSet.of(self.device, batch, slots, gammas, modes)
        capture = capture_for(self.device) if captured else None
        reader = None
        if shared.drafting:
            reader = DraftReader(shared, shapes, capture)
        self._reader, processors = reader, tuple(processors)
        self._admission = Admission(
            shared,
            shapes,
            processors,
            reader.read_prompts if reader is not None and shared.needs.at_once else None,
            capture if self.device.captures_at_once else None,  # prompts have many lengths
        )
        self._queue = RequestQueue()
        self._periods = Periods(shared, self.schedule, clock)
        self._results = Results(shared)
        self._runner = RoundRunner(shared, processors, self._results.fail, shapes, capture)
        self.threads = RoundThreads()
        self._stats = Stats()  # as last read
        self.broken: BrokenError | None = None
        """Why the device has failed; None while it answers."""
        self._static = self.device.static_shapes
        self._rounds_per_poll, self._late = self.device.rounds_per_poll, self.device.late_reads

    @property
    def free(self) -> int:
        """Slots that could take a request in the next step."""
        self._drop_abandoned()
        return max(0, len(self._shared.slots.free()) - len(self._queue.waiting))

    @property
    def takes_guesses(self) -> bool:
        """Whether requests may have a guess: a drafter that reads the target's states of prompts has none."""
        return not (self._shared.needs.prompt and self._shared.drafting)

    @property
    def captured(self) -> tuple[Shape, ...]:
        """The shapes that have been captured so far."""
        return self._runner.captured

    @property
    def idle(self) -> bool:
        """Whether no request waits, is decoded, or has a result that `step` did not return yet."""
        self._drop_abandoned()
        queue = self._queue
        return not (queue.waiting or self._shared.slots.occupied or queue.own.results)

    @property
    def stats(self) -> Stats:
        """Everything since the engine was made; waits for the device. A broken engine returns what was
        read last."""
        shared = self._shared
        counts, counters = shared.counts, shared.counters
        if self.broken is None:
            with self.device.guard():
                self._stats = Stats(
                    rounds=counts.rounds,
                    row_rounds=int(counters.row_rounds),
                    emitted=int(counters.emitted),
                    drafted_at_depth=tuple(counters.drafted.tolist()),
                    accepted_at_depth=tuple(counters.accepted.tolist()),
                    target_forwards=counts.target_forwards,
                    draft_forwards=counts.draft_forwards,
                    seconds=shared.watch.seconds,
                )
        faults = shared.faults
        return replace(self._stats, faults=faults.count, draft_faults=faults.of_drafts)

    def submit(self, request: Request) -> None:
        """Queues a request; `step` returns its result or, while a run is under way, the run. Raises
        `RequestError` if it cannot be decoded, `BrokenError` once the device has failed."""
        self._drop_abandoned()
        if self.broken is not None:
            raise BrokenError(str(self.broken)) from self.broken.__cause__
        self._admission.check(request)
        self._queue.put(request)

    def cancel(self, tag: Hashable) -> int:
        """Cancels all requests with this tag, and returns how many there were. Their slots are free in
        the next step."""
        waiting, rows = 0, []
        with self._guarded():
            waiting = self._queue.remove(lambda state: state.request.tag == tag)
            occupied = self._shared.slots.occupied
            rows = [row for row, state in occupied.items() if state.request.tag == tag]
            self._shared.slots.cancel(rows)
        return waiting + len(rows)

    def run(self, requests: Iterable[Request]) -> Run:
        """Decodes all requests, pulling them as slots become free; yields results as they end.

        One that cannot be decoded yields a failed result. Leaving the iteration cancels the
        remaining ones. Other requests of this engine go on meanwhile; `step` returns their results.
        """
        return Run(self, self._queue, requests)

    def row_of(self, request: Request) -> int | None:
        """The row whose caches hold the text of a request that ended in the last step, but for its last
        token, until the next step; None for any other."""
        left = self._shared.slots.left
        return next((row for row, own in left.items() if own() is request), None)

    @torch.inference_mode()
    def peek(self, known: Mapping[Any, int] = _NOTHING) -> list[Partial]:
        """What unfinished rows have written, as of the last poll; empty between two polls. `known` is how
        many tokens of a text, by tag, to leave out."""
        if self.broken is None and self._periods.now.rounds == 0:
            with self._guarded():
                return self._results.partials(known)
        return []

    @torch.inference_mode()
    def step(self, inbox: Inbox | None = None) -> list[Result]:
        """Admits waiting requests, chooses gamma, runs a round, reads once which rows have ended, and returns
        their results, often none: those of `inbox`, by default of all requests outside of runs. Errors are in
        the results; it does not raise."""
        self._drop_abandoned()
        taken = self._queue.own if inbox is None else inbox
        if self.broken is not None:
            return taken.take()
        slots, periods = self._shared.slots, self._periods
        slots.left.clear()
        with self._guarded():
            # Between two polls nobody is admitted, so that gamma is chosen for the rows that there are.
            admitted = periods.now.rounds == 0 and bool(self._queue.waiting) and self._admit()
            states = slots.occupied.values()
            cancelled = [state for state in states if state.cancelled]
            over = len(cancelled) == len(states) or (admitted and self._all_guessed())
            if not over:
                mode = self._shapes.mode(slots.mode) if self._static else slots.mode
                if periods.now.rounds == 0:
                    read = None if self._reader is None else self._reader.read
                    periods.begin(read)
                now = periods.now
                limit = self.threads.limit
                with nullcontext() if limit is None else at_most(limit):
                    now.disturbed |= not self._runner.run(now.gamma, mode)
                now.rounds += 1
            if not states:
                periods.forget()
            elif over or cancelled:  # their slots and encoder states are free with this step
                self._retire(late=0)
            elif now.rounds >= self._rounds_per_poll or self._queue.waiting:
                self._retire(late=int(self._late))
        return taken.take()

    def _admit(self) -> bool:
        """Puts waiting requests into free slots; whether there were any."""
        free = self._shared.slots.free()
        chosen: list[tuple[int, SlotState]] = list(
            zip(free, self._queue.take(len(free)), strict=False)
        )
        if chosen:
            self._admission.admit(chosen)
            self._periods.admitted += len(chosen)
        return bool(chosen)

    def _all_guessed(self) -> bool:
        """Whether all rows have ended with their guesses, so that no round is needed. Asked only where
        reading the device costs nothing."""
        if not self.device.synchronous:
            return False
        guessing = any(state.request.guess for state in self._shared.slots.occupied.values())
        return guessing and not bool(self.rows.active.any())

    def _retire(self, *, late: int) -> None:
        """Takes a snapshot, reads it, or the one before where reads are `late`, and ends the rows in it that
        are not active any more."""
        self._periods.end()
        for period, snapshot in self._periods.read(late=late):
            self._results.retire(period, snapshot)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Runs its block on the device. The last line of defence: what raises in it has failed for all
        requests in the slots. Does not raise."""
        try:
            with self.device.guard():
                yield
        except Exception as error:
            self.broken = self._fail_all(error)

    def _fail_all(self, error: Exception) -> BrokenError | None:
        """Fails the requests in the slots, after a fault that cannot be isolated by row. If the device has
        failed, fails the waiting ones too; returns the error that later requests get."""
        slots, device = self._shared.slots, self.device
        slots.fail_all(self._shared.faults.record(ENGINE, error))
        self._periods.forget()
        try:
            with device.guard():
                slots.reset()
                device.synchronize()
        except Exception as lost:
            broken = BrokenError(f"the device {device.name} has failed: {lost}")
            broken.__cause__ = lost
            self._queue.fail_all(broken)
            return broken
        return None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs every static shape once on free rows, so that graphs are captured before the first request.
        What it counted is forgotten. Raises `RuntimeError` where a request is under way."""
        self._check_idle("warm_up")
        before = replace(self._shared.counts)
        with self.device.guard():
            self._runner.warm_up()
            if self._reader is not None:
                self._reader.warm_up()
            self.device.synchronize()
        self._shared.counts = before

    @torch.inference_mode()
    def choose_threads(self) -> None:
        """Measures on a CPU whether rounds are faster with one thread or with all that torch uses in the
        calling thread, within half a second, and keeps to the result in whichever thread calls `step`. Raises
        as `warm_up`."""
        self._check_idle("choose_threads")
        if self.device.kind == "cpu":
            gamma, parts = min(self.max_gamma, 5), self._runner.parts(Mode())
            run = measured_round(parts, gamma, batch=self.batch, slots=self.rows.scratch)
            self._shared.faults.attempt(partial(self.threads.choose, run), ENGINE)

    def _check_idle(self, name: str) -> None:
        if not self.idle:
            raise RuntimeError(f"{name}() needs an idle engine: it runs rounds")

    def _drop_abandoned(self) -> None:
        """Cancels the requests of runs that were left, without results."""
        if not self._queue.abandoned:
            return
        slots = self._shared.slots
        with self._guarded():
            for inbox in self._queue.take_abandoned():
                self._queue.remove(lambda state, inbox=inbox: state.inbox is inbox)  # type: ignore[misc]
                occupied = slots.occupied.items()
                slots.drop([row for row, state in occupied if state.inbox is inbox])
