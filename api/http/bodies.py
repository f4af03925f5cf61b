"""Bodies: JSON and text from clients, checked before anything else uses them, and answers with files.

    body = loads(data, "body")                              # ApiError 400 for anything that is wrong
    value = await small_field(request, "num_speakers")      # from the query, a form or JSON
    async with in_thread(uploads.whole(id, caller)) as file: ...
    return await file_response(request, path, filename="talk.wav", media_type="audio/wav")

Python's parser accepts more than JSON and fails in more ways than `JSONDecodeError`: nesting raises
RecursionError, a long integer ValueError, `1e999` becomes infinite, and an escaped half of a surrogate pair
becomes text that cannot be encoded.

Of a file one range is served (RFC 9110, section 14), or refused with 416 if it lies outside the file. Several
ranges, and those that are malformed, are ignored, as HTTP allows; starlette's FileResponse reads the headers
again and sends the bytes. Does not know what values mean or whose files they are.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import Request
from starlette.responses import FileResponse

from ..errors import ApiError

MAX_DEPTH = 32
"""Levels of nesting. The contracts here need at most five."""

MAX_MARKS = 150_000
"""Commas and opening brackets in a text, a bound of the number of its values: a prompt of tokens for a
context of 131,072 fits. Five million empty lists took 11 s, in which no other request was answered."""

MAX_BYTES = 64 << 10
"""Of a body with a few fields."""

HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}

_SURROGATE = re.compile("[\ud800-\udfff]")

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)

T = TypeVar("T")


def loads(data: str | bytes, param: str) -> Any:
    """Parse JSON. Raises ApiError `invalid_value`."""
    if isinstance(data, str):
        marks = sum(data.count(mark) for mark in ",[{")
    else:
        marks = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if marks > MAX_MARKS:
        raise _refused(param, f"JSON with more than {MAX_MARKS} values")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise _refused(param, f"JSON nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise _refused(param, f"invalid JSON ({error.msg})") from error
    except ValueError as error:  # not UTF-8, a number of thousands of digits, NaN
        raise _refused(
            param, "invalid JSON (a character or a number that is not allowed)"
        ) from error
    _check(value, param)
    return value


def text(value: str, param: str) -> str:
    """The text, if it can be stored and sent. Raises ApiError `invalid_value`."""
    if "\0" in value:
        raise _refused(param, "text with a NUL character")
    if _SURROGATE.search(value):
        raise _refused(param, "text with half of a surrogate pair")
    return value


def label(name: str, max_length: int = 255) -> str | None:
    """A name for people, as it can be stored and shown; None if nothing of it is left."""
    kept = "".join(c for c in name if c.isprintable() and not _SURROGATE.match(c))
    return kept[:max_length].strip() or None


def whole(text: str, maximum: int) -> int | None:
    """A number from 0 to `maximum` in ASCII digits; None for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum))):
        return None
    number = int(text)
    return number if number <= maximum else None


def media_type(request: Request) -> str:
    """The media type of the body in lower case, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def small_field(request: Request, name: str) -> Any:
    """The field's value, from the body or else from the query; None if it is absent. Raises ApiError, for
    other fields too: nothing is accepted and then ignored."""
    fields: dict[str, Any] = dict(request.query_params)
    kind = media_type(request)
    if kind == "application/json":
        fields |= await json_object(request)
    elif kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        async with request.form(max_files=0, max_fields=4, max_part_size=MAX_BYTES) as form:
            fields |= form
    for other in fields.keys() - {name}:
        message = f"unknown field {other[:100]!r}; known: {name}"
        raise ApiError("invalid_value", message, param=other[:100])
    return fields.get(name)


async def json_object(request: Request, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The body as a JSON object; an empty body is one without fields. Raises ApiError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise ApiError("file_too_large", f"the body has more than {max_bytes} bytes")
    value = loads(bytes(body) or b"{}", "body")
    if not isinstance(value, dict):
        raise ApiError("invalid_value", "the body is not a JSON object")
    return value


async def file_response(
    request: Request,
    path: Path,
    *,
    filename: str,
    media_type: str,
    disposition: Literal["attachment", "inline"] = "attachment",
) -> FileResponse:
    """The file, or the part of it that `Range` names; with `If-Range`, the whole file if it is not the one
    that the client has a part of. Raises ApiError `range_not_satisfiable`, FileNotFoundError."""
    response = FileResponse(
        path,
        media_type=media_type,
        headers=HEADERS,
        filename=filename,
        stat_result=await asyncio.to_thread(path.stat),
        content_disposition_type=disposition,
    )
    condition = request.headers.get("if-range")
    same = condition in (None, response.headers["etag"], response.headers["last-modified"])
    size = int(response.headers["content-length"])
    if not (same and is_served(request.headers.get("range"), size)):
        request.scope["headers"] = [(k, v) for k, v in request.scope["headers"] if k != b"range"]
    return response


def is_served(header: str | None, size: int) -> bool:
    """Whether a Range header is served for a file of this size; others are ignored, as HTTP allows.
    Raises ApiError `range_not_satisfiable`."""
    match = _RANGE.fullmatch((header or "").replace(" ", "").lower())
    if match is None or match[0] == "bytes=-":
        return False
    first, last = match[1], match[2]
    if int(first) >= size if first else int(last) == 0:
        text = f"Range: the file has {size} bytes"
        content_range = {"Content-Range": f"bytes */{size}"}
        raise ApiError("range_not_satisfiable", text, param="Range", more=content_range)
    return not (first and last) or int(first) <= int(last)


@asynccontextmanager
async def in_thread(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """The value of `block`, which may wait for a disk or a database: it is entered and left in threads,
    outside the event loop, also when the task is cancelled."""
    entering = asyncio.ensure_future(asyncio.to_thread(block.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(lambda done: _leave_later(block, done))
        raise
    try:
        yield value
    except BaseException:
        if not await asyncio.shield(asyncio.to_thread(block.__exit__, *sys.exc_info())):
            raise
    else:
        await asyncio.shield(asyncio.to_thread(block.__exit__, None, None, None))


def _check(root: Any, param: str) -> None:
    """Check all values. Iterative, because they may be nested as deeply as the parser allows."""
    pending = [(root, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            text(value, param)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _refused(param, "a number that is too large")
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise _refused(param, f"JSON nested deeper than {MAX_DEPTH} levels")
            children = value if isinstance(value, list) else [*value, *value.values()]
            pending += [(child, depth + 1) for child in children]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refused(param: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{param}: {reason}", param=param)


def _leave_later(block: AbstractContextManager[T], entered: asyncio.Future[T]) -> None:
    """Leave a block that was entered for a task that has been cancelled."""
    if not entered.cancelled() and entered.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, block.__exit__, None, None, None)
