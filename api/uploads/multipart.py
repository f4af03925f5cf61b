"""Uploads: a multipart body to its fields and one file on disk, limits enforced while it streams.

The file has no name, so nothing can be guessed and nothing is left behind when a process dies; the
client's name for it is not used at all. Knows nothing of what the fields mean.
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
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from ..errors import ApiError
from ..http.validation import label, whole
from ..settings import Settings

FIELDS = 64
FIELD_BYTES = 16 << 20
"""Of all fields together: they are kept in memory. Four voices of 10 s, as base64, have room."""


_EXTENDED = re.compile(rb"(?i);\s*filename\*\s*=\s*(?:utf-8|iso-8859-1)'[^']*'([^;\s]*)")
"""RFC 5987's spelling of a name."""


@dataclass(frozen=True)
class Upload:
    """A form as it came: `fields` in order, with repetitions, and the open file."""

    fields: tuple[tuple[str, str], ...]
    file: BinaryIO


@asynccontextmanager
async def receive(request: Request, settings: Settings) -> AsyncIterator[Upload]:
    """The request's form. The file is closed if this fails or its block raises; else it is the
    caller's.

    Raises ApiError: `unsupported_media_type`, `file_too_large`, `missing_file`, `storage_full`,
    `invalid_value`.
    """
    form = await _parsed(request, settings)
    try:
        yield _upload(form.multi_items())
    except BaseException:
        await form.close()
        raise


@dataclass(frozen=True)
class Received:
    """A form whose file may be missing. `name` is the client's name for it: a label, never a path."""

    fields: tuple[tuple[str, str], ...]
    file: BinaryIO | None
    name: str | None


@asynccontextmanager
async def receive_form(request: Request, settings: Settings) -> AsyncIterator[Received]:
    """The request's form; its file is closed with the block. Raises as `receive` does, but for
    `missing_file`."""
    form = await _parsed(request, settings)
    try:
        items = form.multi_items()
        name = next((_named(v.filename) for _, v in items if not isinstance(v, str)), None)
        if any(not isinstance(value, str) for _, value in items):
            upload = _upload(items)
            yield Received(upload.fields, upload.file, name)
        else:
            yield Received(tuple((n, v) for n, v in items if isinstance(v, str)), None, None)
    finally:
        await form.close()


def media_type(request: Request) -> str:
    """Of the body, without parameters: it is the same in capitals."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _named(name: str | None) -> str | None:
    """A file's name as it was before the client wrote it into a form: browsers, curl and httpx write these
    three characters as WHATWG's HTML has it, and nothing else; a line break is no part of a label."""
    for written, meant in (("%22", '"'), ("%0D", " "), ("%0A", " ")):
        name = name and name.replace(written, meant)
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
    """The library limits each field; this limits all of them, and reads them as UTF-8 or not at all. A part
    called `file` is one, whether or not it has a name of its own: `curl -F file=<a.wav` gives it none."""

    fields_size = 0
    whole = False

    async def parse(self) -> FormData:
        """Raises MultiPartException also where the body ends in the middle of a part."""
        form = await super().parse()
        begun = self._current_files + self._current_fields
        if begun and not self.whole:
            for file in self._files_to_close_on_error:
                file.close()
            raise MultiPartException("it ends before its last boundary")
        return form

    def on_end(self) -> None:
        self.whole = True

    def on_headers_finished(self) -> None:
        part = self._current_part
        written = part.content_disposition or b""
        _, options = parse_options_header(written)
        extended = _EXTENDED.search(written)
        named = b"filename" in options
        if not named and (extended or options.get(b"name") == b"file"):
            part.content_disposition = written + b'; filename=""'
        super().on_headers_finished()
        part.field_name = _decoded(options[b"name"], "the name of a field")
        if part.file is not None:
            # RFC 7578 knows no `filename*`, but clients send it. Beside a plain name it does not count.
            called = (
                options.get(b"filename", b"")
                if named or not extended
                else unquote_to_bytes(extended[1])
            )
            part.file.filename = label(called.decode("utf-8", "replace"))

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
        raise MultiPartException(f"{what} is no UTF-8") from error


def _upload(items: list[tuple[str, UploadFile | str]]) -> Upload:
    fields = tuple((name, value) for name, value in items if isinstance(value, str))
    files = [(name, value) for name, value in items if not isinstance(value, str)]
    if not files:
        raise ApiError("missing_file", "the form has no file", param="file")
    name, file = files[0]
    if name != "file":
        raise ApiError("invalid_value", f"{name!r} is no file of this form", param=name)
    return Upload(fields, file.file)


async def _limited(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body, as long as it is not too long; a length that says so is believed at once."""
    text = f"the upload is larger than {most} bytes"
    declared = request.headers.get("content-length", "0")
    if whole(declared, most) is None:
        raise ApiError("file_too_large", text, param="file")
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise ApiError("file_too_large", text, param="file")
        yield chunk
