"""What happens between rounds: admission, draft lengths, the polls that end rows, and their results.

`Scheduler` decides which requests are in the slots. `Pacing` has the rounds between two polls: how long
drafts are, what they cost, and what the schedule is told. `ResultCollector` reads what a slot has written, at
its end and before it. Knows requests, slots and a schedule; nothing of how a round runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..device import Device
from ..errors import BrokenError, DecodingError
from ..graphs.runner import Capture
from ..graphs.shapes import ShapeSet
from ..graphs.snapshots import Moment, RowRecord, Snapshot, SnapshotCopy
from ..protocols import Poll, Processor, Schedule
from ..requests import Finish, Mode, Partial, Ranked, Request, Result, Source
from ..rounds.accept import RuleChoice
from .admission import Admission, DraftReader
from .context import ENGINE, RESULT, SCHEDULE, EngineContext, FaultLog
from .schedule import Fixed
from .slots import RequestQueue, SlotState, failed


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
        capture: Capture | None = None,
    ) -> None:
        if reader is not None:
            rules.check()
        self._context, self._shapes = context, shapes
        at_once = reader is not None and context.needs.at_once
        read = reader.read_prompts if at_once and reader is not None else None
        self._admission = Admission(context, rules, shapes, processors, read, capture)
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
                pacing.start_reading(len(slots.backlog.prompts))
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
        slots.fail_all(context.faults.record(ENGINE, error))
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
            self.pacing.admitted += len(chosen)

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


class Pacing:
    """The rounds since the last poll. A period starts with `choose`, `end` closes it and `report` tells the
    schedule."""

    def __init__(
        self, schedule: Schedule, log: FaultLog, clock: Callable[[], float], device: Device
    ) -> None:
        self.schedule, self._log, self._clock, self._device = schedule, log, clock, device
        self.gamma = 0
        self.rounds = 0  # since the last poll
        self.admitted = 0  # requests since the last report
        self._sampling = False
        self._read = 0  # prompts that the drafter reads before the rounds
        self._reading: Mark | None = None  # None: it reads nothing
        self._began: Mark | None = None
        self._mixed = False  # a round was not uniform, so its time is not that of its gamma
        self._faults = 0  # logged before this period
        self._totals = (0, 0, 0)  # judged and accepted drafts and row rounds of earlier periods
        self._reported_s = 0.0

    def choose(self, *, sampling: bool) -> int:
        """Starts a period: the schedule's gamma, or its smallest one where the schedule fails."""
        self._sampling, buckets = sampling, self.schedule.buckets
        self._read, self._reading = 0, None
        self.gamma = min(buckets)
        try:
            chosen = self.schedule.choose(sampling=sampling)
            if chosen not in buckets:
                raise ValueError(f"gamma {chosen} is none of its {buckets}")
            self.gamma = chosen
        except Exception as error:
            self._log.record(SCHEDULE, error)
        return self.gamma

    def start_reading(self, prompts: int) -> None:
        """Starts to measure what the drafter reads before the rounds of the period."""
        self._read, self._reading = prompts, self._mark()

    def start_clock(self) -> None:
        """Starts to measure the rounds of the period."""
        self._began = self._mark()

    def _mark(self) -> Mark:
        return Mark(Moment(self._device), self._clock())

    def count_round(self, *, uniform: bool) -> None:
        """Counts a round; `uniform` where all rows run it together, with the chosen gamma."""
        self.rounds += 1
        self._mixed |= not uniform

    def reset(self) -> None:
        """Drops the period without a report."""
        self.rounds = 0

    def end(self, copy: SnapshotCopy, states: list[SlotState | None], grown: int) -> Period:
        """Ends the period with a snapshot."""
        disturbed = self._mixed or self._log.count != self._faults
        ended = Period(
            gamma=self.gamma,
            rounds=self.rounds,
            sampling=self._sampling,
            disturbed=disturbed,
            read=self._read,
            reading=self._reading,
            began=self._began,
            copy=copy,
            states=states,
            grown=grown,
        )
        self.rounds, self._mixed, self._faults = 0, False, self._log.count
        return ended

    def report(self, period: Period, snapshot: Snapshot) -> None:
        """Reports a period to the schedule, unless it was disturbed."""
        seconds = self._seconds(period)
        totals = snapshot.judged, snapshot.accepted, snapshot.row_rounds
        judged, accepted, row_rounds = (
            now - before for now, before in zip(totals, self._totals, strict=True)
        )
        self._totals = totals
        if period.disturbed or not period.rounds or isinstance(self.schedule, Fixed):
            return
        poll = Poll(
            gamma=period.gamma,
            rounds=period.rounds,
            row_rounds=row_rounds,
            judged=judged,
            accepted=accepted,
            seconds=seconds,
            sampling=period.sampling,
            admitted=self.admitted,
            read=period.read,
            reading_s=period.reading_s,
        )
        self.admitted = 0
        try:
            self.schedule.learn(poll)
        except Exception as error:
            self._log.record(SCHEDULE, error)

    def _seconds(self, period: Period) -> float:
        """The time of a period. Without events it is that until its snapshot arrives, from the arrival of the
        one before it or the launch of its first round."""
        now, before = self._clock(), self._reported_s
        self._reported_s = now
        if period.began is None:
            return now - before
        measured = period.began.moment.seconds_to(period.copy.moment)
        return now - max(period.began.clock_s, before) if measured is None else measured


@dataclass(frozen=True)
class Mark:
    """A point in time: on a device with events in its work, elsewhere by the clock."""

    moment: Moment
    clock_s: float

    def seconds_to(self, later: Mark) -> float:
        """Seconds between two points that have passed."""
        measured = self.moment.seconds_to(later.moment)
        return later.clock_s - self.clock_s if measured is None else measured


@dataclass(frozen=True)
class Period:
    """The rounds between two polls, and the snapshot after them."""

    gamma: int
    rounds: int
    sampling: bool
    disturbed: bool  # by a fault or a mixed round: its time is not that of its gamma
    read: int  # prompts that the drafter read before them
    reading: Mark | None  # when it began to
    began: Mark | None  # None: it has not been started
    copy: SnapshotCopy
    states: list[SlotState | None]  # who was in the slots
    grown: int  # see `Slots.grown`

    @property
    def reading_s(self) -> float:
        """How long the drafter read prompts and text before the rounds."""
        return (
            0.0
            if self.reading is None or self.began is None
            else self.reading.seconds_to(self.began)
        )


class ResultCollector:
    """Reads results from the rows, and delivers them to their inboxes."""

    def __init__(self, context: EngineContext, rules: RuleChoice) -> None:
        self._context, self._rules = context, rules
        self.polled: Moment | None = None  # when the last snapshot that was read was taken

    def end_inactive(
        self, snapshot: Snapshot, before: list[SlotState | None], after: Moment | None = None
    ) -> None:
        """Ends the slots whose row was not active any more in a snapshot, taken at the moment `after` when
        `before` were in the slots."""
        for row, state in self._context.slots.occupied():
            if state is before[row] and not snapshot.active[row]:
                # A cancelled row may have stopped later than in the snapshot.
                self._end(row, state, None if state.cancelled else after)

    def fail(self, row: int, error: DecodingError) -> None:
        """Ends a slot with an error; its result has what was written before."""
        state = self._context.slots.states[row]
        assert state is not None
        state.error = error
        self._end(row, state)
        # What made it fail must not be read in rounds of the others.
        self._context.rows.clear(row)

    def _end(self, row: int, state: SlotState, after: Moment | None = None) -> None:
        """Frees the slot and delivers its result."""
        self._context.slots.vacate(row)
        try:
            result = self.collect(row, state, after)
        except Exception as raised:
            error = self._context.faults.record(RESULT, raised)
            result = failed(state.request, state.error or error)
        state.inbox.put(result)

    def collect(self, row: int, state: SlotState, after: Moment | None = None) -> Result:
        """The result of a row that has ended by the moment `after`; None is now."""
        context, request = self._context, state.request
        begin, end = len(request.prompt), context.rows.scratch
        if after is not None:
            end = max(begin, context.slots.lengths[row])
        record = context.reader.row(context.rows, row, begin, end, request.ranks, after)
        return Result(
            request=request,
            tokens=tuple(record.tokens),
            logprobs=tuple(record.logprobs),
            sources=tuple(Source(s) for s in record.sources),
            finish=self._finish(state, record.tokens),
            rounds=record.rounds,
            drafted=record.drafted,
            accepted=record.accepted,
            probe=() if state.probe is None else tuple(state.probe.tensor().tolist()),
            ranked=ranked(record),
            guarantee=self._rules.guarantee(sampling=request.temperature > 0),
            error=state.error,
            draft_error=state.draft_error,
        )

    def _finish(self, state: SlotState, tokens: list[int]) -> Finish:
        if state.error is not None:
            return Finish.FAILED
        if state.cancelled:
            return Finish.CANCELLED
        stopped = bool(tokens) and tokens[-1] in self._context.ends
        return Finish.STOP if stopped else Finish.LENGTH

    def partials(self, known: Mapping[Any, int]) -> list[Partial]:
        """What unfinished rows had written in the last poll; `known` has the tokens to skip of each, by
        tag."""
        context, partials = self._context, []
        for row, state in context.slots.occupied():
            if state.cancelled:
                continue
            request, begin = state.request, known.get(state.request.tag, 0)
            start = len(request.prompt) + begin
            end = max(start, context.slots.lengths[row])
            record = context.reader.row(context.rows, row, start, end, request.ranks, self.polled)
            partials.append(
                Partial(
                    request=request,
                    begin=begin,
                    tokens=tuple(record.tokens),
                    logprobs=tuple(record.logprobs),
                    ranked=ranked(record),
                )
            )
        return partials


def ranked(record: RowRecord) -> Ranked:
    """The most likely tokens at each token of a row, with their log-probabilities."""
    if not record.ranked or not record.ranked[0]:
        return ()
    pairs = zip(record.ranked, record.ranked_logprobs, strict=True)
    return tuple(tuple(zip(*pair, strict=True)) for pair in pairs)
