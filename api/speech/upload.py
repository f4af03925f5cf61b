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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from ..access.limits import Client, Reservation
from ..dependencies import reserve
from ..errors import ApiError
from ..settings import Settings
from ..uploads.multipart import Upload, receive
from .serving import Serving, TranscriptionStream, TranscriptionTask

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options
    from forescribe.asr.sessions.parts import Part
    from forescribe.asr.sessions.submission import Tap


T = TypeVar("T")


@dataclass(frozen=True)
class AdmittedUpload:
    """An upload that was received, with its reservation."""

    upload: Upload
    reservation: Reservation
    serving: Serving
    caller: str

    async def follow(self, options: Options, tap: Tap | None = None) -> TranscriptionStream:
        """Decode and queue it; with a `tap`, the caller releases the reservation. Raises ApiError if the
        file is not audio, is too long, or does not fit into the queue."""
        decoded_file = await self.serving.decoded(self.upload.file)
        try:
            await self.serving.awake()
        except BaseException:
            decoded_file.close()
            raise
        self.upload.file.close()  # only the samples are needed from here on
        seconds, usage = decoded_file.duration_s, self.serving.usage
        try:
            await asyncio.to_thread(usage.spend, self.caller, requests=1, audio_s=seconds)
        except BaseException:
            decoded_file.close()
            raise
        try:
            try:
                self.reservation.add_audio(seconds)
            except BaseException:
                decoded_file.close()
                raise
            task = TranscriptionTask(decoded_file, options, self.reservation, tap)
            return self.serving.follow(task)
        except ApiError:
            await asyncio.to_thread(usage.refund, self.caller, requests=1, audio_s=seconds)
            raise


@asynccontextmanager
async def admitted(
    request: Request, settings: Settings, serving: Serving, client: Client
) -> AsyncIterator[AdmittedUpload]:
    """The request's upload. The block either ends by calling `follow`, or raises: then nothing of the
    upload is left. Raises ApiError before the body is read if no work is admitted.
    """
    serving.check()
    await asyncio.to_thread(serving.usage.check, client.owner)
    reservation = reserve(request, client)
    serving.idle.want()  # it is loaded while the body arrives
    try:
        began, began_ns = time.perf_counter(), time.time_ns()
        async with receive(request, settings) as upload:
            serving.tracing.record("receive", began_ns, time.time_ns())
            reservation.start()
            serving.metrics.took("upload", time.perf_counter() - began)
            yield AdmittedUpload(upload, reservation, serving, client.owner)
    except BaseException:
        reservation.release()
        raise


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
