"""What the routes need: the settings, the speech serving, the caller, and the upload of a request.

An upload is admitted in the one safe order:

    key -> ready? -> capacity? -> body, limited as it arrives -> request -> decoded in a child process ->
    queue

A wrong key or a full queue is refused before the body is read. An upload is decoded once, in a process of
its own, before anything else is done with it, so a file that is not audio or too long is refused before
the answer begins. Does not know what the form's fields mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar

from fastapi import Depends, Request
from fastapi.security import HTTPBasic
from starlette.requests import ClientDisconnect, HTTPConnection

from .access.keys import Keyring, Scope
from .access.limits import Client, Reservation, network
from .errors import ApiError
from .http.bodies import receive_form
from .settings import Settings, loopback
from .speech.decoding import Decoding
from .speech.diarization import numbered
from .speech.serving import Serving

if TYPE_CHECKING:
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.results import Part, Tap
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.diarize.diarizer import Bounds

ANONYMOUS = ""
"""The caller's name if no keys are configured."""

NEEDS: Mapping[str, Scope | None] = MappingProxyType(
    {
        "audio": "audio",
        "endpoints": "audio",
        "realtime": "audio",
        "text": "text",
        "jobs": "jobs",
        "operations": "metrics",
        "models": None,  # any key
        "docs": None,
    }
)
"""The scope that a key needs for a route, by the route's tag."""


T = TypeVar("T")


def part(name: str, kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency: what the application has under this name. Like `caller` it waits for nothing and is
    asynchronous, as each other kind is called in a thread."""

    async def found(request: Request) -> T:
        value = getattr(request.app.state, name)
        assert isinstance(value, kind)
        return value

    return found


async def caller(request: Request) -> str:
    """The name of the key that the request carries.

    A dependency, so it runs before the body is read: a client without a key cannot fill the disk. Raises
    ApiError `invalid_api_key` if the key is missing, unknown or expired, `forbidden` if it lacks the scope.
    """
    keyring: Keyring = request.app.state.keyring
    needed = NEEDS[request.scope["route"].tags[0]]
    if not keyring.rights:
        if needed == "metrics" and not _is_local(request):
            raise ApiError("forbidden", "metrics are for this machine, or for clients with a key")
        return ANONYMOUS
    owner = keyring.owner(bearer(request) or "")
    if owner is None:
        raise ApiError("invalid_api_key", "give an API key: `Authorization: Bearer <key>`")
    if needed is not None:
        check_scope(request, owner, needed)
    request.state.owner = owner
    return owner


def check_scope(connection: HTTPConnection, owner: str, needed: Scope) -> None:
    """Raises ApiError `forbidden` for a key without this right."""
    keyring: Keyring = connection.app.state.keyring
    if keyring.rights and needed not in keyring.rights[owner].scopes:
        raise ApiError("forbidden", f"this key is not for {needed}")


async def client(connection: HTTPConnection, caller: Annotated[str, Depends(caller)]) -> Client:
    """Who counts against limits: the key, or without keys the address, as a trusted proxy tells it."""
    host = connection.client.host if connection.client is not None else ""
    return Client(caller) if caller else Client(ANONYMOUS, network(host))


@dataclass(frozen=True)
class AdmittedUpload:
    """An upload that was received, and what is `held` for it, its reservation above all. The block of
    `admitted` frees that at its end, except what somebody has taken who goes on: the engine, or an answer
    that outlives the block."""

    fields: tuple[tuple[str, str], ...]
    field: str  # of the form, by which messages name it
    file: BinaryIO
    name: str | None  # the client's name for it
    reservation: Reservation
    serving: Serving
    held: ExitStack

    async def follow(self, options: Options, tap: Tap | None = None) -> Decoding:
        """Decode and queue it. The engine takes what is held; with a `tap`, which may have more to do, only
        the samples. Raises ApiError if the file is not audio, is too long, or does not fit into the queue."""
        samples = await self.serving.decoded(self.file, self.field)
        taken = self.held.pop_all() if tap is None else ExitStack()
        taken.callback(samples.close)
        try:
            self.file.close()  # only the samples are needed from here on
            await self.serving.awake()
            self.reservation.add_audio(samples.duration_s)
            return self.serving.follow(
                samples, options, tap, self.reservation.progressed, taken.close
            )
        except BaseException:
            taken.close()
            raise


@asynccontextmanager
async def admitted(
    request: Request, settings: Settings, serving: Serving, client: Client, field: str = "file"
) -> AsyncIterator[AdmittedUpload]:
    """The request's upload, its file from `field`. Raises ApiError before the body is read if no work is
    admitted."""
    serving.check()
    with ExitStack() as held:
        reservation = serving.admission.reserve(client)
        held.callback(reservation.release)
        serving.idle.want()  # it is loaded while the body arrives
        began_ns = time.time_ns()
        async with receive_form(request, settings, field) as form:
            if form.file is None:
                raise ApiError("missing_file", f"the form has no file {field!r}", param=field)
            received_ns = time.time_ns()
            serving.tracing.record("receive", began_ns, received_ns)
            serving.metrics.took("upload", (received_ns - began_ns) / 1e9)
            reservation.start()
            yield AdmittedUpload(
                form.fields, field, form.file, form.name, reservation, serving, held
            )


async def transcribed(
    request: Request, upload: AdmittedUpload, options: Options, bounds: Bounds | None
) -> tuple[Transcript, Transcript | None]:
    """The transcript of an upload, and where there are `bounds` for the number of speakers the same with
    SPEAKER_00 and so on. Raises ApiError, ClientDisconnect."""
    if bounds is None:
        stream = await upload.follow(options)
        await all_parts(request, stream)
        return stream.transcript, None
    diarization = await asyncio.to_thread(upload.serving.speakers.start, bounds=bounds)
    upload.held.callback(diarization.close)
    stream = await upload.follow(options, diarization.add_samples)
    await all_parts(request, stream)
    assigning = diarization.assign(stream.transcript, numbered)
    return stream.transcript, await while_connected(request, assigning)


async def all_parts(request: Request, stream: Decoding) -> list[Part]:
    """All parts, once the outcome is there. The transcription is cancelled if the client disconnects.

    Raises ApiError if it fails, ClientDisconnect if the client has left.
    """

    async def collected() -> list[Part]:
        parts = []
        while (part := await stream.next()) is not None:
            parts.append(part)
        return parts

    try:
        return await while_connected(request, collected())
    finally:
        stream.cancel()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientDisconnect if the client disconnects."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # its body has been read before

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def browser_caller(request: Request) -> str:
    """As `caller`, for pages that are read in a browser: the key may be the password of HTTP Basic.

    Other routes do not accept it, because browsers send it with requests that other pages have caused.
    """
    keyring: Keyring = request.app.state.keyring
    if not keyring.rights:
        return ANONYMOUS
    basic = await HTTPBasic(realm="forescribe", auto_error=False)(request)
    owner = keyring.owner(bearer(request) or (basic.password if basic else ""))
    if owner is None:
        text = "give an API key: `Authorization: Bearer <key>`, or as the password for any name"
        challenge = {"WWW-Authenticate": 'Basic realm="forescribe", charset="UTF-8", Bearer'}
        raise ApiError("invalid_api_key", text, more=challenge)
    return owner


def bearer(connection: HTTPConnection) -> str | None:
    """The key in the header, of a request or a socket."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _is_local(request: Request) -> bool:
    """Whether the request comes from this machine, and not through a proxy on it. Always true if the service
    listens only to this machine."""
    if not request.app.state.settings.open_to_all:
        return True
    host = request.client.host if request.client is not None else ""
    return loopback(host) and not {"forwarded", "x-forwarded-for"} & set(request.headers)


SettingsDep = Annotated[Settings, Depends(part("settings", Settings))]
ServingDep = Annotated[Serving, Depends(part("serving", Serving))]
Caller = Annotated[str, Depends(caller)]
ClientDep = Annotated[Client, Depends(client)]
