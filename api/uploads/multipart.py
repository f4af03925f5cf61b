"""Multipart bodies: parsed to fields and one file on disk, with limits enforced while they stream.

The file has no name, so it cannot be guessed and disappears with the process; the client's name for it is
only a label. Does not know what the fields mean.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..errors import ApiError
from ..http.bodies import label, media_type, whole
from ..settings import Settings

FIELDS = 64
FIELD_BYTES = 16 << 20
"""Bytes of all fields together, which are kept in memory. Four voices of 10 s fit in, as base64."""

_EXTENDED = re.compile(rb"(?i);\s*filename\*\s*=\s*(?:utf-8|iso-8859-1)'[^']*'([^;\s]*)")
"""The extended form of a file name (RFC 5987)."""


@dataclass(frozen=True)
class Upload:
    """A form: `fields` in order, with repetitions, and the open file."""

    fields: tuple[tuple[str, str], ...]
    file: BinaryIO


@asynccontextmanager
async def receive(request: Request, settings: Settings) -> AsyncIterator[Upload]:
    """As `receive_form`, of a form that has a file. Raises ApiError also: `missing_file`."""
    async with receive_form(request, settings) as received:
        if received.file is None:
            raise ApiError("missing_file", "the form has no file", param="file")
        yield Upload(received.fields, received.file)


@dataclass(frozen=True)
class Received:
    """A form whose file may be missing. `name` is the client's name for it: a label, never a path."""

    fields: tuple[tuple[str, str], ...]
    file: BinaryIO | None
    name: str | None


@asynccontextmanager
async def receive_form(request: Request, settings: Settings) -> AsyncIterator[Received]:
    """Receive the request's form; its file is closed at the end of the block. Raises ApiError:
    `unsupported_media_type`, `file_too_large`, `storage_full`, `invalid_value`."""
    form = await _parsed(request, settings)
    try:
        yield _received(form)
    finally:
        await form.close()


def _unquoted(name: str | None) -> str | None:
    """A file's name without the escapes of the form. Browsers, curl and httpx escape these three characters,
    as WHATWG's HTML specifies, and no others; line breaks become spaces."""
    for escaped, plain in (("%22", '"'), ("%0D", " "), ("%0A", " ")):
        name = name and name.replace(escaped, plain)
    return name


async def _parsed(request: Request, settings: Settings) -> FormData:
    if media_type(request) != "multipart/form-data":
        raise ApiError("unsupported_media_type", "send the form as multipart/form-data")
    parser = _Form(
        request.headers,
        _limited(request, settings.max_upload_bytes),
        max_files=1,
        max_fields=FIELDS,
        max_part_size=FIELD_BYTES,
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise ApiError("invalid_value", f"the form cannot be read: {error.message}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ApiError("storage_full", "the server has no room for the upload") from error
        raise


class _Form(MultiPartParser):
    """Limits all fields together, where the library limits each one, and requires UTF-8. A part called `file`
    is a file even without a file name, as sent by `curl -F file=<a.wav`."""

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
        extended = _EXTENDED.search(disposition)
        named = b"filename" in options
        if not named and (extended or options.get(b"name") == b"file"):
            part.content_disposition = disposition + b'; filename=""'
        super().on_headers_finished()
        part.field_name = _decoded(options[b"name"], "the name of a field")
        if part.file is not None:
            # RFC 7578 excludes `filename*`, but clients send it. A plain name takes precedence.
            filename = (
                options.get(b"filename", b"")
                if named or not extended
                else unquote_to_bytes(extended[1])
            )
            part.file.filename = label(filename.decode("utf-8", "replace"))

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


def _received(form: FormData) -> Received:
    """Raises ApiError `invalid_value` for a file in another field."""
    items = form.multi_items()
    fields = tuple((name, value) for name, value in items if isinstance(value, str))
    files = [(name, value) for name, value in items if not isinstance(value, str)]
    if not files:
        return Received(fields, None, None)
    name, file = files[0]
    if name != "file":
        raise ApiError("invalid_value", f"{name!r} is not a file field of this form", param=name)
    return Received(fields, file.file, _unquoted(file.filename))


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
