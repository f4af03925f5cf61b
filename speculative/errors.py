"""The errors of the core. Import is light.

SpeculativeError
  RequestError     one request that cannot be served
  LoadError        weights, or a draft that does not fit its target
  DeviceError      a device or dtype that is unknown or not available
  DecodingError    one request failed while it was decoded; others are not affected
  BrokenError      the device failed: this engine accepts no more requests

A fault is an exception in a model, a drafter, a processor, a rule or a schedule, with the stage it arose in.
A round changes committed state in its last stage only, so one that failed can be repeated row by row, with
the others masked, which shows the row that causes the fault. Knows stages; nothing of rows.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Final


class SpeculativeError(ValueError):
    """The base: a request that the core cannot serve."""


class RequestError(SpeculativeError):
    """One request: an impossible number, or more than the model can hold."""


class LoadError(SpeculativeError):
    """The weights: not found, no language model, or a draft that does not fit its target."""


def load_cause(error: BaseException) -> str:
    """One line on why a file of tensors cannot be loaded.

    Where a pickle holds more than tensors, torch advises to load it without protection
    (`weights_only=False`), which lets the file run code; that advice is not passed on.
    """
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return "it is no pickle, or one that could run code when it is opened"
    return one_line(error)


def one_line(error: BaseException) -> str:
    """An error's text as part of a message of one line: libraries append advice about themselves. The name of
    its class where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class DeviceError(SpeculativeError):
    """The requested device or dtype is unknown, or not on this machine."""


class DecodingError(SpeculativeError):
    """An exception in a model, a drafter, a logits processor or a rule while a request was decoded.

    `stage` says where; `__cause__` is the exception itself.
    """

    def __init__(self, stage: str, cause: BaseException) -> None:
        super().__init__(f"{stage} failed: {type(cause).__name__}: {cause}")
        self.stage = stage
        self.__cause__ = cause


class BrokenError(SpeculativeError):
    """The device has failed and does not respond any more: load the models again, in a new process if the
    device is a GPU."""


PREFILL: Final = "prefill"
READ: Final = "the drafter's reading"
DRAFT: Final = "drafting"
SCORE: Final = "scoring"
OBSERVE: Final = "the drafter's learning"
COMMIT: Final = "committing"
SCHEDULE: Final = "the schedule"
WRITING: Final = "making text of the tokens"
ENGINE: Final = "the engine's step"

OF_THE_DRAFTER: Final = frozenset({READ, DRAFT, OBSERVE})
"""After a fault in one of these stages, a row can be decoded without drafts."""

STAGE_AFTER: Final = {"draft": SCORE, "score": OBSERVE, "observe": COMMIT, "accept": ENGINE}
"""The stage of a round that follows the one of this name (see `rounds.round.run_round`)."""


def fault(stage: str, error: Exception) -> DecodingError:
    """`error` with its stage, and with its traceback as text."""
    release(error)
    return DecodingError(stage, error)


def release(error: BaseException | None) -> None:
    """Replaces the tracebacks of an exception, and of those it arose from, by text notes. A traceback's
    frames, and the frames that called them, keep the tensors of a batch alive as long as the
    exception exists."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if error.__traceback__ is not None:
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            error.__traceback__ = None
        if error.__cause__ is not None and error.__context__ is not error.__cause__:
            release(error.__context__)
        error = error.__cause__ or error.__context__
