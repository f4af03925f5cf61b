"""The rounds between two polls: how long drafts are, what they cost, and what the schedule is told.

Knows a schedule, a clock and snapshots; nothing of requests or slots beyond who is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..device import Device
from ..graphs.snapshots import Snapshot, SnapshotCopy
from ..graphs.transfers import Moment
from ..protocols import Poll, Schedule
from . import faults
from .faults import FaultLog
from .schedule import Fixed
from .slots import SlotState


@dataclass(frozen=True)
class Period:
    """The rounds between two polls, and the snapshot after them."""

    gamma: int
    rounds: int
    sampling: bool
    disturbed: bool  # by a fault or a mixed round: its time is not that of its gamma
    began: Moment | None  # None: it has not been started
    began_s: float
    copy: SnapshotCopy
    states: list[SlotState | None]  # who was in the slots
    grown: int  # see `Slots.grown`


class Pacing:
    """The rounds since the last poll. A period starts with `choose`, `end` closes it and `report` tells the
    schedule."""

    def __init__(
        self, schedule: Schedule, log: FaultLog, clock: Callable[[], float], device: Device
    ) -> None:
        self.schedule, self._log, self._clock, self._device = schedule, log, clock, device
        self.gamma = 0
        self.rounds = 0  # since the last poll
        self._sampling = False
        self._began: Moment | None = None
        self._began_s = 0.0
        self._mixed = False  # a round was not uniform, so its time is not that of its gamma
        self._faults = 0  # logged before this period
        self._totals = (0, 0, 0)  # judged and accepted drafts and row rounds of earlier periods
        self._reported_s = 0.0

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
        self._began, self._began_s = Moment(self._device), self._clock()

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
            began=self._began,
            began_s=self._began_s,
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
        )
        try:
            self.schedule.learn(poll)
        except Exception as error:
            self._log.record(faults.SCHEDULE, error)

    def _seconds(self, period: Period) -> float:
        """The time of a period. Without events it is that until its snapshot arrives, from the arrival of the
        one before it or the launch of its first round."""
        now, before = self._clock(), self._reported_s
        self._reported_s = now
        if period.began is not None:
            measured = period.began.seconds_to(period.copy.moment)
            if measured is not None:
                return measured
        return now - max(period.began_s, before)
