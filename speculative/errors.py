"""The errors of the core. Import is light.

SpeculativeError
  RequestError     one request that cannot be served
  LoadError        weights, or a draft that does not fit its target
  DeviceError      a device or dtype that is unknown or not available
  DecodingError    one request failed while it was decoded; others are not affected
  BrokenError      the device failed: this engine accepts no more requests
"""

from __future__ import annotations

import pickle


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
