"""A job as it goes on, as server-sent events. Their ids are places in the job's log, so a client that
comes back says which one it saw last and misses nothing.

    event: segment
    id: 7
    data: {"k": 2, "segments": [{"id": 11, "start": 61.2, "end": 64.0, "text": " ..."}]}
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ..speech.events import PING, PING_S
from .records import Entry
from .service import Jobs

LOOK_S = 0.25
"""Between looks at the log. Other processes write to it too, so nobody is told of a change."""


async def follow(jobs: Jobs, id: str, after: int) -> AsyncIterator[bytes]:
    """From behind entry `after` on, until the job ends; then `done`."""
    n, said = after, time.monotonic()
    while True:
        # The job first: an entry that comes between the two looks is sent, and the end seen next time.
        job = await asyncio.to_thread(jobs.store.job, id)
        entries = await asyncio.to_thread(jobs.store.entries, id, n)
        for entry in entries:
            n = entry.n
            yield await asyncio.to_thread(_event, jobs, id, entry)
            said = time.monotonic()
        if job is None or (jobs.leaving and not entries and not job.ended):
            return  # erased meanwhile, or told by the next process: the client comes again
        if job.ended and not entries:
            yield _told("done", job.view(), n)
            return
        if time.monotonic() - said > PING_S:
            yield PING
            said = time.monotonic()
        if not entries:
            await asyncio.sleep(LOOK_S)


def _event(jobs: Jobs, id: str, entry: Entry) -> bytes:
    data: Mapping[str, Any] = entry.data
    if entry.kind == "segment":
        data = _segments(jobs, entry.data)
    elif entry.kind == "progress":
        job = jobs.store.job(id)
        total_s = 0.0 if job is None else job.progress()["total_s"]
        data = {"done_s": entry.data["done_s"], "total_s": total_s}
    else:
        job = jobs.store.job(id)
        # What it was then, with what is known of it now.
        data = {**(job.view() if job is not None else {"id": id}), "state": entry.data["state"]}
    return _told(entry.kind, data, entry.n)


def _segments(jobs: Jobs, data: Mapping[str, Any]) -> dict[str, Any]:
    """The text of a group; none where it has been erased meanwhile."""
    try:
        group = json.loads(jobs.store.blobs.read(data["blob"]))
    except FileNotFoundError:
        group = {"segments": []}
    numbered = enumerate(group["segments"], data["first"])
    return {"k": data["k"], "segments": [{"id": i, **segment} for i, segment in numbered]}


def _told(kind: str, data: Mapping[str, Any], n: int) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\nid: {n}\ndata: {text}\n\n".encode()
