"""Exceptions in what others wrote: models, drafters, processors, rules, schedules.

A round changes committed state in its last stage only, so one that failed can be repeated row by row,
with the others masked, until it is known whose the fault is.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from ..drafts import Prefix
from ..errors import DecodingError
from ..protocols import Processor

PREFILL: Final = "prefill"
PROMPT: Final = "the drafter's reading of the prompt"
CATCH_UP: Final = "the drafter's reading of the text"
DRAFT: Final = "drafting"
SCORE: Final = "scoring"
RULE: Final = "the acceptance rule"
OBSERVE: Final = "the drafter's learning"
COMMIT: Final = "committing"
RESULT: Final = "collecting the result"
SCHEDULE: Final = "the schedule"
WRITING: Final = "making text of the tokens"
ENGINE: Final = "the engine's step"

OF_THE_DRAFTER: Final = frozenset({PROMPT, CATCH_UP, DRAFT, OBSERVE})
"""After a fault in one of these, a row can be decoded without drafts."""

_AFTER = {None: DRAFT, "draft": SCORE, "score": RULE, "rule": OBSERVE, "observe": COMMIT}


def stage_after(mark: str | None) -> str:
    """The stage of a round that was under way after its last mark (`round.Mark`)."""
    return _AFTER.get(mark, ENGINE)


def fault(stage: str, error: Exception) -> DecodingError:
    """`error` with its stage, and with its traceback as text."""
    release(error)
    return DecodingError(stage, error)


def release(error: BaseException | None) -> None:
    """Takes the tracebacks of an exception, and of those it arose from, as text: as frames they hold
    the tensors of a batch for as long as somebody holds the exception; not only the frames that it went
    through, but those that called them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            error.__traceback__ = None
        if error.__cause__ is not None and error.__context__ is not error.__cause__:
            release(error.__context__)
        error = error.__cause__ or error.__context__


@dataclass(frozen=True)
class ForOneRow:
    """A logits processor that is asked about one row only; the logits of the others stay as they are.

    Processors are given no mask, so one that fails on a row would fail in every round of the others.
    """

    processor: Processor
    row: int
    batch: int

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        nodes = len(logits) // self.batch  # in a tree every node is a row
        span = slice(self.row * nodes, (self.row + 1) * nodes)
        own = Prefix(prefix.tokens[span], prefix.last[span], prefix.begin[span])
        out = logits.clone()
        out[span] = self.processor(logits[span], own)
        return out
