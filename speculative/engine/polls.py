"""Polls: what the host reads of the rows after some rounds, which have ended, and what they have written.

`Periods` has the rounds from one poll to the next: it asks the schedule for gamma, takes a snapshot at the
end of a period, and tells the schedule what the period brought. Where reads are late a snapshot is read after
the period that follows it: the device then has rounds to run while the host ends rows and admits others.

`Results` ends the rows that a snapshot shows to have ended. A row is read at its end and, for partial texts,
before it; one packed tensor each time. Knows schedules, clocks, slots and rows; nothing of models or rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..device import HostCopy, HostReader, Moment
from ..errors import RESULT, SCHEDULE, DecodingError
from ..protocols import Poll, Schedule
from ..requests import Finish, Partial, Ranked, Result, Source
from .slots import Shared, SlotState, failed

COUNTS = 4


@dataclass
class Period:
    """The rounds between two polls, and the snapshot after them."""

    gamma: int
    began: Moment | None = None  # None: its rounds were not started
    read: int = 0  # prompts that the drafter read before them
    reading: Moment | None = None  # when it began to
    rounds: int = 0
    widths: int = 0  # of the drafts of these rounds; until its end, of those before them
    disturbed: bool = False  # by a fault or a mixed round: its time is not that of its gamma
    # Set at its end:
    ended: Moment | None = None
    copy: HostCopy | None = None
    occupied: Mapping[int, SlotState] = field(default_factory=dict)  # who was in the slots
    grown: int = 0  # see `Slots.grown`


@dataclass(frozen=True)
class Snapshot:
    """The state of all rows after a round, and the counters that schedules learn from."""

    active: list[int]  # [B] 0 or 1
    lengths: list[int]  # [B]
    totals: tuple[int, int, int]  # judged and accepted drafts, and row rounds


class Periods:
    """The period under way, and those whose snapshot is on its way."""

    def __init__(self, shared: Shared, schedule: Schedule, clock: Callable[[], float]) -> None:
        self._shared, self._schedule, self._clock = shared, schedule, clock
        self._buckets = schedule.buckets  # of one there is nothing to choose
        self._reader = HostReader(shared.device)
        self.now = Period(min(self._buckets))
        self.admitted = 0  # requests since the last report
        self._ended: deque[Period] = deque()
        self._faults = 0  # logged before this period
        self._totals = (0, 0, 0)  # of earlier periods, as in `Snapshot`
        self._reported_s = 0.0

    def begin(self, read: Callable[[], None] | None) -> None:
        """Starts a period: the schedule's gamma, or its smallest one where the schedule fails. Before drafts
        the drafter reads what it lacks; `read` None: it never does."""
        self.now = now = Period(min(self._buckets))
        if len(self._buckets) > 1:
            try:
                chosen = self._schedule.choose()
                if chosen not in self._buckets:
                    raise ValueError(f"gamma {chosen} is none of its {self._buckets}")
                now.gamma = chosen
            except Exception as error:
                self._shared.faults.record(SCHEDULE, error)
        device, slots = self._shared.device, self._shared.slots
        if now.gamma and read is not None and (slots.unread_prompts or slots.unread_tokens):
            now.read, now.reading = len(slots.unread_prompts), Moment(device, self._clock())
            read()
        now.began, now.widths = Moment(device, self._clock()), self._shared.counts.widths

    def end(self) -> None:
        """Ends the period with a snapshot, in the order of the device's work."""
        now, shared = self.now, self._shared
        rows, counters = shared.slots.rows, shared.counters
        packed = torch.cat(
            [
                rows.active,
                rows.lengths,
                counters.judged[None],
                counters.row_rounds[None],
                counters.accepted,
            ]
        )  # [2 B + 2 + G] int64: each copy costs a launch and a wait, whatever its size
        now.ended = Moment(shared.device, self._clock())
        now.copy = self._reader.read(packed.detach, now.ended)
        now.occupied, now.grown = shared.slots.occupied, shared.slots.grown
        now.disturbed |= shared.faults.count != self._faults
        self._faults = shared.faults.count
        now.widths = shared.counts.widths - now.widths
        self._ended.append(now)
        self.now = Period(now.gamma)

    def read(self, *, late: int) -> Iterator[tuple[Period, Snapshot]]:
        """The ended periods but the last `late`, with their snapshots; tells the schedule of each. Waits for
        the rounds before a snapshot, not for those after it."""
        while len(self._ended) > late:
            period, batch = self._ended.popleft(), self._shared.slots.rows.batch
            assert period.copy is not None
            numbers: list[int] = period.copy.tensor().tolist()
            judged, row_rounds, *accepted = numbers[2 * batch :]
            totals = judged, sum(accepted), row_rounds
            snapshot = Snapshot(numbers[:batch], numbers[batch : 2 * batch], totals)
            self._report(period, totals)
            yield period, snapshot

    def forget(self) -> None:
        """Drops the period under way, and the snapshots that nobody needs."""
        self.now.rounds = 0
        self._ended.clear()

    def _report(self, period: Period, totals: tuple[int, int, int]) -> None:
        """Reports a period to the schedule, unless it was disturbed. Without events it lasts until its
        snapshot arrives, from the arrival of the one before it or the launch of its first round."""
        arrived, before = self._clock(), self._reported_s
        known, self._totals, self._reported_s = self._totals, totals, arrived
        if period.disturbed or not period.rounds:
            return
        began, ended = period.began, period.ended
        assert began is not None and ended is not None
        measured = began.event is not None
        seconds = began.seconds_to(ended) if measured else arrived - max(began.clock_s, before)
        poll = Poll(
            gamma=period.gamma,
            rounds=period.rounds,
            row_rounds=totals[2] - known[2],
            judged=totals[0] - known[0],
            accepted=totals[1] - known[1],
            seconds=seconds,
            admitted=self.admitted,
            read=period.read,
            reading_s=0.0 if period.reading is None else period.reading.seconds_to(began),
            width=period.widths / period.rounds,
        )
        self.admitted = 0
        try:
            self._schedule.learn(poll)
        except Exception as error:
            self._shared.faults.record(SCHEDULE, error)


class Results:
    """Ends rows, and delivers their results to their inboxes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # Not that of snapshots: a row's read must not wait for those that were taken after it had ended.
        self._reader = HostReader(shared.device)
        self.polled: Moment | None = None  # when the last snapshot that was read was taken

    def retire(self, period: Period, snapshot: Snapshot) -> None:
        """Ends the slots whose row was not active any more at the end of a period."""
        slots = self._shared.slots
        slots.note_lengths(snapshot.lengths, period.occupied)
        for row, state in slots.occupied.items():
            if state is period.occupied.get(row) and not snapshot.active[row]:
                # A cancelled row may have stopped later than in the snapshot.
                self._end(row, state, None if state.cancelled else period.ended)
        self.polled = period.ended
        slots.measure(period.grown)

    def fail(self, row: int, error: DecodingError) -> None:
        """Ends a slot with an error; its result has what was written before."""
        state = self._shared.slots.occupied[row]
        state.error = error
        self._end(row, state)
        # What made it fail must not be read in rounds of the others.
        self._shared.rows.clear(row)

    def _end(self, row: int, state: SlotState, after: Moment | None = None) -> None:
        """Frees the slot and delivers its result."""
        self._shared.slots.vacate(row)
        try:
            result = self.collect(row, state, after)
        except Exception as raised:
            error = self._shared.faults.record(RESULT, raised)
            result = failed(state.request, state.error or error)
        state.inbox.put(result)

    def collect(self, row: int, state: SlotState, after: Moment | None = None) -> Result:
        """The result of a row that has ended by the moment `after`; None is now."""
        shared, request = self._shared, state.request
        begin, end = len(request.prompt), shared.rows.scratch
        if after is not None:
            end = max(begin, shared.slots.lengths[row])
        record = self._row(row, begin, end, request.ranks, after)
        finish = Finish.LENGTH
        if state.error is not None:
            finish = Finish.FAILED
        elif state.cancelled:
            finish = Finish.CANCELLED
        elif record.tokens and record.tokens[-1] in shared.ends:
            finish = Finish.STOP
        return Result(
            request=request,
            tokens=tuple(record.tokens),
            logprobs=tuple(record.logprobs),
            sources=tuple(map(Source, record.sources)),
            finish=finish,
            rounds=record.rounds,
            drafted=record.drafted,
            accepted=record.accepted,
            probe=() if state.probe is None else tuple(state.probe.tensor().tolist()),
            ranked=record.ranked,
            error=state.error,
            draft_error=state.draft_error,
        )

    def partials(self, known: Mapping[Any, int]) -> list[Partial]:
        """What unfinished rows had written in the last poll; `known` has the tokens to skip of each, by
        tag."""
        shared, partials = self._shared, []
        for row, state in shared.slots.occupied.items():
            if state.cancelled:
                continue
            request, begin = state.request, known.get(state.request.tag, 0)
            start = len(request.prompt) + begin
            end = max(start, shared.slots.lengths[row])
            record = self._row(row, start, end, request.ranks, self.polled)
            partials.append(
                Partial(
                    request=request,
                    begin=begin,
                    tokens=tuple(record.tokens),
                    logprobs=tuple(record.logprobs),
                    ranked=record.ranked,
                )
            )
        return partials

    def _row(
        self, row: int, begin: int, end: int, ranks: int, after: Moment | None = None
    ) -> RowRecord:
        """Reads a row from slot `begin` on. Nothing is written to the slots below `end` after the moment
        `after`; None waits for everything queued."""
        rows, each, span = self._shared.rows, slice(row, row + 1), slice(begin, end)

        def packed() -> Tensor:
            """`[4 + (3 + 2 R) M]` int64: counts, then tokens, sources, bits of log-probabilities, and of R
            ranked tokens at each."""
            parts = [
                rows.lengths[each],
                rows.rounds[each],
                rows.drafted[each],
                rows.accepted[each],
                rows.tokens[row, span],
                rows.sources[row, span],
                rows.logprobs[row, span].view(torch.int32),
            ]
            if ranks:
                parts.append(rows.ranked[row, span, :ranks].flatten())
                parts.append(rows.ranked_logprobs[row, span, :ranks].flatten().view(torch.int32))
            return torch.cat(parts)

        numbers = self._reader.read(packed, after).tensor()
        length, rounds, drafted, accepted = numbers[:COUNTS].tolist()
        room, count = end - begin, max(0, min(length, end) - begin)
        sizes = [room] * 3 + [room * ranks] * 2
        tokens, sources, _, best, _ = numbers[COUNTS:].split(sizes)
        bits = numbers[COUNTS:].to(torch.int32).view(torch.float32)
        _, _, logprobs, _, best_logprobs = bits.split(sizes)
        ranked: Ranked = ()
        if ranks:
            ids, chances = (x.view(room, ranks)[:count].tolist() for x in (best, best_logprobs))
            pairs = zip(ids, chances, strict=True)
            ranked = tuple(tuple(zip(*pair, strict=True)) for pair in pairs)
        return RowRecord(
            rounds=rounds,
            drafted=drafted,
            accepted=accepted,
            tokens=tokens[:count].tolist(),
            logprobs=logprobs[:count].tolist(),
            sources=sources[:count].tolist(),
            ranked=ranked,
        )


@dataclass(frozen=True)
class RowRecord:
    """What a row has written from some slot on, and its counts."""

    rounds: int
    drafted: int
    accepted: int
    tokens: list[int]
    logprobs: list[float]
    sources: list[int]
    ranked: Ranked  # the most likely tokens at each one, with their log-probabilities
