"""The rounds from one poll of the rows' state to the next: how long their drafts are, and what they cost.

`Periods` asks the schedule for gamma, takes a snapshot at the end of a period, and tells the schedule what
the period brought. Where reads are late a snapshot is read after the period that follows it: the device then
has rounds to run while the host ends rows and admits others. Knows schedules, clocks and snapshots; nothing
of models or results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from ..protocols import Poll, Schedule
from ..transfers import HostCopy, HostReader, Moment
from .faults import SCHEDULE
from .shared import Shared
from .slots import SlotState


@dataclass
class Period:
    """The rounds between two polls, and the snapshot after them."""

    gamma: int
    sampling: bool = False
    began: Moment | None = None  # None: its rounds were not started
    read: int = 0  # prompts that the drafter read before them
    reading: Moment | None = None  # when it began to
    rounds: int = 0
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
        self._buckets = schedule.buckets  # of one there is nothing to choose and to learn
        self._reader = HostReader(shared.device)
        self.now = Period(min(self._buckets))
        self.admitted = 0  # requests since the last report
        self._ended: deque[Period] = deque()
        self._faults = 0  # logged before this period
        self._totals = (0, 0, 0)  # of earlier periods, as in `Snapshot`
        self._reported_s = 0.0

    def begin(self, *, sampling: bool, read: Callable[[], None] | None) -> None:
        """Starts a period: the schedule's gamma, or its smallest one where the schedule fails. Before drafts
        the drafter reads what it lacks; `read` None: it never does."""
        self.now = now = Period(min(self._buckets), sampling)
        if len(self._buckets) > 1:
            try:
                chosen = self._schedule.choose(sampling=sampling)
                if chosen not in self._buckets:
                    raise ValueError(f"gamma {chosen} is none of its {self._buckets}")
                now.gamma = chosen
            except Exception as error:
                self._shared.faults.record(SCHEDULE, error)
        device, backlog = self._shared.device, self._shared.slots.backlog
        if now.gamma and read is not None and (backlog.prompts or backlog.tokens):
            now.read, now.reading = len(backlog.prompts), Moment(device, self._clock())
            read()
        now.began = Moment(device, self._clock())

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
        now.copy = self._reader.read(lambda: packed, now.ended)
        now.occupied, now.grown = shared.slots.occupied, shared.slots.grown
        now.disturbed |= shared.faults.count != self._faults
        self._faults = shared.faults.count
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
            if len(self._buckets) > 1:
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
            sampling=period.sampling,
            admitted=self.admitted,
            read=period.read,
            reading_s=0.0 if period.reading is None else period.reading.seconds_to(began),
        )
        self.admitted = 0
        try:
            self._schedule.learn(poll)
        except Exception as error:
            self._shared.faults.record(SCHEDULE, error)
