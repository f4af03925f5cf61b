"""Errors as clients see them: OpenAI's error body, with one status for each code.

    {"error": {"message": str, "type": str, "param": str | null, "code": str}}

The codes of `asr.errors` keep their names; the service adds its own. The message of a 5xx contains no path,
no model folder and no cause: those are logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse, Response

from forescribe.asr.errors import ForescribeError, output_errors

from .wording import nearest, told

ModelT = TypeVar("ModelT", bound=BaseModel)

STATUS: Mapping[str, int] = MappingProxyType(
    {
        # forescribe.asr.errors.Code
        "missing_file": 400,
        "unreadable_file": 500,  # the server's own copy of the upload
        "empty_file": 400,
        "invalid_audio": 400,
        "no_audio_stream": 400,
        "unsupported_media_type": 415,
        "file_too_large": 413,
        "audio_too_long": 413,
        "model_not_found": 404,
        "model_mismatch": 500,
        "invalid_value": 400,
        "unwritable_output": 500,
        "storage_full": 507,
        "storage_denied": 500,  # the server's own credentials
        "storage_unavailable": 503,
        "overloaded": 503,
        "crashed_workers": 500,
        "crashed": 500,  # a job whose processes died
        "internal_error": 500,
        # of the service
        "invalid_api_key": 401,
        "forbidden": 403,
        "not_found": 404,
        "job_not_found": 404,
        "input_audio_buffer_commit_empty": 400,  # of live sessions, as the next one
        "session_expired": 400,
        "in_progress": 409,  # a result before the end, a key whose first request is in progress
        "conflict": 409,
        "idempotency_key_reused": 422,
        "locked": 423,
        "unsupported_version": 412,
        "version_conflict": 412,  # somebody else has changed it
        "version_required": 428,
        "method_not_allowed": 405,
        "range_not_satisfiable": 416,
        "request_timeout": 408,  # the body arrived too slowly
        "rate_limited": 429,
        "not_ready": 503,
        "inference_timeout": 504,
    }
)
"""OpenAI's SDKs retry 408, 409, 429 and 5xx automatically, so errors that would recur use other statuses."""

DETAIL_PATHS = ("/", "/predict", "/asr", "/detect-language")
"""Paths whose errors are `{"detail": ...}`, as clients of those contracts expect."""

MAX_MESSAGE = 1000
"""Characters."""

_RETRY = MappingProxyType({429: 5, 503: 5, 507: 60})
"""The default Retry-After by status. On a full disk room comes with deletions, once a minute; OpenAI's SDKs
wait no longer than that."""

_MESSAGES = MappingProxyType(
    {
        "storage_full": "the server has no room for the upload; try again later",
        "storage_unavailable": "the server's storage does not answer; try again later",
        "overloaded": "the server cannot take this now; try again later",
    }
)


class ApiError(Exception):
    """An error to answer with. `param` is the client's name of the field; `retry_after` is in seconds, with a
    default for every 429, 503 and 507; `more` are further headers."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        message, param = printable(message), None if param is None else printable(param)
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.status = STATUS[code]
        if retry_after is None:
            retry_after = _RETRY.get(self.status)
        self.retry_after, self.more = retry_after, more

    @classmethod
    def of(cls, error: ForescribeError, *, param: str | None = None) -> ApiError:
        """The answer for an error of the package; faults of the server are not explained."""
        if STATUS[error.code] < 500:
            return cls(error.code, error.message, param=param)
        return cls(error.code, _MESSAGES.get(error.code, "the server failed; the fault is logged"))

    @property
    def kind(self) -> str:
        """OpenAI's error type."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, dict[str, str | None]]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        headers = dict(self.more)
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, self.retry_after))
        if self.status == 401:
            headers.setdefault("WWW-Authenticate", "Bearer")
        if self.status == 408:
            headers["Connection"] = "close"  # the rest of the body may still arrive
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers())


def invalid(param: str, reason: str) -> ApiError:
    """The refusal of a value."""
    return ApiError("invalid_value", f"{param}: {reason}", param=param)


def checked(kind: type[ModelT], values: Mapping[str, Any], within: str = "") -> ModelT:
    """The record of these values. Raises ApiError `invalid_value` with the place of what is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        place, message = told(error.errors(), kind.model_fields)
        raise invalid(f"{within}{place}" or "body", message) from error


def unknown(name: str, known: Iterable[str], what: str = "field") -> ApiError:
    """The refusal of a name: nothing is accepted and then ignored."""
    known, name = list(known), name[:100]
    hint = nearest(name, known) or f"; known: {', '.join(known)}"
    return ApiError("invalid_value", f"unknown {what} {name!r}{hint}", param=name)


def refusal(path: str, error: ApiError) -> Response:
    """The error's answer in the format of this path."""
    if path in DETAIL_PATHS:
        return JSONResponse({"detail": error.message}, error.status, error.headers())
    return error.response()


def disk_errors() -> AbstractContextManager[None]:
    """Raise OSError as OutputError with code `storage_full` or `unwritable_output`."""
    return output_errors("the job store", "free some space, or check its disk")


def printable(text: str) -> str:
    """A text that is safe in a message: clients choose names of fields, so text that cannot be encoded is
    escaped, and long text is cut."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."
