"""One session on an open socket, from session.created to its close.

One task reads and one sends; the stream (`asr.live`) tells from its own threads what is to be sent. Audio is
looked at in threads, as soon as there is a step of it and a second at most, and the socket is not read while
the model is `MAX_BEHIND_S` behind: the client's own connection makes it wait. A client's mistake is answered
with an `error`, and the session goes on.

A session ends when the client leaves: then everything of it is dropped. In all other cases the item that is
being spoken is ended, open items have `DRAIN_S` for their text, and the close code says why:

    1000  it has lasted `SESSION_S`            1012  the process ends
    1008  the key has reached a limit, or      1013  the client does not read what is sent
          its secret cannot be served          1011  a fault of the server, which the log has
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from ..access.limits import Client
from ..errors import ApiError, invalid
from ..telemetry import report, report_fault
from .audio import SessionAudio
from .events import (
    APPEND,
    CLEAR,
    COMMIT,
    UPDATE,
    ItemEvents,
    Message,
    check,
    client_event,
    error_event,
    id_of,
)
from .session import HYPOTHESES, LOGPROBS, SessionConfig
from .streams import Place, Streams

if TYPE_CHECKING:
    from forescribe.asr.live.events import Event

SESSION_S = 3600.0

DRAIN_S = 10.0

MAX_BEHIND_S = 60.0
"""Of audio that has arrived since the decode under way began."""

BEHIND_POLL_S = 0.05

MAX_APPEND = 15 << 20
"""Bytes of audio in one event, as at OpenAI."""

MAX_MESSAGE = 21 << 20
"""Characters: so much audio in base64, and the event around it."""

MAX_UNSENT = 1 << 20
"""Characters that wait for a slow reader."""

LONG_MESSAGE = 1 << 16
"""Characters from which on an event is parsed, and its audio decoded, in a thread: the way to a thread and
back takes longer than what is less."""

CHECK_S = 10.0
"""Of audio, after which the key and the limit of audio are looked at again."""

CLOSE_S = 5.0
"""For the last messages before the close."""

T = TypeVar("T")


class Outbox:
    """What a session has to send, in order; used on the event loop."""

    def __init__(self) -> None:
        self.size = 0
        """Characters that wait."""
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._session, self._numbers = secrets.token_hex(6), count(1)

    def put(self, message: Message) -> None:
        event_id = f"event_{self._session}{next(self._numbers):06}"
        body = {"event_id": event_id, **message}
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
        self.size += len(text)
        self._waiting.put_nowait(text)

    async def run(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send, until cancelled. Raises what `send` raises: the client is gone."""
        while True:
            text = await self._waiting.get()
            self.size -= len(text)
            await send(text)
            self._waiting.task_done()

    async def empty(self) -> None:
        """Return once everything was sent."""
        await self._waiting.join()


@dataclass(frozen=True)
class End:
    """Why a session ends by the server's will."""

    code: int
    error: ApiError | None = None
    drop: bool = False  # without the text of open items


class Connection:
    """Used on the event loop, but for `leave` and `_tell`."""

    def __init__(
        self,
        websocket: WebSocket,
        streams: Streams,
        place: Place,
        client: Client,
        config: SessionConfig,
    ) -> None:
        self.websocket, self.streams, self.client, self.config = websocket, streams, client, config
        self.serving, self.settings = streams.serving, streams.settings
        self.outbox, self.items = Outbox(), ItemEvents()
        self.audio = SessionAudio(streams.serving, self._tell)
        self._id = f"sess_{secrets.token_hex(12)}"
        self._expires_at = int(time.time() + SESSION_S)
        self._loop = asyncio.get_running_loop()
        self._started = False  # audio has come
        self._received_s = self._checked_s = 0.0
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._busy: asyncio.Future[Any] | None = None  # in a thread
        place.leave = self.leave
        if streams.leaving:  # since the place was given
            self.leave()

    async def run(self) -> None:
        """Returns once the session has ended. Raises nothing but CancelledError."""
        began_s, end = time.monotonic(), None
        sender = asyncio.ensure_future(self.outbox.run(self.websocket.send_text))
        reader = asyncio.ensure_future(self._run())
        try:
            tasks: set[asyncio.Future[Any]] = {sender, reader, self._end}
            await asyncio.wait(tasks, timeout=SESSION_S, return_when=asyncio.FIRST_COMPLETED)
            end = self._reason(sender, reader)
            await self._stop(reader)
            if end is not None:
                await self._finish(end, sender)
        finally:
            for task in (sender, reader, self._end):
                task.cancel()
            self.audio.cancel()
            self._report(end, time.monotonic() - began_s)
            await asyncio.gather(sender, reader, return_exceptions=True)

    def leave(self) -> None:
        """The process drains. May be called from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end_with, End(1012))

    # -- reading ----------------------------------------------------------------------------------

    async def _run(self) -> End | None:
        """Read events until the session ends; None where the client has left."""
        try:
            await self.serving.awake()
            await self._use(self.config)
            self.outbox.put({"type": "session.created", "session": self._state()})
            while True:
                message = await self.websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return End(1012) if message.get("code") == 1012 else None
                if (end := await self._handle(message.get("text"))) is not None:
                    return end
        except ApiError as error:
            # No work is admitted any more, or the configuration of a client secret is wrong.
            return End(1012 if error.code == "not_ready" else 1008, error)
        except Exception as error:
            return _fault(error)

    async def _handle(self, text: str | None) -> End | None:
        """Do what one message says; the reason if the session ends by it."""
        event: Message = {}
        try:
            if text is None:
                raise invalid("event", f"a binary message: audio is sent in base64, in {APPEND}")
            if len(text) < LONG_MESSAGE:
                event = client_event(text)
            else:
                event = await self._in_thread(partial(client_event, text))
            check(event)
            if event["type"] == APPEND:
                return await self._append(event["audio"])
            await self._act(event)
        except ApiError as error:
            self._refuse(error, id_of(event))
        return None

    async def _act(self, event: Message) -> None:
        if event["type"] == UPDATE:
            await self._use(self.config.updated(event["session"], started=self._started))
            self.outbox.put({"type": "session.updated", "session": self._state()})
        elif event["type"] == CLEAR:
            await self._in_thread(self.audio.clear)
            self.outbox.put({"type": "input_audio_buffer.cleared"})
        else:
            assert event["type"] == COMMIT
            if await self._in_thread(self.audio.commit) is None:
                raise ApiError(
                    "input_audio_buffer_commit_empty",
                    "there is nothing to commit: less than 100 ms of audio, or with turn detection of speech",
                )

    async def _use(self, config: SessionConfig) -> None:
        """Raises ApiError for a configuration that cannot be served; nothing is changed then."""
        options = config.options(self.serving, self.settings)
        enrols = self.audio.enrols(config)
        threads = self.streams.enrolments if enrols else self.streams.threads
        await self._in_thread(lambda: self.audio.use(config, options), threads)
        self.config = config
        self.items.logprobs = LOGPROBS in config.include
        self.items.hypotheses = HYPOTHESES in config.include

    async def _append(self, audio: str) -> End | None:
        short = len(audio) < LONG_MESSAGE
        data = _decoded(audio) if short else await self._in_thread(lambda: _decoded(audio))
        second = self.audio.bytes_per_s
        for at in range(0, len(data), second):
            piece = data[at : at + second]
            self._started = True
            behind_s = await self._in_thread(self.audio.feed) if self.audio.keep(piece) else 0.0
            while behind_s > MAX_BEHIND_S:
                await asyncio.sleep(BEHIND_POLL_S)
                behind_s = await self._in_thread(lambda: self.audio.behind_s)
            self.streams.received(len(piece) / second)
            self._received_s += len(piece) / second
            if self._received_s >= self._checked_s + CHECK_S:
                self._checked_s = self._received_s
                try:
                    self._check_limits()
                except ApiError as error:
                    return End(1008, error)
        return None

    def _check_limits(self) -> None:
        """Raises ApiError for too much audio, and if the key is no longer in force."""
        owner = self.client.owner
        if owner and not self.websocket.app.state.keyring.in_force(owner):
            raise ApiError("invalid_api_key", "the API key has expired or was removed")
        if self._received_s > self.settings.max_audio_s:
            text = f"the session has had {self.settings.max_audio_s:g} s of audio, the maximum (max_audio_s)"
            raise ApiError("audio_too_long", text)

    # -- sending ----------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Called on the threads of the stream and of the engine: must not wait."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._told, event)

    def _told(self, event: Event) -> None:
        try:
            self.streams.told(event)
            messages = self.items.of(event)
        except Exception as error:  # an item would never end
            return self._end_with(_fault(error))
        for message in messages:
            self.outbox.put(message)
        if self.outbox.size > MAX_UNSENT:
            self._end_with(End(1013, drop=True))

    def _refuse(self, error: ApiError, event_id: str | None = None) -> None:
        self.serving.metrics.refused(error.code)
        self.outbox.put(error_event(error, event_id))
        if self.outbox.size > MAX_UNSENT:
            self._end_with(End(1013, drop=True))

    def _state(self) -> dict[str, Any]:
        """The session object of events."""
        return session_object(self._id, self.config, self._expires_at)

    # -- ending -----------------------------------------------------------------------------------

    def _end_with(self, end: End) -> None:
        if not self._end.done():
            self._end.set_result(end)

    def _reason(self, sender: asyncio.Task[None], reader: asyncio.Task[End | None]) -> End | None:
        """Why the session ends; None where the client has left."""
        if sender.done():
            return None
        if reader.done():
            return reader.result()
        if self._end.done():
            return self._end.result()
        text = f"the session has lasted {SESSION_S / 60:g} minutes, the maximum: open another one"
        return End(1000, ApiError("session_expired", text))

    async def _stop(self, reader: asyncio.Task[End | None]) -> None:
        """Read no more, and let the thread end what it is doing."""
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        if self._busy is not None:
            await asyncio.gather(self._busy, return_exceptions=True)

    async def _finish(self, end: End, sender: asyncio.Task[None]) -> None:
        """Tell why, end the items, and close the socket."""
        if end.error is not None:
            self._refuse(end.error)
        if not end.drop:
            await self._in_thread(self.audio.finish)
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while self.items.open and not sender.done():
                        await asyncio.sleep(BEHIND_POLL_S)
        if end.code != 1013:
            sent = asyncio.ensure_future(self.outbox.empty())
            await asyncio.wait({sent, sender}, timeout=CLOSE_S, return_when=asyncio.FIRST_COMPLETED)
            sent.cancel()
        sender.cancel()  # what it has not written is dropped: the close is the next that the client reads
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.websocket.close(end.code)

    def _report(self, end: End | None, wall_s: float) -> None:
        """A log line, without text."""
        stats = self.audio.stats
        report(
            "live session",
            request_id=self.websocket.scope.get("state", {}).get("request_id"),
            wall_s=round(wall_s, 3),
            audio_s=round(self._received_s, 3),
            close=None if end is None else end.code,
            **({} if stats is None else asdict(stats)),
        )

    async def _in_thread(self, work: Callable[[], T], threads: Executor | None = None) -> T:
        """The result of `work`. It goes on if this task is cancelled, and `_stop` waits for it."""
        busy = self._loop.run_in_executor(threads or self.streams.threads, work)
        self._busy = busy
        return await asyncio.shield(busy)


def _fault(error: Exception) -> End:
    report_fault(error)
    return End(1011, ApiError("internal_error", "the server failed; the fault is logged"))


def session_object(id: str, config: SessionConfig, expires_at: int) -> dict[str, Any]:
    """OpenAI's object of a transcription session."""
    own = {"id": id, "object": "realtime.transcription_session", "expires_at": expires_at}
    return {**own, **config.to_dict()}


def _decoded(audio: str) -> bytes:
    if len(audio) > MAX_APPEND * 4 // 3 + 4:
        raise ApiError(
            "file_too_large", f"audio: more than {MAX_APPEND} bytes in one event", param="audio"
        )
    try:
        return base64.b64decode(audio, validate=True)
    except ValueError as error:
        raise invalid("audio", "not base64") from error
