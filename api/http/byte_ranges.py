"""Range requests (RFC 9110, section 14): decides which are served and which are refused.

Does not know files; starlette's FileResponse reads the header again and sends the bytes.
"""

from __future__ import annotations

import re

from ..errors import ApiError

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def is_served(header: str | None, size: int) -> bool:
    """Whether a Range header is served for a file of this size; others are ignored, as HTTP allows.
    Raises ApiError `range_not_satisfiable`."""
    match = _RANGE.fullmatch((header or "").replace(" ", "").lower())
    if match is None or match[0] == "bytes=-":
        return False
    first, last = match[1], match[2]
    if int(first) >= size if first else int(last) == 0:
        text = f"Range: the recording has {size} bytes"
        content_range = {"Content-Range": f"bytes */{size}"}
        raise ApiError("range_not_satisfiable", text, param="Range", more=content_range)
    return not (first and last) or int(first) <= int(last)
