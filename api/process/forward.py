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
from dataclasses import dataclass, field
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
    """One of `count` workers, whose sockets are in one folder, and who accept each other's client secrets."""

    index: int
    count: int
    folder: str
    signing_key: bytes | None = field(default=None, repr=False)

    def path(self, index: int) -> str:
        """The socket of a worker."""
        return str(Path(self.folder) / f"{index}.sock")


class Forward:
    """ASGI middleware of a worker. `jobs`: whether there are job routes."""

    def __init__(self, app: ASGIApp, worker: WorkerAddress, jobs: bool) -> None:
        self.app, self.jobs = app, jobs
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
            await _Exchange(self._clients[target], scope, receive, send).run()

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


class _Exchange:
    """A request that another worker answers."""

    def __init__(
        self, client: httpx.AsyncClient, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.client, self.scope, self.receive, self.send = client, scope, receive, send
        self._body_sent = asyncio.Event()
        self._began = False  # the answer

    async def run(self) -> None:
        """Send the request to the other worker, and stream its answer."""
        work = asyncio.ensure_future(self._forward())
        watch = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return  # the client has left: cancelled below, and the other worker sees it
            work.result()
        except ConnectionAbortedError:
            return
        except httpx.TransportError:
            if self._began:
                raise  # half of the answer is sent: the server has to close the connection
            failed = ApiError("not_ready", "the worker with the jobs is being restarted")
            await failed.response()(self.scope, self.receive, self.send)
        finally:
            for task in (work, watch):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _forward(self) -> None:
        scope, send = self.scope, self.send
        has_body = scope["method"] not in ("GET", "HEAD", "OPTIONS", "DELETE")
        if not has_body:
            self._body_sent.set()
        headers = [(name, value) for name, value in scope["headers"] if name not in HOP_BY_HOP]
        if scope.get("client"):
            headers.append((CLIENT, scope["client"][0].encode("latin-1", "replace")))
        url = str(URL(scope=scope).replace(scheme="http", netloc="worker"))
        content = self._body() if has_body else None
        request = self.client.build_request(scope["method"], url, headers=headers, content=content)
        answer = await self.client.send(request, stream=True)
        try:
            raw = [(k.lower(), v) for k, v in answer.headers.raw if k.lower() not in HOP_BY_HOP]
            start = {"type": "http.response.start", "status": answer.status_code, "headers": raw}
            self._began = True
            await send(start)
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                self._body_sent.set()
                return

    async def _disconnected(self) -> None:
        """Return when the client has closed the connection, after its body was read."""
        await self._body_sent.wait()
        while (await self.receive())["type"] != "http.disconnect":
            pass
