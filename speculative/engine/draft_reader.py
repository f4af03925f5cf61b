"""Keeps a drafter up to date: prompts and text that it has not read, before it drafts.

Knows the drafter and the backlog of the slots; nothing of schedules or results.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ..protocols import Drafter
from ..requests import Request
from . import faults
from .admission import prompts
from .context import EngineContext

CATCH_UP = 32
"""Tokens of a row that a drafter reads at once of those written without it: one shape, and its logits
take no more memory than those of a few rounds."""


class DraftReader:
    """Lets the drafter read what is in the backlog. A row on which that fails is decoded without drafts."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    @property
    def _drafter(self) -> Drafter:
        assert self._context.drafter is not None  # without one, gamma is 0 and nothing is read
        return self._context.drafter

    def read(self) -> None:
        """Reads all prompts and all text that the drafter lacks."""
        backlog = self._context.slots.backlog
        if backlog.prompts:
            self._read_prompts(backlog.take_prompts())
        if backlog.tokens:
            self._read_texts(backlog.take_tokens(self._context.slots.longest))

    def warm_up(self) -> None:
        """Reads one token of the free rows, so that the shape is compiled."""
        self._catch_up(1)

    def _read_prompts(self, pending: Mapping[int, Request]) -> None:
        """Reads the prompts together; one by one if that fails."""
        watch, log = self._context.watch, self._context.faults
        watch.start()
        error = log.attempt(partial(self._admit, pending), faults.PROMPT)
        if error is not None:
            for row, request in pending.items():
                if len(pending) > 1:
                    error = log.attempt(partial(self._admit, {row: request}), faults.PROMPT)
                if error is not None:
                    self._context.slots.stop_drafting(row, error)
        watch.mark("prefill")

    def _admit(self, pending: Mapping[int, Request]) -> None:
        device, max_tokens = self._context.device, self._context.max_tokens
        index, tokens, padded = prompts(list(pending), list(pending.values()), device, max_tokens)
        self._drafter.admit(index, tokens, padded)
        self._context.counts.draft_forwards += self._drafter.forwards(1)
        device.mark_step()

    def _read_texts(self, tokens: int) -> None:
        """Reads the last `tokens` of the drafting rows together; row by row if that fails. Waits for a
        device without events, so that the time of the next rounds does not include it."""
        slots, log, watch = self._context.slots, self._context.faults, self._context.watch
        watch.start()
        read, drafting = partial(self._catch_up, tokens), slots.drafting()
        with slots.masked_to(drafting):
            error = log.attempt(read, faults.CATCH_UP)
        for row in drafting if error is not None else ():
            with slots.masked_to([row]):
                error = log.attempt(read, faults.CATCH_UP)
            if error is not None:
                slots.stop_drafting(row, error)
        if not self._context.device.events:
            self._context.device.synchronize()
        watch.mark("draft")

    def _catch_up(self, tokens: int) -> None:
        """Reads the last `tokens` of every row, and more where the one shape asks for it."""
        rows = self._context.rows
        rows.reach, count = rows.scratch, min(CATCH_UP, rows.scratch - 1)
        for passes in range(-(-tokens // count), 0, -1):
            start = (rows.lengths - 2 - passes * count).clamp_min(0)  # two are fed by `propose`
            self._drafter.catch_up(rows, start, count)
            self._context.counts.draft_forwards += self._drafter.forwards(1)
