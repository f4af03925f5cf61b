"""Errors of object storage, by what can be done about them, and which one an answer of a server means.

    LocatedError            no server like this, or one that is not trusted
        MissingError        no such object or bucket
        DeniedError         credentials missing, expired or without permission
        UnavailableError    no answer, throttled, cut off, after all attempts
        UnsupportedError    the store cannot do this

Each says the location and what to do. Messages hold no credentials, no query strings and no text of the
server's beyond its error code (`SlowDown`, `ExpiredToken`) and the status: the rest holds URLs, which may be
signed.
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
CONFLICTS = frozenset({"", "ConditionalRequestConflict", "OperationAborted"})
"""Codes with status 409 of requests that may succeed later."""

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
    """A StorageError with its location; repeating the request does not help."""

    def __init__(self, location: Location, reason: str) -> None:
        super().__init__(f"{location}: {reason}")


class MissingError(LocatedError, FileNotFoundError):
    """Also a FileNotFoundError, so that folders and stores can be read alike."""

    default_code: ClassVar[Code] = "missing_file"


class DeniedError(LocatedError):
    default_code: ClassVar[Code] = "storage_denied"


class UnavailableError(LocatedError):
    """A later attempt may succeed."""


class UnsupportedError(LocatedError):
    default_code: ClassVar[Code] = "invalid_value"


def located(location: Location, error: BaseException) -> LocatedError:
    """The error of this package for one of obstore's."""
    kind, text = type(error).__name__, str(error)
    found, stated = _CODE.search(text), _STATUS.search(text)
    code = (found[1] or found[2]) if found else ""
    if kind in ("FileNotFoundError", "NotFoundError"):
        return by_status(location, 404, code)
    if kind in ("NotSupportedError", "NotImplementedError", "InvalidPathError", "ValueError"):
        return UnsupportedError(
            location,
            "this store does not support the request, or the name: no part of it may be empty (`a//b`), `.` "
            "or `..`",
        )
    if not code and any(mark in text for mark in _IDENTITY):
        return denied(location)
    if stated or code:
        return by_status(location, int(stated[1]) if stated else 0, code)
    return UnavailableError(
        location, "the store does not answer; check the network and the endpoint"
    )


def by_status(location: Location, status: int, code: str = "") -> LocatedError:
    """The error for an answer with an HTTP status, 0 if it is not known, and a server's error code."""
    shown = ", ".join(filter(None, (str(status) if status else "", code)))
    if code in EXPIRED:
        return DeniedError(
            location, f"the credentials have expired ({code}): renew them and run the command again"
        )
    if status in (401, 403) or code in ("AccessDenied", "InvalidAccessKeyId"):
        return denied(location, shown)
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return MissingError(
            location, "there is no such bucket; check its name, its region and the endpoint"
        )
    if status in (404, 410):
        return MissingError(location, "no such object; check the name")
    conflict = status == 409 and code in CONFLICTS
    if conflict or status in (0, 408, 425, 429) or status >= 500:
        return UnavailableError(
            location, f"the store does not serve it now ({shown}); try again later"
        )
    region = (
        "; if the bucket is in another region, set AWS_REGION" if location.scheme == "s3" else ""
    )
    return UnsupportedError(location, f"the store refuses the request ({shown}){region}")


def denied(location: Location, shown: str = "") -> DeniedError:
    """The error for credentials that are missing or not enough; `shown` is the server's answer."""
    keys = KEYS.get(location.scheme)
    if keys is None:
        reason = f"the link has expired or gives no access ({shown or 'no permission'})"
    elif shown:
        reason = f"access denied ({shown}): check {keys}, and their permissions"
    else:
        reason = f"no credentials found: set {keys}"
    return DeniedError(location, reason)


def unanswered(location: Location, error: BaseException) -> LocatedError:
    """The error for a request that a web server did not answer: the reason is in the chain of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return LocatedError(
                location, f"no server has the name {location.host}; check the address"
            )
        if isinstance(cause, ssl.SSLCertVerificationError):
            return LocatedError(
                location,
                f"the server's certificate is not trusted ({cause.verify_message}); set SSL_CERT_FILE for "
                "certificates of your own",
            )
        cause = cause.__cause__ or cause.__context__
    return UnavailableError(
        location, f"the server does not answer ({type(error).__name__}); check address and network"
    )
