"""The progress of a job as server-sent events.

    event: segment
    id: 7
    data: {"k": 2, "segments": [{"id": 11, "start": 61.2, "end": 64.0, "text": " ..."}]}

Event ids are numbers of the job's log, so a client that reconnects names the last one it has seen and
misses nothing. Does not know requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..speech.events import PING, PING_S
from .service import Jobs
from .storage.records import LogEntry
from .storage.store import Store

POLL_S = 0.25
"""Seconds between reads of the log. Other processes write to it too, so there is no notification."""


async def follow(jobs: Jobs, id: str, after: int) -> AsyncIterator[bytes]:
    """The entries numbered above `after` until the job ends, then `done`."""
    store, n, sent_s = jobs.store, after, time.monotonic()
    while True:
        # The job is read first: an entry that is written between the two reads is sent now, and the end is
        # seen in the next pass.
        job = await asyncio.to_thread(store.jobs.get, id)
        entries = await asyncio.to_thread(store.log.entries, id, n)
        for entry in entries:
            n = entry.n
            yield await asyncio.to_thread(_event, store, id, entry)
            sent_s = time.monotonic()
        if job is None or (jobs.leaving and not entries and not job.ended):
            return  # erased, or continued by the next process: the client reconnects
        if job.ended and not entries:
            yield _encoded("done", job.view(), n)
            return
        if time.monotonic() - sent_s > PING_S:
            yield PING
            sent_s = time.monotonic()
        if not entries:
            await asyncio.sleep(POLL_S)


def _event(store: Store, id: str, entry: LogEntry) -> bytes:
    data: Mapping[str, Any] = entry.data
    if entry.kind == "segment":
        data = _segments(store, entry.data)
    elif entry.kind == "progress":
        job = store.jobs.get(id)
        total_s = 0.0 if job is None else job.progress()["total_s"]
        data = {"done_s": entry.data["done_s"], "total_s": total_s}
    else:
        job = store.jobs.get(id)
        # The current view with the state of that time.
        data = {**(job.view() if job is not None else {"id": id}), "state": entry.data["state"]}
    return _encoded(entry.kind, data, entry.n)


def _segments(store: Store, data: Mapping[str, Any]) -> dict[str, Any]:
    """The segments of a group; empty if its text has been erased."""
    try:
        group = json.loads(store.blobs.read(data["blob"]))
    except FileNotFoundError:
        group = {"segments": []}
    numbered = enumerate(group["segments"], data["first"])
    return {"k": data["k"], "segments": [{"id": i, **segment} for i, segment in numbered]}


def _encoded(kind: str, data: Mapping[str, Any], n: int) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\nid: {n}\ndata: {text}\n\n".encode()
