"""Results: what a slot has written, at its end and before it.

Knows slots and results; nothing of models or rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DecodingError
from ..requests import Finish, Partial, Ranked, Request, Result, Source
from ..rounds.rule_choice import RuleChoice
from . import faults
from .context import EngineContext
from .inbox import failed
from .slots import SlotState


class ResultCollector:
    """Reads results from the rows, and delivers them to their inboxes."""

    def __init__(self, context: EngineContext, rules: RuleChoice) -> None:
        self._context, self._rules = context, rules

    def end_inactive(self, active: list[bool]) -> None:
        """Ends all slots whose row is not `active` any more."""
        for row, state in self._context.slots.occupied():
            if not active[row]:
                self._end(row, state)

    def fail(self, row: int, error: DecodingError) -> None:
        """Ends a slot with an error; its result has what was written before."""
        state = self._context.slots.states[row]
        assert state is not None
        state.error = error
        self._end(row, state)
        # What made it fail must not be read in rounds of the others.
        self._context.rows.clear(row)

    def _end(self, row: int, state: SlotState) -> None:
        """Frees the slot and delivers its result."""
        self._context.slots.vacate(row)
        try:
            result = self.collect(row, state)
        except Exception as raised:
            error = self._context.faults.record(faults.RESULT, raised)
            result = failed(state.request, state.error or error)
        state.inbox.put(result)

    def collect(self, row: int, state: SlotState) -> Result:
        """The result of a row that has ended."""
        rows, request = self._context.rows, state.request
        span = slice(int(rows.begin[row]), int(rows.lengths[row]))
        tokens: list[int] = rows.tokens[row, span].tolist()
        return Result(
            request=request,
            tokens=tuple(tokens),
            logprobs=tuple(rows.logprobs[row, span].tolist()),
            sources=tuple(Source(s) for s in rows.sources[row, span].tolist()),
            finish=self._finish(state, tokens),
            rounds=int(rows.rounds[row]),
            drafted=int(rows.drafted[row]),
            accepted=int(rows.accepted[row]),
            probe=state.probe,
            ranked=self._ranked(row, span, request),
            guarantee=self._rules.guarantee(sampling=request.temperature > 0),
            error=state.error,
            draft_error=state.draft_error,
        )

    def _finish(self, state: SlotState, tokens: list[int]) -> Finish:
        if state.error is not None:
            return Finish.FAILED
        if state.cancelled:
            return Finish.CANCELLED
        stopped = bool(tokens) and tokens[-1] in self._context.eos.tolist()
        return Finish.STOP if stopped else Finish.LENGTH

    def partials(self, known: Mapping[Any, int]) -> list[Partial]:
        """What unfinished rows have written; `known` has the tokens to skip of each, by tag."""
        rows, partials = self._context.rows, []
        lengths: list[int] = rows.lengths.tolist()
        for row, state in self._context.slots.occupied():
            if state.cancelled:
                continue
            begin = known.get(state.request.tag, 0)
            span = slice(len(state.request.prompt) + begin, lengths[row])
            partials.append(
                Partial(
                    request=state.request,
                    begin=begin,
                    tokens=tuple(rows.tokens[row, span].tolist()),
                    logprobs=tuple(rows.logprobs[row, span].tolist()),
                    ranked=self._ranked(row, span, state.request),
                )
            )
        return partials

    def _ranked(self, row: int, span: slice, request: Request) -> Ranked:
        if not request.ranks:
            return ()
        rows, kept = self._context.rows, slice(request.ranks)
        tokens: list[list[int]] = rows.ranked[row, span, kept].tolist()
        logprobs: list[list[float]] = rows.ranked_logprobs[row, span, kept].tolist()
        return tuple(tuple(zip(*pair, strict=True)) for pair in zip(tokens, logprobs, strict=True))
