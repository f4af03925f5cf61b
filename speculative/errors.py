"""What can go wrong in the core; needs no torch.

SpeculativeError
  RequestError     one request cannot be served as asked
  LoadError        weights, or a draft that does not fit its target
  DeviceError      a device or dtype that is unknown or not there
  DecodingError    one request failed while it was decoded; others are not affected
  BrokenError      the device failed: this engine takes no more requests
"""

from __future__ import annotations


class SpeculativeError(ValueError):
    """The base: a request that the core cannot serve."""


class RequestError(SpeculativeError):
    """One request: an impossible number, or more than the model can hold."""


class LoadError(SpeculativeError):
    """The weights: not found, no language model, or a draft that does not fit its target."""


class DeviceError(SpeculativeError):
    """The device or dtype asked for is unknown, or not on this machine."""


class DecodingError(SpeculativeError):
    """An exception in a model, a drafter, a logits processor or a rule while a request was decoded.

    `stage` says where; `__cause__` is the exception itself.
    """

    def __init__(self, stage: str, cause: BaseException) -> None:
        super().__init__(f"{stage} failed: {type(cause).__name__}: {cause}")
        self.stage = stage
        self.__cause__ = cause


class BrokenError(SpeculativeError):
    """The device has failed and answers nothing any more: load the models again, in a new process
    where the device is a GPU."""
