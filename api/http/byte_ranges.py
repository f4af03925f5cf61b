"""Answers with files, whole or in part: range requests (RFC 9110, section 14).

    return await file_response(request, path, filename="talk.wav", media_type="audio/wav")

One range is served, or refused with 416 if it lies outside the file. Several ranges, and those that are
malformed, are ignored, as HTTP allows. Does not know whose files they are; starlette's FileResponse reads
the headers again and sends the bytes.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Literal

from fastapi import Request
from starlette.responses import FileResponse

from ..errors import ApiError

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)

HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-store"}


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
