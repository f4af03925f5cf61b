"""Bodies: JSON, text and forms from clients, checked before anything else uses them, and answers with files.

Python's parser accepts more than JSON and fails in more ways than `JSONDecodeError`: nesting raises
RecursionError, a long integer ValueError, `1e999` becomes infinite, and an escaped half of a surrogate pair
becomes text that cannot be encoded.

Forms are parsed with limits enforced while they stream. Their file has no name, so it cannot be guessed and
disappears with the process; the client's name for it is only a label.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable

from forescribe.asr.errors import OutputError, temporary_errors

from ..errors import ApiError, invalid, unknown
from ..settings import Settings

MAX_DEPTH = 32
"""Levels of nesting. The contracts here need at most five."""

MAX_MARKS = 150_000
"""Commas and opening brackets in a text, a bound of the number of its values: a prompt of tokens for a
context of 131,072 fits. Five million empty lists took 11 s, in which no other request was answered."""

MAX_BYTES = 64 << 10
"""Of a body with a few fields."""

FIELDS = 64
FIELD_BYTES = 16 << 20
"""Bytes of all fields together, which are kept in memory. Four voices of 10 s fit in, as base64."""

HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}

_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


def loads(data: str | bytes, param: str) -> Any:
    """Parse JSON. Raises ApiError `invalid_value`."""
    if isinstance(data, str):
        marks = sum(data.count(mark) for mark in ",[{")
    else:
        marks = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if marks > MAX_MARKS:
        raise invalid(param, f"JSON with more than {MAX_MARKS} values")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise invalid(param, f"JSON nested deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise invalid(param, f"invalid JSON ({error.msg})") from error
    except ValueError as error:  # not UTF-8, a number of thousands of digits, NaN
        raise invalid(
            param, "invalid JSON (a character or a number that is not allowed)"
        ) from error
    _check(value, param)
    return value


def text(value: str, param: str) -> str:
    """The text, if it can be stored and sent. Raises ApiError `invalid_value`."""
    if "\0" in value:
        raise invalid(param, "text with a NUL character")
    if _SURROGATE.search(value):
        raise invalid(param, "text with half of a surrogate pair")
    return value


def label(name: str, max_length: int = 255) -> str | None:
    """A name for people, as it can be stored and shown; None if nothing of it is left. What is too long is
    cut before the ending of its file, with an ellipsis."""
    text = "".join(filter(str.isprintable, name)).strip()
    if len(text) > max_length:
        stem, ending = split_name(text)
        text = f"{stem[: max_length - len(ending) - 1]}…{ending}"
    return text or None


def split_name(label: str) -> tuple[str, str]:
    """The name of a recording, and the ending of its file, which may be empty: "memo", ".flac"."""
    ending = re.search(r"(?<=.)\.[A-Za-z0-9]{1,5}$", label)
    return (label[: ending.start()], ending[0]) if ending else (label, "")


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
    other fields too."""
    fields: dict[str, Any] = dict(request.query_params)
    kind = media_type(request)
    if kind == "application/json":
        fields |= await json_object(request)
    elif kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        async with request.form(max_files=0, max_fields=4, max_part_size=MAX_BYTES) as form:
            fields |= form
    for other in fields.keys() - {name}:
        raise unknown(other, [name])
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


@dataclass(frozen=True)
class Form:
    """A form: `fields` in order, with repetitions, and its open file, which may be missing. `name` is the
    client's name for the file: a label, never a path."""

    fields: tuple[tuple[str, str], ...]
    file: BinaryIO | None = None
    name: str | None = None


@asynccontextmanager
async def receive_form(
    request: Request, settings: Settings, file_field: str = "file"
) -> AsyncIterator[Form]:
    """Receive the request's form; its file is closed at the end of the block. Raises ApiError:
    `unsupported_media_type`, `file_too_large`, `storage_full`, `invalid_value`."""
    if media_type(request) != "multipart/form-data":
        raise ApiError("unsupported_media_type", "send the form as multipart/form-data")
    parser = _FormParser(
        request.headers,
        _limited(request, settings.max_upload_bytes),
        max_files=1,
        max_fields=FIELDS,
        max_part_size=FIELD_BYTES,
    )
    parser.file_field = file_field
    try:
        with temporary_errors():
            data = await parser.parse()
    except MultiPartException as error:
        raise ApiError("invalid_value", f"the form cannot be read: {error.message}") from error
    except OutputError as error:
        raise ApiError.of(error) from error
    try:
        yield _checked(data, file_field)
    finally:
        await data.close()


class RangedFile(FileResponse):
    """A file, or the part of it that `Range` names. Raises ApiError `range_not_satisfiable`."""

    # starlette answers its two errors in plain text; tests/api/http/test_hostile.py checks this seam.
    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            return []  # ignored, as HTTP allows
        except RangeNotSatisfiable as error:
            text = f"Range: the file has {file_size} bytes"
            more = {"Content-Range": f"bytes */{file_size}"}
            raise ApiError("range_not_satisfiable", text, param="Range", more=more) from error


@asynccontextmanager
async def in_thread(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """The value of `block`, which may wait for a disk or a database: it is entered and left in threads,
    outside the event loop, also when the task is cancelled."""

    def leave(entered: asyncio.Future[T]) -> None:
        if not entered.cancelled() and entered.exception() is None:
            asyncio.get_running_loop().run_in_executor(None, block.__exit__, None, None, None)

    entering = asyncio.ensure_future(asyncio.to_thread(block.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(leave)
        raise
    try:
        yield value
    except BaseException:
        if not await asyncio.shield(asyncio.to_thread(block.__exit__, *sys.exc_info())):
            raise
    else:
        await asyncio.shield(asyncio.to_thread(block.__exit__, None, None, None))


class _FormParser(MultiPartParser):
    """Limits all fields together, where the library limits each one, and requires UTF-8. The part called
    `file_field` is a file even without a file name, as sent by `curl -F file=<a.wav`."""

    file_field = "file"
    fields_size = 0
    complete = False

    async def parse(self) -> FormData:
        """Raises MultiPartException also if the body ends in the middle of a part."""
        form = await super().parse()
        begun = self._current_files + self._current_fields
        if begun and not self.complete:
            for file in self._files_to_close_on_error:
                file.close()
            raise MultiPartException("the body ends before its last boundary")
        return form

    def on_end(self) -> None:
        self.complete = True

    def on_headers_finished(self) -> None:
        part = self._current_part
        disposition = part.content_disposition or b""
        _, options = parse_options_header(disposition)
        if b"filename" not in options and options.get(b"name") == self.file_field.encode():
            part.content_disposition = disposition + b'; filename=""'
        super().on_headers_finished()
        part.field_name = _decoded(options[b"name"], "the name of a field")
        if part.file is not None:
            part.file.filename = label(options.get(b"filename", b"").decode("utf-8", "replace"))

    def on_part_end(self) -> None:
        part = self._current_part
        if part.file is None:
            self.items.append((part.field_name, _decoded(part.data, "a field")))
        else:
            super().on_part_end()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None:
            self.fields_size += end - start
            if self.fields_size > FIELD_BYTES:
                raise MultiPartException(f"the fields have more than {FIELD_BYTES} bytes")
        super().on_part_data(data, start, end)


def _decoded(data: bytes | bytearray, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MultiPartException(f"{what} is not UTF-8") from error


def _checked(data: FormData, file_field: str) -> Form:
    """Raises ApiError `invalid_value` for a file in another field."""
    fields, file, file_name = list[tuple[str, str]](), None, None
    for name, value in data.multi_items():
        if isinstance(value, str):
            fields.append((name, value))
        elif name != file_field:
            text = f"{name!r} is not a file field of this form; its file is {file_field!r}"
            raise ApiError("invalid_value", text, param=name)
        else:
            file, file_name = value.file, value.filename
            if file_name is None:
                _check_recording(value.file, file_field)
    # Browsers, curl and httpx escape these three characters, as WHATWG's HTML specifies, and no others; line
    # breaks become spaces.
    for escaped, plain in (("%22", '"'), ("%0D", " "), ("%0A", " ")):
        file_name = file_name and file_name.replace(escaped, plain)
    return Form(tuple(fields), file, file_name)


def _check_recording(file: BinaryIO, field: str) -> None:
    """Raises ApiError `invalid_audio` for a short text, as `curl -F file=memo.flac` sends a name."""
    start = file.read(MAX_BYTES).decode(errors="surrogateescape")
    file.seek(0)
    if 0 < len(start) < 256 and start.isprintable():
        text = f"{field}: a text of {len(start)} letters ({start!r}), no recording; was the @ before its "
        text += f"name forgotten? With curl: -F {field}=@{start}"
        raise ApiError("invalid_audio", text, param=field)


async def _limited(request: Request, maximum: int) -> AsyncGenerator[bytes, None]:
    """The body up to `maximum` bytes; a larger Content-Length is refused at once."""
    text = f"the upload is larger than {maximum} bytes"
    declared = request.headers.get("content-length", "0")
    if whole(declared, maximum) is None:
        raise ApiError("file_too_large", text, param="file")
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > maximum:
            raise ApiError("file_too_large", text, param="file")
        yield chunk


def _check(root: Any, param: str) -> None:
    """Check all values. Iterative, because they may be nested as deeply as the parser allows."""
    pending = [(root, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str):
            text(value, param)
        elif isinstance(value, float) and not math.isfinite(value):
            raise invalid(param, "a number that is too large")
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise invalid(param, f"JSON nested deeper than {MAX_DEPTH} levels")
            children = value if isinstance(value, list) else [*value, *value.values()]
            pending += [(child, depth + 1) for child in children]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
