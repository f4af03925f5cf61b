"""What happens between rounds: admission, draft lengths, and the polls that end rows.

Knows requests, slots and a schedule; nothing of how a round runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from ..errors import BrokenError
from ..graphs.shapes import ShapeSet
from ..protocols import Processor, Schedule
from ..requests import Mode, Request
from ..rounds.rule_choice import RuleChoice
from . import faults
from .admission import Admission
from .collection import ResultCollector
from .context import EngineContext
from .draft_reader import DraftReader
from .pacing import Pacing, Period
from .slots import RequestQueue


class Scheduler:
    """Decides which requests are in the slots, and how the next round drafts."""

    def __init__(
        self,
        context: EngineContext,
        rules: RuleChoice,
        shapes: ShapeSet,
        schedule: Schedule,
        reader: DraftReader | None,
        clock: Callable[[], float],
        processors: tuple[Processor, ...] = (),
    ) -> None:
        if reader is not None:
            rules.check()
        self._context, self._shapes = context, shapes
        at_once = reader is not None and context.needs.at_once
        read = reader.read_prompts if at_once and reader is not None else None
        self._admission = Admission(context, rules, shapes, processors, read)
        self._reader = reader  # None: nothing is ever drafted
        self.collector = ResultCollector(context, rules)
        self.pacing = Pacing(schedule, context.faults, clock, context.device)
        self.queue = RequestQueue()
        self._late: deque[Period] = deque()  # whose snapshots are on their way

    @property
    def idle(self) -> bool:
        """Whether no request waits, is decoded, or has a result that was not returned yet."""
        queue = self.queue
        return not (queue.waiting or self._context.slots.occupied() or queue.own.results)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises `RequestError` if it cannot be decoded with its options."""
        self._admission.check(request)
        self.queue.put(request)

    def cancel(self, tag: Hashable) -> int:
        """Cancels all requests with this tag, and returns how many there were."""
        slots = self._context.slots
        waiting = self.queue.remove(lambda state: state.request.tag == tag)
        rows = [row for row, state in slots.occupied() if state.request.tag == tag]
        slots.cancel(rows)
        return waiting + len(rows)

    def drop_abandoned(self) -> None:
        """Cancels the requests of runs that were left, without results."""
        slots = self._context.slots
        for inbox in self.queue.take_abandoned():
            self.queue.remove(lambda state, inbox=inbox: state.inbox is inbox)  # type: ignore[misc]
            slots.drop([row for row, state in slots.occupied() if state.inbox is inbox])

    def prepare(self) -> Mode | None:
        """Prepares the next round, after a poll by admitting requests and choosing gamma. Returns the
        round's mode; None where there is nothing to run."""
        slots, pacing = self._context.slots, self.pacing
        if pacing.rounds == 0:  # so that gamma is chosen for the rows that there are
            self._admit()
        occupied = slots.occupied()
        if not occupied:
            self._forget()
            return None
        if all(state.cancelled for _, state in occupied) or self._all_guessed():
            self._drain()
            return None
        mode = self._mode([state.request for _, state in occupied])
        if pacing.rounds == 0:
            if pacing.choose(sampling=mode.sampling) and self._reader is not None:
                self._reader.read()
            pacing.start_clock()
        groups = slots.groups(pacing.gamma)
        drafter = bool(pacing.gamma) or slots.observed
        pacing.count_round(uniform=len(groups) == 1 and groups[0].drafter == drafter)
        return mode

    def finish(self) -> None:
        """Polls after a round, if it is time to."""
        context = self._context
        if any(state.cancelled for _, state in context.slots.occupied()):
            self._drain()  # their slots and encoder states are free with this step
        elif self.pacing.rounds >= context.device.rounds_per_poll or self.queue.waiting:
            self._poll()

    def fail_all(self, error: Exception) -> BrokenError | None:
        """Fails the requests in the slots, after a fault that cannot be isolated by row. If the device
        has failed, fails the waiting ones too; returns the error that later requests get."""
        context, slots = self._context, self._context.slots
        slots.fail_all(context.faults.record(faults.ENGINE, error))
        self._forget()
        try:
            with context.device.guard():
                slots.reset()
                context.device.synchronize()
        except Exception as lost:
            broken = BrokenError(f"the device {context.device.name} has failed: {lost}")
            broken.__cause__ = lost
            self.queue.fail_all(broken)
            return broken
        return None

    def _admit(self) -> None:
        free = self._context.slots.free()
        chosen = list(zip(free, self.queue.take(len(free)), strict=False))
        if chosen:
            self._admission.admit(chosen)

    def _all_guessed(self) -> bool:
        """Whether all rows have ended with their guesses, so that no round is needed. Asked only where
        reading the device costs nothing."""
        context = self._context
        guessing = any(state.request.guess for _, state in context.slots.occupied())
        return guessing and context.device.synchronous and not bool(context.rows.active.any())

    def _mode(self, requests: list[Request]) -> Mode:
        need = Mode.of(requests)
        if not self._context.device.static_shapes:
            return need
        return self._shapes.mode(need)

    def _poll(self) -> None:
        """Takes a snapshot, and reads it, or the one before where reads are late: the device then has a
        period of rounds to run while the host ends rows and admits others."""
        self._take()
        while len(self._late) > int(self._context.device.late_reads):
            self._read(self._late.popleft())

    def _drain(self) -> None:
        """Takes a snapshot and reads everything."""
        self._take()
        while self._late:
            self._read(self._late.popleft())

    def _take(self) -> None:
        context, slots = self._context, self._context.slots
        copy = context.reader.take(context.rows, context.counters)
        self._late.append(self.pacing.end(copy, list(slots.states), slots.grown))

    def _read(self, period: Period) -> None:
        """Reads which rows have ended, and frees their slots."""
        snapshot, slots = period.copy.read(), self._context.slots
        self.pacing.report(period, snapshot)
        slots.note_lengths(snapshot.lengths, period.states)
        self.collector.end_inactive(snapshot, period.states, period.copy.moment)
        self.collector.polled = period.copy.moment
        slots.measure(period.grown)

    def _forget(self) -> None:
        """Drops the period under way, and the snapshots that nobody needs."""
        self.pacing.reset()
        self._late.clear()
