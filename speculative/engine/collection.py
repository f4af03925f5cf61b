"""Results: what a slot has written, at its end and before it.

Knows slots and results; nothing of models or rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DecodingError
from ..graphs.snapshots import RowRecord, Snapshot
from ..graphs.transfers import Moment
from ..requests import Finish, Partial, Ranked, Result, Source
from ..rounds.rule_choice import RuleChoice
from . import faults
from .context import EngineContext
from .inbox import failed
from .slots import SlotState


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
            error = self._context.faults.record(faults.RESULT, raised)
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
