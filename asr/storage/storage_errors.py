"""Errors of object storage by what can be done about them: each says the location and what to do.

    StorageError
        MissingError        no such object or bucket
        DeniedError         credentials missing, expired or without permission
        UnavailableError    no answer, throttled, cut off: worth another attempt
        UnreachableError    no such server, or one that is not trusted
        ExistsError         `create`: somebody else's object is there
        ChangedError        `replace`, `fetch`: it is not the version that was named any more
        UnsupportedError    the store cannot do this

Messages hold no credentials, no query strings and no text of the server's beyond its error code.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import Code, StorageError
from .locations import Location


class LocatedError(StorageError):
    """A StorageError with its location. `temporary`: a later attempt may succeed."""

    temporary = False

    def __init__(self, location: Location, reason: str, *, code: Code | None = None) -> None:
        super().__init__(f"{location.shown}: {reason}", code=code)
        self.location, self.reason = location, reason


class MissingError(LocatedError, FileNotFoundError):
    """Also a FileNotFoundError, so that folders and stores can be read alike."""

    default_code: ClassVar[Code] = "missing_file"


class DeniedError(LocatedError):
    default_code: ClassVar[Code] = "storage_denied"


class UnavailableError(LocatedError):
    temporary = True


class UnreachableError(LocatedError):
    """No attempt will succeed before somebody changes something."""


class ExistsError(LocatedError):
    default_code: ClassVar[Code] = "internal_error"  # callers of `create` never let it out


class ChangedError(LocatedError):
    """Worth another attempt with the new version."""


class UnsupportedError(LocatedError):
    default_code: ClassVar[Code] = "invalid_value"


__all__ = [
    "ChangedError",
    "DeniedError",
    "ExistsError",
    "LocatedError",
    "MissingError",
    "UnavailableError",
    "UnreachableError",
    "UnsupportedError",
]
