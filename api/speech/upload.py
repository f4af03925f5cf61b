"""Admission of uploads, for every route that takes audio, in the one safe order.

    key -> ready? -> capacity? -> body, limited as it arrives -> request -> decoded in a child process ->
    queue

A wrong key or a full queue is refused before the body is read. An upload is decoded once, in a process of
its own, before anything else is done with it, so a file that is not audio or too long is refused before
the answer begins. Does not know what the form's fields mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from ..access.limits import Client, Reservation
from ..dependencies import reserve
from ..settings import Settings
from ..uploads.multipart import Upload, receive
from .serving import Serving, TranscriptionStream

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.parts import Part
    from forescribe.asr.decode.submission import Tap


T = TypeVar("T")


@dataclass(frozen=True)
class AdmittedUpload:
    """An upload that was received, and what is `held` for it: its reservation and, later, its samples."""

    upload: Upload
    reservation: Reservation
    serving: Serving
    held: ExitStack

    async def follow(self, options: Options, tap: Tap | None = None) -> TranscriptionStream:
        """Decode and queue it; with a `tap`, the caller releases the reservation. Raises ApiError if the
        file is not audio, is too long, or does not fit into the queue."""
        samples = await self.serving.decoded(self.upload.file)
        self.held.callback(samples.close)
        self.upload.file.close()  # only the samples are needed from here on
        await self.serving.awake()
        self.reservation.add_audio(samples.duration_s)
        stream = self.serving.follow(samples, options, self.reservation, tap)
        self.held.pop_all()  # the engine has it
        return stream


@asynccontextmanager
async def admitted(
    request: Request, settings: Settings, serving: Serving, client: Client
) -> AsyncIterator[AdmittedUpload]:
    """The request's upload. What is held for it is given back at the end of the block, unless `follow` has
    queued it: then the engine gives it back. Raises ApiError before the body is read if no work is admitted.
    """
    serving.check()
    with ExitStack() as held:
        reservation = reserve(request, client)
        held.callback(reservation.release)
        serving.idle.want()  # it is loaded while the body arrives
        began_ns = time.time_ns()
        async with receive(request, settings) as upload:
            received_ns = time.time_ns()
            serving.tracing.record("receive", began_ns, received_ns)
            serving.metrics.took("upload", (received_ns - began_ns) / 1e9)
            reservation.start()
            yield AdmittedUpload(upload, reservation, serving, held)


async def all_parts(request: Request, stream: TranscriptionStream) -> list[Part]:
    """All parts, once the outcome is there. The transcription is cancelled if the client disconnects.

    Raises ApiError if it fails, ClientDisconnect if the client has left.
    """
    try:
        return await while_connected(request, _collect(stream))
    finally:
        stream.cancel()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientDisconnect if the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _collect(stream: TranscriptionStream) -> list[Part]:
    parts = []
    while (part := await stream.next()) is not None:
        parts.append(part)
    return parts


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; its body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
