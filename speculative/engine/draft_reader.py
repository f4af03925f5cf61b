"""Keeps a drafter up to date: prompts and text that it has not read, before it drafts.

Knows the drafter and the backlog of the slots; nothing of schedules or results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..graphs.capture import Capture
from ..graphs.catch_up import CatchUp
from ..graphs.shapes import ShapeSet
from ..protocols import Drafter
from . import faults
from .admission import Prompts
from .context import EngineContext


class DraftReader:
    """Lets the drafter read what is in the backlog. A row on which that fails is decoded without drafts."""

    def __init__(
        self,
        context: EngineContext,
        drafter: Drafter,
        shapes: ShapeSet,
        capture: Capture | None = None,
    ) -> None:
        self._context, self._drafter, self._shapes = context, drafter, shapes
        self._texts = CatchUp(context.rows, drafter, shapes, capture)

    @classmethod
    def of(
        cls, context: EngineContext, shapes: ShapeSet, capture: Capture | None = None
    ) -> DraftReader | None:
        """The reader of an engine; None where nothing is ever drafted."""
        if context.drafter is None or not context.drafting:
            return None
        return cls(context, context.drafter, shapes, capture)

    def read(self) -> None:
        """Reads all prompts and all text that the drafter lacks."""
        backlog, device = self._context.slots.backlog, self._context.device
        if backlog.prompts:
            pending, max_tokens = backlog.take_prompts(), self._context.max_tokens
            self._context.watch.start()
            self.read_prompts(Prompts.of(pending, device, max_tokens))
            self._context.watch.mark("prefill")
        if backlog.tokens:
            self._read_texts(backlog.take_tokens(self._context.slots.longest))

    def warm_up(self) -> None:
        """Captures the reading of text on free rows, where the schedule may leave text unread."""
        if 0 in self._shapes.gammas:
            self._texts.warm_up()

    def read_prompts(self, prompts: Prompts) -> None:
        """Reads the prompts together; one by one if that fails."""
        log = self._context.faults
        error = log.attempt(partial(self._admit, prompts), faults.PROMPT)
        if error is not None:
            for one in prompts.alone():
                if len(prompts.rows) > 1:
                    error = log.attempt(partial(self._admit, one), faults.PROMPT)
                if error is not None:
                    self._context.slots.stop_drafting(one.rows[0], error)

    def _admit(self, prompts: Prompts) -> None:
        self._drafter.admit(prompts.index, prompts.tokens, prompts.requests, prompts.taps)
        self._context.counts.draft_forwards += self._drafter.forwards(1)
        self._context.device.mark_step()

    def _read_texts(self, tokens: int) -> None:
        """Reads the last `tokens` of the drafting rows together; row by row if that fails. Waits for a
        device without events, so that the time of the next rounds does not include it."""
        slots, log, watch = self._context.slots, self._context.faults, self._context.watch
        watch.start()
        drafting = slots.drafting()
        if drafting:
            with slots.masked_to(drafting):
                together = partial(self._catch_up, tokens, max(drafting) + 1)
                error = log.attempt(together, faults.CATCH_UP)
            if error is not None:
                self._read_alone(tokens, drafting)
        if not self._context.device.events:
            self._context.device.synchronize()
        watch.mark("draft")

    def _read_alone(self, tokens: int, rows: Sequence[int]) -> None:
        """Reads the text of one row after the other, operator by operator."""
        slots = self._context.slots
        for row in rows:
            read = partial(self._catch_up, tokens, row + 1, captured=False)
            with slots.masked_to([row]):
                error = self._context.faults.attempt(read, faults.CATCH_UP)
            if error is not None:
                slots.stop_drafting(row, error)

    def _catch_up(self, tokens: int, rows: int, *, captured: bool = True) -> None:
        pieces = self._texts.read(tokens, rows, captured=captured)
        self._context.counts.draft_forwards += pieces * self._drafter.forwards(1)
