"""What can go wrong in the core through a user's choice; needs no torch."""


class SpeculativeError(ValueError):
    """The base: a request that the core cannot serve."""


class DeviceError(SpeculativeError):
    """The device or dtype asked for is unknown, or not on this machine."""
