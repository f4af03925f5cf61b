"""Wyoming, the protocol of Home Assistant's voice assistants: speech to text for trusted networks.

    async with listening(settings, streams, failed):    # nothing, unless the settings name an address
        ...

TCP; a message is a line of JSON with `type`, behind it `data_length` bytes of JSON and `payload_length` bytes
of audio (github.com/OHF-Voice/wyoming). A client asks `describe`, or sends `transcribe`, `audio-start`,
`audio-chunk` and `audio-stop`, and receives `transcript-start` and `transcript-chunk` while it sends, then
`transcript`, which alone is certain, and `transcript-stop`. The protocol has no keys. A request is a live
stream in the session of uploads (`asr.live`), one of `Streams`; what it cannot be is answered by `error` and
the end of the connection, which harms no other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from forescribe.asr.errors import UsageError
from forescribe.asr.live.events import Completed, Delta, Event, Failed, LiveOptions

from .access.limits import Client
from .errors import ApiError
from .http.errors import place_of, report
from .process.models import Failure
from .realtime.streams import Streams
from .settings import Settings, address_of
from .speech import forms
from .speech.serving import Serving

if TYPE_CHECKING:
    from forescribe.asr.audio.arriving import PcmFormat
    from forescribe.asr.audio.resampling import Resampler
    from forescribe.asr.live.stream import LiveStream

MAX_LINE = 1 << 16
"""Bytes of a message's line, and of its further data."""

MAX_PAYLOAD = 1 << 20
"""Bytes of audio in a message; clients send a few kilobytes."""

MAX_CONNECTIONS = 64

IDLE_S = 60.0
"""Between two messages, and for a client to take an answer."""

MAX_BEHIND_S = 60.0
"""Of audio that waits to be decoded; the connection is not read meanwhile."""

KINDS = {1: "u1", 2: "<i2", 3: "s3", 4: "<i4"}
"""Types of samples by the bytes of one."""

T = TypeVar("T")


@asynccontextmanager
async def listening(
    settings: Settings, streams: Streams | None, failed: Callable[[Failure], None]
) -> AsyncIterator[None]:
    """Serve at the address of the settings, if there is one and live streams are served, as a worker of jobs
    does not. `failed` is called if it cannot be used."""
    if settings.wyoming is None or streams is None:
        yield
        return
    server = Wyoming(settings, streams)
    try:
        await server.start()
    except OSError as error:
        text = (
            f"cannot listen on {settings.wyoming}: {error.strerror}; choose another with --wyoming"
        )
        failed(Failure.of("Wyoming", UsageError(text)))
    try:
        yield
    finally:
        await server.stop()


@dataclass(frozen=True)
class Message:
    """One message of either side."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def encoded(self) -> bytes:
        data = json.dumps(self.data, ensure_ascii=False).encode() if self.data else b""
        head = {"type": self.type, "data_length": len(data)}
        return json.dumps(head).encode() + b"\n" + data

    def whole(self, name: str, low: int, high: int) -> int:
        """A number of the data. Raises Malformed."""
        return _whole(self.data, name, low, high)


class Malformed(Exception):
    """What was received is not the protocol."""


async def received(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end. Raises Malformed, TimeoutError."""
    async with asyncio.timeout(IDLE_S):
        try:
            line = await reader.readuntil(b"\n")
            head = _object(line)
            size = _whole(head, "data_length", 0, MAX_LINE)
            data = {**_object(head.get("data")), **_object(await reader.readexactly(size))}
            payload = await reader.readexactly(_whole(head, "payload_length", 0, MAX_PAYLOAD))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise Malformed("the connection ended within a message") from error
            return None
        except asyncio.LimitOverrunError as error:
            raise Malformed(f"a line of more than {MAX_LINE} bytes") from error
    kind = head.get("type")
    if not isinstance(kind, str):
        raise Malformed("a message without a type")
    return Message(kind, data, payload)


class Wyoming:
    """The server. `port` is known once it has started."""

    def __init__(self, settings: Settings, streams: Streams) -> None:
        self.settings, self.streams = settings, streams
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], Connection] = {}
        self._stopping = False

    async def start(self) -> None:
        """Raises OSError if the address cannot be used."""
        assert self.settings.wyoming is not None
        host, port = address_of(self.settings.wyoming)
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_LINE)
        self.port = self._server.sockets[0].getsockname()[1]
        report("wyoming", address=host, port=self.port)

    async def stop(self) -> None:
        """Accept no more, and end the connections, those with a request after `drain_s` at most."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        busy = [task for task, connection in self._open.items() if connection.busy]
        if busy:
            await asyncio.wait(busy, timeout=self.settings.drain_s)
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            report("wyoming refused", error=f"{MAX_CONNECTIONS} connections are open")
            writer.close()
            return
        connection = self._open[task] = Connection(self, reader, writer)
        try:
            await connection.run()
        except Malformed as error:
            report("wyoming refused", error=str(error))
        except ApiError as error:
            with suppress(OSError, TimeoutError):
                await connection.send("error", text=error.message, code=error.code)
        except asyncio.CancelledError:
            if not self._stopping:  # streams of Python 3.11 log a task that was cancelled
                raise
        except (OSError, TimeoutError) as error:  # the client is gone, or silent
            report("wyoming ended", error=type(error).__name__)
        except Exception as error:
            report("fault", error=type(error).__name__, place=place_of(error))
        finally:
            del self._open[task]
            await connection.drop()
            writer.close()


class Connection:
    """One client: requests one after the other."""

    def __init__(
        self, server: Wyoming, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.streams, self.settings = server.streams, server.settings
        self.serving = server.streams.serving
        self._reader, self._writer = reader, writer
        self._asked = Message("transcribe")
        self._request: Request | None = None

    @property
    def busy(self) -> bool:
        """Whether there is a request."""
        return self._request is not None

    async def run(self) -> None:
        """Answer until the client leaves. Raises Malformed, ApiError, TimeoutError and OSError, which end the
        connection."""
        while (message := await received(self._reader)) is not None:
            if message.type == "describe":
                await self.send("info", asr=[_program(self.serving, self.settings)])
            elif message.type == "ping":
                await self.send("pong", **message.data)
            elif message.type == "transcribe":
                self._asked = message
            elif message.type == "audio-start":
                await self.drop()
                await self._begin(message)
            elif message.type == "audio-chunk":
                if self._request is None:  # some clients send no audio-start
                    await self._begin(message)
                assert self._request is not None
                await self._request.feed(message.payload)
            elif message.type == "audio-stop" and self._request is not None:
                await self._request.finish()
                await self.drop()
            # Servers are expected to ignore what they do not know.

    async def send(self, type: str, **data: Any) -> None:
        """Raises OSError where the client is gone, TimeoutError where it does not read."""
        self._writer.write(Message(type, data).encoded())
        async with asyncio.timeout(IDLE_S):
            await self._writer.drain()

    async def drop(self) -> None:
        """Drop a request that has not been answered."""
        if self._request is not None:
            request, self._request = self._request, None
            await request.drop()

    async def _begin(self, message: Message) -> None:
        """Begin a request. Raises Malformed, and ApiError for what cannot be served."""
        from forescribe.asr.audio.arriving import PcmFormat

        try:
            rate, channels = message.whole("rate", 1, 1 << 20), message.whole("channels", 1, 255)
            form = PcmFormat(rate, channels, KINDS[message.whole("width", 1, 4)])
        except UsageError as error:
            raise Malformed(error.message) from error
        options = LiveOptions(forms.transcription(self._form(), self.serving, self.settings))
        self._request = Request(self, form)
        await self._request.start(options)

    def _form(self) -> forms.TranscriptionForm:
        """What was asked for. Raises ApiError `invalid_value`."""
        data = self._asked.data
        named = [*_texts(data, "transcript_names"), *_texts(data, "transcript_terms")]
        language = data.get("language")
        if language is not None and not isinstance(language, str):
            raise Malformed("language is no text")
        language = (language or "").replace("_", "-").partition("-")[0] or None  # en-US
        fields = {"model": self.settings.model_name, "language": language}
        values = {**fields, "keywords": named[: forms.MAX_LISTED]}
        try:
            return forms.TranscriptionForm.model_validate(values)
        except ValueError as error:
            raise Malformed("names or terms that are too long") from error


class Request:
    """Audio from its start to its transcript."""

    def __init__(self, connection: Connection, form: PcmFormat) -> None:
        from forescribe.asr.audio.resampling import live_resampler

        self.connection, self.form = connection, form
        self._resampler: Resampler = live_resampler(form.rate)
        self._rest = b""  # a part of a sample
        self._received = 0  # bytes
        self._began_s = time.perf_counter()
        self._held = ExitStack()  # its place, and the model in memory
        self._stream: LiveStream | None = None
        self._streamed = False
        self._told: asyncio.Queue[Event] = asyncio.Queue()

    async def start(self, options: LiveOptions) -> None:
        """Raises ApiError where nothing is admitted or there are too many requests, or where the options
        cannot be served."""
        loop, serving = asyncio.get_running_loop(), self.connection.serving
        self._held.enter_context(self.connection.streams.place(Client()))
        self._held.callback(serving.admission.start(Client()).release)
        await serving.awake()

        def tell(event: Event) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._hear, event)

        self._stream = await asyncio.to_thread(lambda: serving.live(options, tell))

    async def feed(self, payload: bytes) -> None:
        """Take audio, and send the words that it has released."""
        assert self._stream is not None
        self._received += len(payload)
        longest_s = self.connection.settings.max_audio_s
        if self._received > longest_s * self.form.rate * self.form.frame:
            raise ApiError("audio_too_long", f"longer than {longest_s:g} s")
        data = self._rest + payload
        self.connection.streams.received(len(payload) / (self.form.rate * self.form.frame))
        whole = len(data) - len(data) % self.form.frame
        self._rest = data[whole:]
        mono = self.form.samples(data[:whole]).mean(axis=1)
        await asyncio.to_thread(self._stream.feed, self._resampler.push(mono))
        while self._stream.behind_s > MAX_BEHIND_S:
            await asyncio.sleep(0.05)
        while not self._told.empty():
            await self._send(self._told.get_nowait())

    async def finish(self) -> None:
        """Send the transcript. Raises ApiError if there is none in time."""
        stream = self._stream
        assert stream is not None
        await asyncio.to_thread(stream.feed, self._resampler.finish())
        if await asyncio.to_thread(stream.commit) is None:
            await self.connection.send("transcript", text="")
            return
        limit_s = self.connection.settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while not isinstance(event := await self._told.get(), Completed):
                    await self._send(event)
        except TimeoutError as error:
            raise ApiError("inference_timeout", f"not done within {limit_s:g} s") from error
        assert isinstance(event, Completed)
        transcript = event.transcript
        known = {"language": transcript.language} if transcript.language else {}
        await self.connection.send("transcript", text=transcript.text, **known)
        if self._streamed:
            await self.connection.send("transcript-stop")
        report(
            "wyoming transcript",
            audio_s=round(transcript.duration, 3),
            wall_s=round(time.perf_counter() - self._began_s, 3),
        )

    async def drop(self) -> None:
        self._held.close()
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await asyncio.to_thread(stream.cancel)

    def _hear(self, event: Event) -> None:
        self.connection.streams.told(event)
        self._told.put_nowait(event)

    async def _send(self, event: Event) -> None:
        """Raises ApiError for a failure, also of audio that is still arriving."""
        if isinstance(event, Failed):
            raise ApiError.of(event.error)
        if not isinstance(event, Delta):
            return
        if not self._streamed:
            self._streamed = True
            await self.connection.send("transcript-start")
        await self.connection.send("transcript-chunk", text=event.text)


def _program(serving: Serving, settings: Settings) -> dict[str, Any]:
    """What `describe` tells. Raises ApiError `not_ready`."""
    from importlib.metadata import version

    languages = serving.facts.tokens.languages
    author = {"name": "OpenAI", "url": "https://github.com/openai/whisper"}
    about = {"installed": True, "attribution": author, "version": version("forescribe")}
    model = {
        "name": settings.model_name,
        "description": f"Whisper {settings.model_name}",
        "languages": sorted(languages) or ["en"],
        **about,
    }
    return {
        "name": "forescribe",
        "description": "Whisper with speculative decoding",
        "models": [model],
        "supports_transcript_streaming": True,
        **about,
    }


def _object(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one for nothing. Raises Malformed."""
    if isinstance(value, bytes):
        try:
            value = json.loads(value) if value else None
        except (ValueError, RecursionError) as error:
            raise Malformed("no JSON") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed("no JSON object")
    return value


def _whole(data: dict[str, Any], name: str, low: int, high: int) -> int:
    """A number between two; 0 where it is missing and may be 0. Raises Malformed."""
    value = data.get(name)
    if value is None and not low:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{name} is no number from {low} to {high}")
    return value


def _texts(data: dict[str, Any], name: str) -> list[str]:
    values = data.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Malformed(f"{name} is no list of texts")
    return values
