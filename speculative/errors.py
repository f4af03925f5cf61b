"""What can go wrong in the core through a user's choice; needs no torch."""


class SpeculativeError(ValueError):
    """The base: a request that the core cannot serve."""


class RequestError(SpeculativeError):
    """One request: an impossible number, or more than the model can hold."""


class LoadError(SpeculativeError):
    """The weights: not found, no language model, or a draft that does not fit its target."""


class DeviceError(SpeculativeError):
    """The device or dtype asked for is unknown, or not on this machine."""
