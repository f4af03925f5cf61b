"""Requests to files and batches, for the tests of both."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.testclient import TestClient

from tests.api.conftest import TRANSCRIBE

FILES, BATCHES = "/v1/files", "/v1/batches"
ENDED = {"completed", "cancelled"}


def upload(
    client: TestClient,
    data: bytes,
    purpose: str = "user_data",
    name: str = "talk.wav",
    headers: Mapping[str, str] = {},
    **fields: str,
) -> Any:
    return client.post(
        FILES,
        files={"file": (name, data)},
        data={"purpose": purpose, **fields},
        headers=dict(headers),
    )


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    """A line for the model of the tests."""
    default = {"model": "random", "temperature": 0.5, "language": "de"}
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": TRANSCRIBE,
        "body": {k: v for k, v in {**default, **body}.items() if v is not None},
    }


def jsonl(lines: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def begin(client: TestClient, data: bytes, headers: Mapping[str, str] = {}, **more: Any) -> Any:
    """Upload a file of requests and create a batch."""
    file = upload(client, data, "batch", "requests.jsonl", headers).json()["id"]
    body = {"input_file_id": file, "endpoint": TRANSCRIBE, "completion_window": "24h", **more}
    return client.post(BATCHES, json=body, headers=dict(headers))


def ended(client: TestClient, id: str, seconds: float = 120.0, **options: Any) -> dict[str, Any]:
    """The batch, once it has ended."""
    end = time.monotonic() + seconds
    while True:
        found = client.get(f"{BATCHES}/{id}", **options).json()
        if found["status"] in ENDED:
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


def lines_of(client: TestClient, file: str | None, **options: Any) -> dict[str, dict[str, Any]]:
    """The lines of an output file by custom_id; none without a file."""
    if file is None:
        return {}
    answer = client.get(f"{FILES}/{file}/content", **options)
    assert answer.status_code == 200
    rows = [json.loads(row) for row in answer.content.splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows), "a line is there twice"
    return found
