"""Wyoming, the protocol of Home Assistant's voice assistants: speech to text for trusted networks.

A client sends `transcribe`, `audio-start`, `audio-chunk` and `audio-stop`, and receives `transcript-start`
and `transcript-chunk` while it sends, then `transcript`, which alone is certain, and `transcript-stop`. The
package `wyoming` reads and writes the messages. The protocol has no keys. A request is a live stream in the
session of uploads, one of `Streams`; what it cannot be is answered by `error` and the end of the connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioFormat, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event as Message
from wyoming.event import Eventable, async_read_event, async_write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.ping import Ping, Pong

from forescribe.asr.decode.options import MAX_LISTED
from forescribe.asr.errors import UsageError
from forescribe.asr.live.events import Completed, Delta, Event, Failed, LiveOptions
from forescribe.asr.live.formats import AudioInput

from .access.limits import Client
from .errors import ApiError
from .process import Failure
from .realtime.streams import Streams
from .settings import Settings, address_of
from .speech import forms
from .telemetry import report, report_fault

if TYPE_CHECKING:
    from forescribe.asr.live.stream import LiveStream

IDLE_S = 60.0
"""Between two messages, and for a client to take an answer."""

MAX_BEHIND_S = 60.0
"""Of audio that waits to be decoded; the connection is not read meanwhile."""

MAX_DATA, MAX_PAYLOAD = 1 << 20, 64 << 20
"""Bytes of one message: of its JSON, which is read on the event loop, and of its audio, 35 minutes of 16 kHz.
They are in memory at once."""

WRONG = (AttributeError, KeyError, TypeError, ValueError, EOFError, RecursionError, OSError)
"""What the package raises for messages that are none, and for clients that are gone or silent."""


@asynccontextmanager
async def listening(
    settings: Settings, streams: Streams, failed: Callable[[Failure], None]
) -> AsyncIterator[None]:
    """Serve at the address of the settings. `failed` is called if it cannot be used. At the end connections
    with a request have `drain_s`."""
    assert settings.wyoming is not None
    host, port = address_of(settings.wyoming)
    open_now: dict[asyncio.Task[None], Connection] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now[task] = connection = Connection(streams, reader, writer)
        with suppress(asyncio.CancelledError):  # of the end: Python 3.11's streams would log it
            await connection.run()
        del open_now[task]

    server = None
    try:
        server = await asyncio.start_server(connected, host, port)
        report("wyoming", address=host, port=server.sockets[0].getsockname()[1])
    except OSError as error:
        reason = f"{error.strerror}; choose another with --wyoming"
        text = f"cannot listen on {settings.wyoming}: {reason}"
        failed(Failure.of("Wyoming", UsageError(text)))
    try:
        yield
    finally:
        if server is not None:
            server.close()
        busy = [task for task, connection in open_now.items() if connection.request is not None]
        if busy:
            await asyncio.wait(busy, timeout=settings.drain_s)
        tasks = list(open_now)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Connection:
    """One client: requests one after the other."""

    def __init__(
        self, streams: Streams, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.streams, self.settings, self.serving = streams, streams.settings, streams.serving
        self.request: Request | None = None
        self._reader, self._writer = BoundedReader(reader), writer
        self._asked = Transcribe()

    async def run(self) -> None:
        """Answer until the client leaves, or something is wrong."""
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    message = await async_read_event(cast(asyncio.StreamReader, self._reader))
                if message is None:
                    return
                await self._answer(message)
        except ApiError as error:
            with suppress(OSError):
                await self.send(Error(error.message, error.code))
        except WRONG as error:
            report("wyoming ended", error=type(error).__name__)
            if isinstance(error, TimeoutError):
                self._abort()
        except Exception as error:
            report_fault(error)
        finally:
            await self._drop()
            self._writer.close()

    def _abort(self) -> None:
        """Close the connection without what waits to be sent: for a client that reads nothing the kernel
        would keep megabytes of it, for minutes."""
        opened = self._writer.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def send(self, message: Eventable) -> None:
        """Raises OSError where the client is gone, TimeoutError where it does not read."""
        async with asyncio.timeout(IDLE_S):
            await async_write_event(message.event(), self._writer)

    async def _answer(self, message: Message) -> None:
        """Raises ApiError for what cannot be served, and WRONG."""
        kind = message.type
        if Describe.is_type(kind):
            await self.send(Info(asr=[self._program()]))
        elif Ping.is_type(kind):
            await self.send(Pong(Ping.from_event(message).text))
        elif Transcribe.is_type(kind):
            self._asked = Transcribe.from_event(message)
        elif AudioStart.is_type(kind):
            await self._drop()
            await self._begin(AudioStart.from_event(message))
        elif AudioChunk.is_type(kind):
            chunk = AudioChunk.from_event(message)
            if self.request is None:  # some clients send no audio-start
                await self._begin(chunk)
            assert self.request is not None
            await self.request.feed(chunk.audio)
        elif AudioStop.is_type(kind) and self.request is not None:
            await self.request.finish()
            await self._drop()
        # Servers are expected to ignore what they do not know.

    async def _begin(self, given: AudioFormat) -> None:
        if (given.width, given.channels) != (2, 1) or given.rate not in range(4_000, 192_001):
            raise ApiError("invalid_value", "audio: send 16-bit mono of 4 to 192 kHz")
        asked = self._asked
        named = [*(asked.transcript_names or []), *(asked.transcript_terms or [])]
        fields: dict[str, Any] = {
            "model": self.settings.model_name,
            "language": asked.language or None,
            "keywords": tuple(named[:MAX_LISTED]),
        }
        chosen = forms.TranscriptionForm(**fields)
        options = LiveOptions(forms.transcription(chosen, self.serving, self.settings))
        self.request = Request(self, AudioInput("audio/pcm", given.rate))
        await self.request.start(options)

    async def _drop(self) -> None:
        """Drop a request that has not been answered."""
        if self.request is not None:
            request, self.request = self.request, None
            # Shielded: the end of the service cancels what it finds here, and would wait for what is held.
            await asyncio.shield(asyncio.to_thread(request.held.close))

    def _program(self) -> AsrProgram:
        """What `describe` tells. Raises ApiError `not_ready`."""
        self.serving.check()
        tokens, name = self.serving.tokens, self.settings.model_name
        assert tokens is not None
        by, ours = Attribution("OpenAI", "https://openai.com"), version("forescribe")
        languages, text = sorted(tokens.languages) or ["en"], "Whisper with speculative decoding"
        model = AsrModel(name, by, True, f"Whisper {name}", ours, languages)
        return AsrProgram("forescribe", by, True, text, ours, [model], True)


class BoundedReader:
    """What the package needs of a reader, for messages that are not too large. Raises ValueError."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader, self.readexactly = reader, reader.readexactly

    async def readline(self) -> bytes:
        line = await self._reader.readline()
        head = json.loads(line or b"{}")
        if (head.get("data_length") or 0) > MAX_DATA or (
            head.get("payload_length") or 0
        ) > MAX_PAYLOAD:
            raise ValueError("a message that is too large")
        return line


class Request:
    """Audio from its start to its transcript."""

    def __init__(self, connection: Connection, audio: AudioInput) -> None:
        self.connection, self.streams, self.audio = connection, connection.streams, audio
        self._received_s = 0.0
        self.held = ExitStack()  # its place, the model in memory, and the stream
        self._stream: LiveStream | None = None
        self._streamed = False
        self._told: asyncio.Queue[Event] = asyncio.Queue()

    async def start(self, options: LiveOptions) -> None:
        """Raises ApiError where nothing is admitted or there are too many requests, or where the options
        cannot be served."""
        loop, serving = asyncio.get_running_loop(), self.connection.serving
        self.held.enter_context(self.streams.place(Client()))
        self.held.callback(serving.admission.start(Client()).release)
        await serving.awake()

        def tell(event: Event) -> None:
            self.streams.told(event)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._told.put_nowait, event)

        self._stream = await asyncio.to_thread(lambda: serving.live(options, tell))
        self.held.callback(self._stream.cancel)

    async def feed(self, data: bytes) -> None:
        """Take audio, a second at a time, and send the words that it has released."""
        assert self._stream is not None
        second = self.audio.bytes_per_s
        self.streams.received(len(data) / second)
        self._received_s += len(data) / second
        if self._received_s > (most := self.connection.settings.max_audio_s):
            raise ApiError("audio_too_long", f"longer than {most:g} s")
        for at in range(0, len(data), second):
            samples = await asyncio.to_thread(self.audio.push, data[at : at + second])
            await asyncio.to_thread(self._stream.feed, samples)
            while self._stream.behind_s > MAX_BEHIND_S:
                await asyncio.sleep(0.05)
            while not self._told.empty():
                await self._send(self._told.get_nowait())

    async def finish(self) -> None:
        """Send the transcript. Raises ApiError if there is none in time."""
        assert self._stream is not None
        await asyncio.to_thread(self._stream.feed, self.audio.flush())
        if await asyncio.to_thread(self._stream.commit) is None:
            return await self.connection.send(Transcript(""))
        limit_s = self.connection.settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while not isinstance(event := await self._told.get(), Completed):
                    await self._send(event)
        except TimeoutError as error:
            raise ApiError("inference_timeout", f"not done within {limit_s:g} s") from error
        transcript = event.transcript
        await self.connection.send(Transcript(transcript.text, language=transcript.language))
        if self._streamed:
            await self.connection.send(TranscriptStop())
        report("wyoming transcript", audio_s=round(transcript.duration, 3))

    async def _send(self, event: Event) -> None:
        """Raises ApiError for a failure, also of audio that is still arriving."""
        if isinstance(event, Failed):
            raise ApiError.of(event.error)
        if isinstance(event, Delta):
            if not self._streamed:
                await self.connection.send(TranscriptStart())
            self._streamed = True
            await self.connection.send(TranscriptChunk(event.text))
