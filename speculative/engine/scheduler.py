"""What happens between rounds: admission, draft lengths, and the polls that end rows.

Knows requests, slots and a schedule; nothing of how a round runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ..errors import BrokenError
from ..protocols import Poll, Schedule
from ..requests import Mode, Request
from ..rounds.counters import Counters
from ..rounds.rule_choice import RuleChoice
from . import faults
from .admission import Admission
from .collection import ResultCollector
from .context import EngineContext
from .draft_reader import DraftReader
from .faults import FaultLog
from .schedule import Fixed
from .slots import RequestQueue


class Scheduler:
    """Decides which requests are in the slots, and how the next round drafts."""

    def __init__(
        self,
        context: EngineContext,
        rules: RuleChoice,
        modes: Sequence[Mode],
        schedule: Schedule,
        clock: Callable[[], float],
    ) -> None:
        if context.drafting:
            rules.check()
        self._context, self._modes = context, modes
        self._admission = Admission(context, rules, modes)
        self._reader = DraftReader(context)
        self.collector = ResultCollector(context, rules)
        self.pacing = Pacing(schedule, context.faults, clock)
        self.queue = RequestQueue()

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
            pacing.reset()
            return None
        if all(state.cancelled for _, state in occupied):
            self._poll()
            return None
        mode = self._mode([state.request for _, state in occupied])
        if pacing.rounds == 0:
            if pacing.choose(sampling=mode.sampling):
                self._reader.read()
            pacing.start_clock()
        drafts = [gamma for _, gamma in slots.groups(pacing.gamma)]
        pacing.count_round(uniform=drafts == [pacing.gamma])
        return mode

    def finish(self) -> None:
        """Polls after a round, if it is time to."""
        if self.pacing.rounds >= self._context.device.rounds_per_poll or self.queue.waiting:
            self._poll()

    def fail_all(self, error: Exception) -> BrokenError | None:
        """Fails the requests in the slots, after a fault that cannot be isolated by row. If the device
        has failed, fails the waiting ones too; returns the error that later requests get."""
        context, slots = self._context, self._context.slots
        slots.fail_all(context.faults.record(faults.ENGINE, error))
        self.pacing.reset()
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

    def warm_up(self) -> None:
        """Runs what the drafter reads with once, so that its shape is compiled."""
        if self._context.drafting and 0 in self.pacing.schedule.buckets:
            self._reader.warm_up()

    def _admit(self) -> None:
        free = self._context.slots.free()
        chosen = list(zip(free, self.queue.take(len(free)), strict=False))
        if chosen:
            self._admission.admit(chosen)

    def _mode(self, requests: list[Request]) -> Mode:
        need = Mode.of(requests)
        if not self._context.device.static_shapes:
            return need
        return next((mode for mode in self._modes if mode.covers(need)), need)

    def _poll(self) -> None:
        """Reads which rows have ended, and frees their slots."""
        active: list[bool] = self._context.rows.active.tolist()
        self.pacing.end(self._context.counters)
        self.collector.end_inactive(active)
        self._context.slots.measure()


class Pacing:
    """The rounds since the last poll. A period starts with `begin`, and `end` reports it."""

    def __init__(self, schedule: Schedule, log: FaultLog, clock: Callable[[], float]) -> None:
        self.schedule, self._log, self._clock = schedule, log, clock
        self.gamma = 0
        self.rounds = 0  # since the last poll
        self._sampling = False
        self._began = 0.0
        self._mixed = False  # a round was not uniform, so its time is not that of its gamma
        self._faults = 0  # logged before this period
        self._reported = (0, 0, 0)  # judged and accepted drafts and row rounds of earlier periods

    def choose(self, *, sampling: bool) -> int:
        """Starts a period: the schedule's gamma, or its smallest one where the schedule fails."""
        self._sampling, buckets = sampling, self.schedule.buckets
        self.gamma = min(buckets)
        try:
            chosen = self.schedule.choose(sampling=sampling)
            if chosen not in buckets:
                raise ValueError(f"gamma {chosen} is none of its {buckets}")
            self.gamma = chosen
        except Exception as error:
            self._log.record(faults.SCHEDULE, error)
        return self.gamma

    def start_clock(self) -> None:
        """Starts to measure the rounds of the period."""
        self._began = self._clock()

    def count_round(self, *, uniform: bool) -> None:
        """Counts a round; `uniform` where all rows run it together, with the chosen gamma."""
        self.rounds += 1
        self._mixed |= not uniform

    def reset(self) -> None:
        """Drops the period without a report."""
        self.rounds = 0

    def end(self, counters: Counters) -> None:
        """Ends the period, and reports it to the schedule unless a fault or a mixed round has changed its
        cost."""
        seconds, rounds = self._clock() - self._began, self.rounds
        self.rounds = 0
        if isinstance(self.schedule, Fixed):
            return  # spares the device two reads
        totals = int(counters.judged), int(counters.accepted.sum()), int(counters.row_rounds)
        judged, accepted, row_rounds = (
            now - before for now, before in zip(totals, self._reported, strict=True)
        )
        disturbed = self._mixed or self._log.count != self._faults
        self._reported, self._mixed, self._faults = totals, False, self._log.count
        if disturbed or not rounds:
            return
        poll = Poll(
            gamma=self.gamma,
            rounds=rounds,
            row_rounds=row_rounds,
            judged=judged,
            accepted=accepted,
            seconds=seconds,
            sampling=self._sampling,
        )
        try:
            self.schedule.learn(poll)
        except Exception as error:
            self._log.record(faults.SCHEDULE, error)
