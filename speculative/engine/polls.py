"""Polls: what the host reads of the rows after some rounds, which have ended, and what they have written.

`Periods` has the rounds from one poll to the next: it asks the schedule for gamma, takes a snapshot at the
end of a period, and tells the schedule what the period brought. Where reads are late a snapshot is read after
the period that follows it: the device then has rounds to run while the host ends rows and admits others.

`Results` ends the rows that a snapshot shows to have ended. A row is read at its end and, for partial texts,
before it; one packed tensor each time. Knows schedules, clocks and tables; nothing of models or rounds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..device import HostCopy, HostReader, Moment
from ..errors import SCHEDULE, DecodingError
from ..protocols import Poll, Schedule
from ..requests import Finish, Partial, Request, Result, Source
from ..rounds.beams import BeamRows, best_text, read_group
from ..rows import Rows
from .table import Entry, Table


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
    occupied: Mapping[int, Entry] = field(default_factory=dict)  # who was in the rows
    grown: int = 0  # see `Table.grown`
    # Set when its snapshot is read, of all rows `[B]`:
    active: list[int] = field(default_factory=list)  # 0 or 1
    used: list[int] = field(default_factory=list)  # slots


class Periods:
    """The period under way, and those whose snapshot is on its way."""

    def __init__(self, table: Table, schedule: Schedule) -> None:
        self._table, self._schedule = table, schedule
        self._buckets = schedule.buckets  # of one there is nothing to choose
        self._reader = HostReader(table.device)
        self.now = Period(min(self._buckets))
        self.admitted = 0  # requests since the last report
        self._ended: deque[Period] = deque()
        self._faults = 0  # logged before this period
        self._totals = (0, 0, 0)  # of earlier periods: judged and accepted drafts, and row rounds
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
                self._table.faults.record(SCHEDULE, error)
        device, table = self._table.device, self._table
        if now.gamma and read is not None and (table.unread_prompts or table.unread_tokens):
            now.read, now.reading = len(table.unread_prompts), Moment(device)
            read()
        now.began, now.widths = Moment(device), table.counts.widths

    def end(self) -> None:
        """Ends the period with a snapshot, in the order of the device's work."""
        now, table = self.now, self._table
        rows, counters, used = table.rows, table.counters, table.rows.lengths
        if table.texts > 1:
            used = rows.begin + (used - rows.begin) * table.texts
        packed = torch.cat(
            [rows.active, used, counters.judged[None], counters.row_rounds[None], counters.accepted]
        )  # [2 B + 2 + G] int64: each copy costs a launch and a wait, whatever its size
        now.ended = Moment(table.device)
        now.copy = self._reader.read(packed.detach, now.ended)
        now.occupied, now.grown = table.occupied, table.grown
        now.disturbed |= table.faults.count != self._faults
        self._faults = table.faults.count
        now.widths = table.counts.widths - now.widths
        self._ended.append(now)
        self.now = Period(now.gamma)

    def read(self, *, late: int) -> Iterator[Period]:
        """The ended periods but the last `late`, whose snapshots have been read; tells the schedule of each.
        Waits for the rounds before a snapshot, not for those after it."""
        while len(self._ended) > late:
            period, batch = self._ended.popleft(), self._table.batch
            assert period.copy is not None
            numbers: list[int] = period.copy.tensor().tolist()
            period.active, period.used = numbers[:batch], numbers[batch : 2 * batch]
            judged, row_rounds, *accepted = numbers[2 * batch :]
            self._report(period, (judged, sum(accepted), row_rounds))
            yield period

    def forget(self) -> None:
        """Drops the period under way, and the snapshots that nobody needs."""
        self.now.rounds = 0
        self._ended.clear()

    def _report(self, period: Period, totals: tuple[int, int, int]) -> None:
        """Reports a period to the schedule, unless it was disturbed. Without events it lasts until its
        snapshot arrives, from the arrival of the one before it or the launch of its first round."""
        arrived, before = time.perf_counter(), self._reported_s
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
            self._table.faults.record(SCHEDULE, error)


class Results:
    """Ends rows, and collects their results."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # Not that of snapshots: a row's read must not wait for those that were taken after it had ended.
        self._reader = HostReader(table.device)
        self.polled: Moment | None = None  # when the last snapshot that was read was taken

    def retire(self, period: Period) -> None:
        """Ends the requests whose row was not active any more at the end of a period."""
        table, self.polled = self._table, period.ended
        for row in table.note(period.active, period.used, period.occupied, period.grown):
            self._end(row, period.ended)

    def fail(self, row: int, error: DecodingError) -> None:
        """Ends a request with an error; its result has what was written before."""
        self._table.occupied[row].error = error
        self._end(row)
        # What made it fail must not be read in rounds of the others.
        self._table.rows.clear(row)

    def _end(self, row: int, after: Moment | None = None) -> None:
        """Collects the result of a row that has ended by the moment `after` (None: now), and frees it."""
        table, entry = self._table, self._table.occupied[row]
        request = entry.request
        if isinstance(table.rows, BeamRows):
            written = self._read_group(table.rows, row, request, after)
            table.counts.emitted += len(written["tokens"])
        else:
            begin, end = len(request.prompt), table.rows.scratch
            if after is not None:
                end = max(begin, table.used[row])
            written = self._read_text(row, begin, end, request.ranks, after)
        finish, tokens = Finish.LENGTH, written["tokens"]
        if entry.error is not None:
            finish = Finish.FAILED
        elif row in table.cancelled:
            finish = Finish.CANCELLED
        elif tokens and tokens[-1] in table.shared.ends:
            finish = Finish.STOP
        result = Result(
            request=request,
            finish=finish,
            probe=() if entry.probe is None else tuple(entry.probe.tensor().tolist()),
            error=entry.error,
            draft_error=entry.draft_error,
            **written,
        )
        table.vacate(row)
        table.shared.ended.append(result)

    def partials(self, known: Mapping[Any, int]) -> list[Partial]:
        """What unfinished rows of one text had written in the last poll; `known` has the tokens to skip of
        each, by tag."""
        table, partials = self._table, []
        for row, entry in table.occupied.items():
            if row in table.cancelled:
                continue
            request, begin = entry.request, known.get(entry.request.tag, 0)
            start = len(request.prompt) + begin
            end = max(start, table.used[row])
            written = self._read_text(row, start, end, request.ranks, self.polled)
            partials.append(
                Partial(
                    request=request,
                    begin=begin,
                    **{name: written[name] for name in ("tokens", "logprobs", "ranked")},
                )
            )
        return partials

    def _read_group(
        self, rows: BeamRows, row: int, request: Request, after: Moment | None
    ) -> dict[str, Any]:
        """Reads the best text of a group: fields of its result."""
        assert request.beams is not None
        group = self._reader.read_all(lambda: read_group(rows, row), after)
        (rounds,), (drafted,), (accepted,), *texts = group
        tokens, logprobs = best_text(texts, len(request.prompt), request.beams)
        return {
            "tokens": tuple(tokens),
            "logprobs": tuple(logprobs),
            "sources": (Source.PLAIN,) * len(tokens),
            "rounds": rounds,
            "drafted": drafted,
            "accepted": accepted,
        }

    def _read_text(
        self, row: int, begin: int, end: int, ranks: int, after: Moment | None = None
    ) -> dict[str, Any]:
        """Reads a row from slot `begin` on: fields of its result. Nothing is written to the slots below `end`
        after the moment `after`; None waits for everything queued."""
        rows, each, span = cast(Rows, self._table.rows), slice(row, row + 1), slice(begin, end)

        def parts() -> list[Tensor]:
            counts = (rows.lengths, rows.rounds, rows.drafted, rows.accepted)
            written = (rows.tokens, rows.sources, rows.logprobs)
            best = (rows.ranked[row, span, :ranks], rows.ranked_logprobs[row, span, :ranks])
            of_row = [*(x[each] for x in counts), *(x[row, span] for x in written)]
            return [*of_row, *(x.flatten() for x in best)]

        (length,), (rounds,), (drafted,), (accepted,), *written = self._reader.read_all(
            parts, after
        )
        tokens, sources, logprobs, ids, chances = written
        count, best = max(0, min(length, end) - begin), list(zip(ids, chances, strict=True))
        return {
            "tokens": tuple(tokens[:count]),
            "logprobs": tuple(logprobs[:count]),
            "sources": tuple(map(Source, sources[:count])),
            "rounds": rounds,
            "drafted": drafted,
            "accepted": accepted,
            "ranked": tuple(
                tuple(best[i * ranks : (i + 1) * ranks]) for i in range(count if ranks else 0)
            ),
        }
