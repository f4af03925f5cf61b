"""Results: which rows have ended, and what they have written.

A row is read at its end and, for partial texts, before it; one packed tensor each time. Knows slots and rows;
nothing of rounds or schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import DecodingError
from ..requests import Finish, Partial, Ranked, Result, Source
from ..rounds.accept import RuleChoice
from ..rows import Rows
from ..transfers import HostReader, Moment
from .faults import RESULT
from .periods import Period, Snapshot
from .shared import Shared
from .slots import SlotState, failed

COUNTS = 4


class Results:
    """Ends rows, and delivers their results to their inboxes."""

    def __init__(self, shared: Shared, rules: RuleChoice) -> None:
        self._shared, self._rules = shared, rules
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
        stopped = bool(tokens) and tokens[-1] in self._shared.ends
        return Finish.STOP if stopped else Finish.LENGTH

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
                    ranked=ranked(record),
                )
            )
        return partials

    def _row(
        self, row: int, begin: int, end: int, ranks: int, after: Moment | None = None
    ) -> RowRecord:
        """Reads a row from slot `begin` on. Nothing is written to the slots below `end` after the moment
        `after`; None waits for everything queued."""
        rows = self._shared.rows
        packed = self._reader.read(lambda: _packed(rows, row, slice(begin, end), ranks), after)
        return _unpacked(packed.tensor(), begin, end, ranks)


def ranked(record: RowRecord) -> Ranked:
    """The most likely tokens at each token of a row, with their log-probabilities."""
    if not record.ranked or not record.ranked[0]:
        return ()
    pairs = zip(record.ranked, record.ranked_logprobs, strict=True)
    return tuple(tuple(zip(*pair, strict=True)) for pair in pairs)


@dataclass(frozen=True)
class RowRecord:
    """What a row has written from slot `begin` on, and its counts."""

    length: int
    rounds: int
    drafted: int
    accepted: int
    tokens: list[int]
    logprobs: list[float]
    sources: list[int]
    ranked: list[list[int]]  # R of them per token
    ranked_logprobs: list[list[float]]


def _packed(rows: Rows, row: int, span: slice, ranks: int) -> Tensor:
    """`[4 + (3 + 2 R) M]` int64: counts, then tokens, sources, bits of log-probabilities, ranked ones."""
    each = slice(row, row + 1)
    parts = [
        *(part[each] for part in (rows.lengths, rows.rounds, rows.drafted, rows.accepted)),
        rows.tokens[row, span],
        rows.sources[row, span],
        rows.logprobs[row, span].view(torch.int32),
    ]
    if ranks:
        parts.append(rows.ranked[row, span, :ranks].flatten())
        parts.append(rows.ranked_logprobs[row, span, :ranks].flatten().view(torch.int32))
    return torch.cat(parts)


def _unpacked(packed: Tensor, begin: int, end: int, ranks: int) -> RowRecord:
    length, rounds, drafted, accepted = packed[:COUNTS].tolist()
    room, count = end - begin, max(0, min(length, end) - begin)
    sizes = [room] * 3 + [room * ranks] * 2
    tokens, sources, logprobs, ranked, ranked_logprobs = packed[COUNTS:].split(sizes)
    return RowRecord(
        length=length,
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        tokens=tokens[:count].tolist(),
        logprobs=_floats(logprobs[:count]).tolist(),
        sources=sources[:count].tolist(),
        ranked=ranked[: count * ranks].view(count, ranks).tolist(),
        ranked_logprobs=_floats(ranked_logprobs[: count * ranks]).view(count, ranks).tolist(),
    )


def _floats(bits: Tensor) -> Tensor:
    return bits.to(torch.int32).view(torch.float32)
