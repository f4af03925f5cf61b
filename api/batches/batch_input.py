"""The input file of a batch: one JSON object per line, checked as a whole before anything is done.

    {"custom_id": "call-1", "method": "POST", "url": "/v1/audio/transcriptions",
     "body": {"model": "whisper-1", "file": "file-...", "response_format": "verbose_json"}}

What is wrong with a line's form fails the whole batch, as at OpenAI: a file that was cut off or made for
another endpoint is a mistake that concerns all of it. What is wrong with its body (a field, the
recording) fails that line alone, later. Knows bytes and JSON; does not know forms, rows or files' ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import ApiError
from ..http.validation import loads
from .batch_records import BatchError

MAX_ERRORS = 100
"""Errors that are told of one file."""

MAX_LINE_BYTES = 16 << 20
"""Four voices of 10 s fit in, as base64."""

MAX_ID_LENGTH = 512


@dataclass(frozen=True)
class InputLine:
    """One request. `at` and `length` are its place in the file, in bytes."""

    at: int
    length: int
    custom_id: str
    body: dict[str, Any]


class _Refused(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def check(
    file: BinaryIO, endpoint: str, max_lines: int
) -> tuple[list[tuple[int, int]], list[BatchError]]:
    """The places of all requests of a file, and what is wrong with it; with errors it cannot be used."""
    places: list[tuple[int, int]] = []
    errors: list[BatchError] = []
    first_uses: dict[str, int] = {}
    for number, at, data in _numbered(file):
        try:
            line = _parsed(at, data, endpoint)
            first = first_uses.setdefault(line.custom_id, number)
            if first != number:
                text = f"the custom_id of line {first} is used again"
                raise _Refused("duplicate_custom_id", text, "custom_id")
            places.append((line.at, line.length))
        except _Refused as error:
            errors.append(
                BatchError(code=error.code, message=error.message, param=error.param, line=number)
            )
        if len(places) > max_lines:
            text = f"the file has more than {max_lines} requests"
            return [], [BatchError(code="too_many_requests", message=text)]
        if len(errors) >= MAX_ERRORS:
            break
    if not places and not errors:
        errors.append(BatchError(code="empty_file", message="the file has no requests"))
    return places, errors


def read(file: BinaryIO, at: int, length: int) -> InputLine:
    """A line of a file that was checked."""
    file.seek(at)
    data = loads(file.read(length), "line")
    return InputLine(at, length, data["custom_id"], data["body"])


def _numbered(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """The lines that are not blank, with their numbers from 1 and the bytes before them. A line that is
    too long comes cut off, and is the last one."""
    at = number = 0
    while data := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if data.strip():
            yield number, at, data
        if len(data) > MAX_LINE_BYTES:
            return
        at += len(data)


def _parsed(at: int, data: bytes, endpoint: str) -> InputLine:
    if len(data) > MAX_LINE_BYTES:
        raise _Refused("invalid_json_line", f"the line has more than {MAX_LINE_BYTES} bytes")
    try:
        value = loads(data, "line")
    except ApiError as error:
        raise _Refused("invalid_json_line", error.message) from error
    if not isinstance(value, dict):
        raise _Refused("invalid_json_line", "the line is not a JSON object")
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if name not in value:
            raise _Refused("missing_required_parameter", f"{name} is missing", name)
        if not isinstance(value[name], kind):
            what = "an object" if kind is dict else "a string"
            raise _Refused("invalid_value", f"{name} is not {what}", name)
    if not 0 < len(value["custom_id"]) <= MAX_ID_LENGTH:
        text = f"custom_id has 1 to {MAX_ID_LENGTH} characters"
        raise _Refused("invalid_value", text, "custom_id")
    if value["method"] != "POST":
        raise _Refused("invalid_method", "method is not POST", "method")
    if value["url"] != endpoint:
        raise _Refused("invalid_url", f"url is not the batch's endpoint, {endpoint}", "url")
    unknown = sorted(value.keys() - {"custom_id", "method", "url", "body"})
    if unknown:
        raise _Refused("unknown_parameter", f"unknown field {unknown[0][:100]!r}", unknown[0][:100])
    return InputLine(at, len(data), value["custom_id"], value["body"])
