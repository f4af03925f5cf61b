"""A worker without a model, for tests of what is around one: says who it is, has jobs if it is the first."""

from __future__ import annotations

import json
import os
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from forescribe.api.process.forward import Forward, WorkerAddress


def work(seat: WorkerAddress, shared: socket.socket) -> None:
    """As `api.process.workers.work`."""
    from forescribe.api.process.workers import _private_socket

    async def who(request: Request) -> Response:
        return JSONResponse({"worker": seat.index, "pid": os.getpid()})

    async def echo(request: Request) -> Response:
        if seat.index:
            return JSONResponse({"error": "no jobs here"}, 500)
        size = 0
        async for piece in request.stream():
            size += len(piece)
        headers = {"location": "/v1/jobs/1", "x-seen": request.headers.get("authorization", "")}
        return JSONResponse({"worker": seat.index, "size": size}, 202, headers)

    async def events(request: Request) -> Response:
        async def lines():
            for number in range(3):
                yield f"data: {json.dumps({'n': number, 'worker': seat.index})}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/", who),
            Route("/metrics", who),
            Route("/v1/jobs", echo, methods=["POST"]),
            Route("/v1/jobs/{id}/events", events),
        ]
    )
    app.add_middleware(Forward, worker=seat, jobs=True)
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run([shared, _private_socket(seat)])
