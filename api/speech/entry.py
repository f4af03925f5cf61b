"""Entry: the way in for every route that takes audio, in the one order that is safe.

    key -> ready? -> room for one more? -> body, limited as it comes -> a place -> decoded, apart -> queue

A rejected key or a full queue costs no byte of the body. What an upload holds is decoded once, in a
process of its own, before anything else is done with it: that it is no audio, or too long, is known
before the first byte of an answer. Knows nothing of what the form's fields mean.
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

from ..access.capacity import Place
from ..dependencies import ANYBODY
from ..settings import Settings
from ..uploads.multipart import Upload, receive
from .following import Following, Task
from .serving import Serving

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options
    from forescribe.asr.sessions.parts import Part
    from forescribe.asr.sessions.submission import Tap


Made = TypeVar("Made")


@dataclass(frozen=True)
class Entry:
    """An upload that was let in."""

    upload: Upload
    place: Place
    settings: Settings
    serving: Serving

    async def follow(self, options: Options, tap: Tap | None = None) -> Following:
        """Queues it; with a `tap`, the place is the caller's to give back. Raises ApiError where the
        file is no audio, too long, or too much beside what is queued."""
        began = time.perf_counter()
        spool = await self.serving.decoded(self.upload.file)
        self.serving.metrics.took("decode", time.perf_counter() - began)
        self.upload.file.close()  # the samples are all that is wanted of it
        try:
            self.place.hold(spool.duration_s)
        except BaseException:
            spool.close()
            raise
        return self.serving.follow(Task(spool, options, self.place, tap))


@asynccontextmanager
async def admitted(
    request: Request, settings: Settings, serving: Serving, caller: str
) -> AsyncIterator[Entry]:
    """The request's upload. Its block either has the entry followed, as its last act, or raises:
    then nothing of it is left. Raises ApiError before the body is read where nothing may come in.
    """
    serving.check()
    place = serving.admission.arrive(caller, keyed=caller != ANYBODY)
    try:
        began = time.perf_counter()
        async with receive(request, settings) as upload:
            place.enter()
            serving.metrics.took("upload", time.perf_counter() - began)
            yield Entry(upload, place, settings, serving)
    except BaseException:
        place.leave()
        raise


async def parts(request: Request, following: Following) -> list[Part]:
    """All parts, once there is an outcome. What is under way is cancelled when the client leaves.

    Raises ApiError where it fails, ClientDisconnect where nobody waits any more.
    """
    try:
        return await attended(request, _all(following))
    finally:
        following.cancel()


async def attended(request: Request, work: Coroutine[Any, Any, Made]) -> Made:
    """What the work makes, as long as the client waits for it: else ClientDisconnect."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _all(following: Following) -> list[Part]:
    found = []
    while (part := await following.next()) is not None:
        found.append(part)
    return found


async def _gone(request: Request) -> None:
    """Ends when the client has closed the connection; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
