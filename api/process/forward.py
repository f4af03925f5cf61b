"""Forwarding between workers: requests that only one worker can answer go to it over a Unix socket.

    /v1/jobs, /v1/uploads     to worker 0, which has the jobs
    /metrics?worker=1         to that worker: each counts separately

Bodies stream in both directions; the answering worker checks the key. It learns the client's address from a
header, which counts only on the private socket, where no client can connect. Does not know the contents of
requests.
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

CLIENT = b"x-forescribe-client"
"""The header with the client's address."""

JOBS = re.compile(r"/v1/(jobs|uploads|files|batches)(/|$)")
METRICS = "/metrics"

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer")
)
"""Headers of one connection, not of the message. Host is kept, because the answering worker checks it."""


@dataclass(frozen=True)
class WorkerAddress:
    """One of `count` workers, whose sockets are in one folder."""

    index: int
    count: int
    folder: str

    def path(self, index: int) -> str:
        """The socket of a worker."""
        return str(Path(self.folder) / f"{index}.sock")


class Forward:
    """ASGI middleware of a worker. `jobs`: whether there are job routes."""

    def __init__(self, app: ASGIApp, worker: WorkerAddress, jobs: bool) -> None:
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
        if scope["type"] == "http":
            scope = _with_client(scope)
        target = self.index if scope["type"] != "http" else self._target(scope)
        if target == self.index:
            await self.app(scope, receive, send)
        elif target is None:
            await ApiError("not_found", "there is no such worker").response()(scope, receive, send)
        else:
            await _forward(self._clients[target], scope, receive, send)

    def _target(self, scope: Scope) -> int | None:
        """The index of the worker that answers; None if it does not exist."""
        if JOBS.match(scope["path"]):
            return 0 if self.jobs else self.index
        number = re.fullmatch(rb"worker=(\d{1,4})", scope["query_string"])
        if scope["path"] != METRICS or number is None:
            return self.index
        index = int(number[1])
        return index if index < self.count else None


def _with_client(scope: Scope) -> Scope:
    """The scope with the client that a forwarding worker names; the header of anybody else is removed."""
    named = next((value for name, value in scope["headers"] if name == CLIENT), None)
    if named is None:
        return scope
    client = scope.get("client")
    if client is None:  # a Unix socket: it has no addresses
        client = (named.decode("latin-1"), 0)
    headers = [(name, value) for name, value in scope["headers"] if name != CLIENT]
    return {**scope, "headers": headers, "client": client}


async def _forward(client: httpx.AsyncClient, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the request to the other worker, and stream its answer."""
    body_sent = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                body_sent.set()
                return

    async def disconnected() -> None:
        """Return when the client has closed the connection, after its body was read."""
        await body_sent.wait()
        while (await receive())["type"] != "http.disconnect":
            pass

    headers = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP]
    if scope.get("client"):
        headers.append((CLIENT, scope["client"][0].encode("latin-1", "replace")))
    url = URL(scope=scope).replace(scheme="http", netloc="worker")
    began = False

    async def exchange() -> None:
        nonlocal began
        has_body = scope["method"] not in ("GET", "HEAD", "OPTIONS", "DELETE")
        if not has_body:
            body_sent.set()
        request = client.build_request(
            scope["method"], str(url), headers=headers, content=body() if has_body else None
        )
        answer = await client.send(request, stream=True)
        try:
            answer_headers = [
                (k.lower(), v) for k, v in answer.headers.raw if k.lower() not in HOP_BY_HOP
            ]
            began = True
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status_code,
                    "headers": answer_headers,
                }
            )
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()

    work, watch = asyncio.ensure_future(exchange()), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return  # the client has left: cancelled below, and the other worker sees it
        work.result()
    except ConnectionAbortedError:
        return
    except httpx.TransportError:
        if began:
            raise  # half of the answer is sent: the server has to close the connection
        failed = ApiError("not_ready", "the worker with the jobs is being restarted")
        await failed.response()(scope, receive, send)
    finally:
        for task in (work, watch):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
