"""Errors of object storage, by what can be done about them, and which one an answer of a server means.

    LocatedError
        MissingError        no such object or bucket
        DeniedError         credentials missing, expired or without permission
        UnavailableError    no answer, throttled, cut off, after all attempts
        UnreachableError    no such server, or one that is not trusted
        ChangedError        it is not the version any more of which a part was read
        UnsupportedError    the store cannot do this

Each says the location and what to do. Messages hold no credentials, no query strings and no text of the
server's beyond its error code (`SlowDown`, `ExpiredToken`) and the status: the rest holds URLs, which may be
signed. Knows the codes of S3, Google Cloud Storage and Azure.
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import ClassVar

from ..errors import Code, StorageError
from .locations import Location

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{3,60})</Code>|\"reason\":\s*\"([A-Za-z]{3,60})\"")

EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
)
"""Error codes of servers."""

KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL for stores other than AWS)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "HF_TOKEN",
}
"""The environment variables with credentials, by scheme."""

_IDENTITY = ("http://169.254.", "http://metadata.google", "oauth2/v4/token", "oauth2/token")
"""In errors of a store that looked for the credentials of the machine and found none."""


class LocatedError(StorageError):
    """A StorageError with its location."""

    def __init__(self, location: Location, reason: str, *, code: Code | None = None) -> None:
        super().__init__(f"{location.shown}: {reason}", code=code)
        self.location, self.reason = location, reason


class MissingError(LocatedError, FileNotFoundError):
    """Also a FileNotFoundError, so that folders and stores can be read alike."""

    default_code: ClassVar[Code] = "missing_file"


class DeniedError(LocatedError):
    default_code: ClassVar[Code] = "storage_denied"


class UnavailableError(LocatedError):
    """A later attempt may succeed."""


class UnreachableError(LocatedError):
    """No attempt will succeed before somebody changes something."""


class ChangedError(LocatedError):
    """Worth another attempt with the new version."""


class UnsupportedError(LocatedError):
    default_code: ClassVar[Code] = "invalid_value"


def located(location: Location, error: BaseException, *, opening: bool = False) -> LocatedError:
    """The error of this package for one of obstore's. `opening`: of making the store, before a request."""
    kind, text = type(error).__name__, str(error)
    if kind in ("FileNotFoundError", "NotFoundError") and "NoSuchBucket" not in text:
        return MissingError(location, "no such object; check the name")
    if kind in ("PreconditionError", "NotModifiedError"):
        return by_status(location, 412)
    if kind in ("NotSupportedError", "NotImplementedError"):
        return UnsupportedError(location, "this store does not support the operation")
    if kind == "InvalidPathError" or (isinstance(error, ValueError) and "path" in text.lower()):
        return UnsupportedError(
            location,
            "holds a name that cannot be used here: an empty part (`a//b`), `.` or `..`; name another "
            "folder, or the other objects",
        )
    found, status = _CODE.search(text), _STATUS.search(text)
    code = (found[1] or found[2]) if found else ""
    if opening or (any(mark in text for mark in _IDENTITY) and not code):
        return _denied(location, 0, "")
    if "BadScheme" in text or "builder error" in text:
        return UnsupportedError(location, "the endpoint is no http address: check AWS_ENDPOINT_URL")
    if status or code:
        return by_status(location, int(status[1]) if status else 0, code)
    why = " (its name cannot be looked up)" if "dns error" in text else ""
    why = " (connection refused)" if "ConnectionRefused" in text else why
    return UnavailableError(
        location, f"the store does not answer{why}; check the network and the endpoint"
    )


def by_status(location: Location, status: int, code: str = "") -> LocatedError:
    """The error for an answer with an HTTP status, 0 if it is not known, and a server's error code."""
    shown = ", ".join(filter(None, (str(status) if status else "", code)))
    if code in EXPIRED or status in (401, 403) or code in ("AccessDenied", "InvalidAccessKeyId"):
        return _denied(location, status, code)
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return MissingError(
            location, "there is no such bucket; check its name, its region and the endpoint"
        )
    if status in (404, 410):
        return MissingError(location, "no such object; check the name")
    if status == 412:
        return ChangedError(location, "changed while it was used; run the command again")
    if status in (301, 307, 308) or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        return UnsupportedError(
            location, f"the bucket is in another region ({shown}): set AWS_REGION"
        )
    conflict = status == 409 and code in ("", "ConditionalRequestConflict", "OperationAborted")
    if conflict or status in (0, 408, 425, 429) or status >= 500:
        return UnavailableError(
            location, f"the store does not serve it now ({shown}); try again later"
        )
    return UnsupportedError(location, f"the store refuses the request ({shown})")


def unanswered(location: Location, error: BaseException) -> LocatedError:
    """The error for a request that a web server did not answer: the reason is in the chain of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return UnreachableError(
                location, f"no server has the name {location.host}; check the address"
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UnreachableError(
                location,
                f"the server's certificate is not trusted ({cause.verify_message}); set SSL_CERT_FILE for "
                "certificates of your own",
            )
        if isinstance(cause, ConnectionRefusedError):
            return UnavailableError(
                location,
                "the server does not answer: nothing listens there (connection refused); check the address "
                "and the port",
            )
        cause = cause.__cause__ or cause.__context__
    return UnavailableError(
        location, f"the server does not answer ({type(error).__name__}); check the network"
    )


def _denied(location: Location, status: int, code: str) -> DeniedError:
    """The error for credentials that are missing, expired or not enough."""
    shown = ", ".join(filter(None, (str(status) if status else "", code)))
    keys = KEYS.get(location.scheme)
    if code in EXPIRED:
        return DeniedError(
            location, f"the credentials have expired ({code}): renew them and run the command again"
        )
    if keys is None:
        what = (
            "no access" if location.scheme == "file" else "the link has expired or gives no access"
        )
        return DeniedError(location, f"{what} ({shown or 'no permission'})")
    if not status:
        return DeniedError(location, f"no credentials found: set {keys}")
    return DeniedError(location, f"access denied ({shown}): check {keys}, and their permissions")
