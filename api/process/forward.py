"""Forward: what only one worker can answer is handed to it, over a socket that is not on the network.

    /v1/jobs, /v1/uploads     to worker 0, which has the jobs
    /metrics?worker=1         to that one: each counts for itself

Bodies stream both ways; the key is checked by who answers. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from starlette.datastructures import URL
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ApiError

JOBS = re.compile(r"/v1/(jobs|uploads)(/|$)")
METRICS = "/metrics"

OWN_HOP = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer")
)
"""Headers that are about one connection, not about the message. Host stays: who answers checks it."""


@dataclass(frozen=True)
class Worker:
    """One of `count`, which speak to each other by sockets in a folder of theirs."""

    index: int
    count: int
    folder: str

    def path(self, index: int) -> str:
        """Where that one is spoken to."""
        return str(Path(self.folder) / f"{index}.sock")


class Forward:
    """ASGI middleware of a worker. `jobs` is whether there are any."""

    def __init__(self, app: ASGIApp, worker: Worker, jobs: bool) -> None:
        self.app, self.worker, self.jobs = app, worker, jobs
        self.index, self.count = worker.index, worker.count
        self._clients = {
            i: httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    uds=worker.path(i), limits=httpx.Limits(max_connections=None)
                ),
                timeout=None,
                trust_env=False,
            )
            for i in range(worker.count)
            if i != worker.index
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        to = self.index if scope["type"] != "http" else self._whose(scope)
        if to == self.index:
            await self.app(scope, receive, send)
        elif to is None:
            await ApiError("not_found", "no such worker").response()(scope, receive, send)
        else:
            await _answer(self._clients[to], scope, receive, send)

    def _whose(self, scope: Scope) -> int | None:
        """The worker that answers this; None where there is none such."""
        if JOBS.match(scope["path"]):
            return 0 if self.jobs else self.index
        asked = re.fullmatch(rb"worker=(\d{1,4})", scope["query_string"])
        if scope["path"] != METRICS or asked is None:
            return self.index
        index = int(asked[1])
        return index if index < self.count else None


async def _answer(client: httpx.AsyncClient, scope: Scope, receive: Receive, send: Send) -> None:
    """The other worker's answer, as it comes."""
    read = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                read.set()
                return

    async def left() -> None:
        """Returns when the client has closed the connection; its body is read by then."""
        await read.wait()
        while (await receive())["type"] != "http.disconnect":
            pass

    headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HOP]
    url = URL(scope=scope).replace(scheme="http", netloc="worker")
    began = False

    async def through() -> None:
        nonlocal began
        sends = scope["method"] not in ("GET", "HEAD", "OPTIONS", "DELETE")
        if not sends:
            read.set()
        request = client.build_request(
            scope["method"], str(url), headers=headers, content=body() if sends else None
        )
        answer = await client.send(request, stream=True)
        try:
            kept = [(k.lower(), v) for k, v in answer.headers.raw if k.lower() not in OWN_HOP]
            began = True
            await send(
                {"type": "http.response.start", "status": answer.status_code, "headers": kept}
            )
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()

    work, watch = asyncio.ensure_future(through()), asyncio.ensure_future(left())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return  # nobody waits any more: cancelled below, and the other worker sees it leave
        work.result()
    except ConnectionAbortedError:
        return
    except httpx.TransportError:
        if began:
            raise  # half an answer is out: the server has to cut the connection
        failed = ApiError("not_ready", "the worker that keeps jobs is being started again")
        await failed.response()(scope, receive, send)
    finally:
        for task in (work, watch):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
