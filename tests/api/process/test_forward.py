"""Forwarding between workers: the client is the one that connected to the first of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forescribe.api.process.forward import CLIENT, Forward, WorkerAddress
from tests.api.conftest import until


async def told(request: Request) -> JSONResponse:
    """What a route sees of its client."""
    client = request.client and request.client.host
    return JSONResponse({"client": client, "header": request.headers.get(CLIENT.decode())})


def worker(index: int, folder: Path) -> Forward:
    app = Starlette(routes=[Route("/v1/jobs", told), Route("/", told)])
    return Forward(app, WorkerAddress(index, 2, str(folder)), jobs=True)


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    """Worker 0 listens on its private socket."""
    path = str(tmp_path / "0.sock")
    config = uvicorn.Config(worker(0, tmp_path), uds=path, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    yield tmp_path
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("path", ["/", "/v1/jobs"])
@pytest.mark.parametrize("claimed", [None, "198.51.100.1"])
def test_the_answering_worker_knows_the_client_and_believes_no_claim(folder, path, claimed) -> None:
    async def ask() -> dict[str, str | None]:
        app = worker(1, folder)
        transport = httpx.ASGITransport(app, client=("203.0.113.9", 1))
        async with (
            app._clients[0],
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            headers = {} if claimed is None else {CLIENT.decode(): claimed}
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 200
            return answer.json()

    assert asyncio.run(ask()) == {"client": "203.0.113.9", "header": None}
