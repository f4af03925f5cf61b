"""Request bodies: their media type, and one field that may come in the query, a form or JSON.

Does not know what the field means.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from ..errors import ApiError
from .validation import loads

MAX_BYTES = 64 << 10


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


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError."""
    return _object(await _body(request))


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise ApiError("file_too_large", f"the body has more than {MAX_BYTES} bytes")
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    value = loads(body or b"{}", "body")
    if not isinstance(value, dict):
        raise ApiError("invalid_value", "the body is not a JSON object")
    return value
