"""What an error of obstore or of a web server means, and what to do about it.

Of its text only the error code (`SlowDown`, `ExpiredToken`) and the status are used: the rest holds URLs,
which may be signed. Knows the codes of S3, Google Cloud Storage and Azure.
"""

from __future__ import annotations

import re

from .locations import Location
from .storage_errors import (
    ChangedError,
    DeniedError,
    ExistsError,
    LocatedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{3,60})</Code>|\"reason\":\s*\"([A-Za-z]{3,60})\"")

EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
)
THROTTLED = frozenset(
    "SlowDown Throttling ThrottlingException RequestLimitExceeded TooManyRequests ServerBusy "
    "rateLimitExceeded userRateLimitExceeded RequestTimeout OperationTimedOut".split()
)
KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL for stores other than AWS)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "HF_TOKEN",
}

_IDENTITY = ("http://169.254.", "http://metadata.google", "oauth2/v4/token", "oauth2/token")
"""In errors of a store that looked for the credentials of the machine and found none."""


def located(location: Location, error: BaseException, *, opening: bool = False) -> LocatedError:
    """The error of this package for one of obstore's. `opening`: of making the store, before a request."""
    kind, text = type(error).__name__, str(error)
    if kind in ("FileNotFoundError", "NotFoundError"):
        return no_bucket(location) if "NoSuchBucket" in text else missing(location)
    if kind == "AlreadyExistsError":
        return ExistsError(location, "exists already")
    if kind in ("PreconditionError", "NotModifiedError"):
        return ChangedError(location, "changed while it was used; run the command again")
    if kind in ("NotSupportedError", "NotImplementedError"):
        return UnsupportedError(location, "this store does not support the operation")
    if kind == "InvalidPathError" or (isinstance(error, ValueError) and "path" in text.lower()):
        return UnsupportedError(
            location,
            "holds a name that cannot be used here: an empty part (`a//b`), `.` or `..`; name another "
            "folder, or the other objects",
        )
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    status = _STATUS.search(text)
    if opening:
        return denied(location, 0, "")
    return by_status(location, int(status[1]) if status else 0, code, text)


def by_status(location: Location, status: int, code: str, text: str = "") -> LocatedError:
    """The error for an answer with an HTTP status and a server's error code; status 0: no answer."""
    shown = ", ".join(filter(None, (str(status) if status else "", code)))
    if any(mark in text for mark in _IDENTITY) and not code:
        return denied(location, 0, "")
    if code in EXPIRED or status in (401, 403) or code in ("AccessDenied", "InvalidAccessKeyId"):
        return denied(location, status, code)
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return no_bucket(location)
    if status in (404, 410):
        return missing(location)
    if status == 409 and code not in ("ConditionalRequestConflict", "OperationAborted", ""):
        return UnsupportedError(location, f"the store refuses the request ({shown})")
    if status == 412:
        return ChangedError(location, "changed while it was used; run the command again")
    if status in (301, 307, 308) or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        return UnsupportedError(
            location, f"the bucket is in another region ({shown}): set AWS_REGION"
        )
    throttled = status in (408, 409, 425, 429) or status >= 500 or code in THROTTLED
    if throttled:
        return UnavailableError(
            location, f"the store does not serve it now ({shown}); try again later"
        )
    if "BadScheme" in text or "builder error" in text:
        return UnsupportedError(location, "the endpoint is no http address: check AWS_ENDPOINT_URL")
    if status:
        return UnsupportedError(location, f"the store refuses the request ({shown})")
    return UnavailableError(
        location, "the store does not answer; check the network and the endpoint"
    )


def no_bucket(location: Location) -> MissingError:
    return MissingError(
        location, "there is no such bucket; check its name, its region and the endpoint"
    )


def missing(location: Location) -> MissingError:
    return MissingError(location, "no such object; check the name")


def denied(location: Location, status: int, code: str) -> DeniedError:
    """The error for credentials that are missing, expired or not enough."""
    shown = ", ".join(filter(None, (str(status) if status else "", code)))
    keys = KEYS.get(location.scheme)
    if code in EXPIRED:
        return DeniedError(
            location, f"the credentials have expired ({code}): renew them and run the command again"
        )
    if keys is None:
        what = (
            "the link has expired or gives no access" if location.scheme != "file" else "no access"
        )
        return DeniedError(location, f"{what} ({shown or 'no permission'})")
    if not status:
        return DeniedError(location, f"no credentials found: set {keys}")
    return DeniedError(location, f"access denied ({shown}): check {keys}, and their permissions")


__all__ = ["by_status", "denied", "located", "missing"]
