"""A transcription as server-sent events with OpenAI's names, while it becomes final.

    data: {"type": "transcript.text.delta", "delta": "..."}
    data: {"type": "transcript.text.done", "text": "...", ...}

Only final text is sent, in order, so the joined deltas are the text of `done`. A failure is sent as an event
named `error`, without a `done`: OpenAI's SDK raises it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Json

from ..errors import ApiError
from . import answers
from .transcription_stream import TranscriptionStream

if TYPE_CHECKING:
    from forescribe.asr.sessions.parts import Part, Token

PING_S = 15.0
"""Proxies close a connection that is silent for a minute."""

PING = b": ping\n\n"


NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Without them a proxy may hold events back until it has enough."""

Assign = Callable[[Transcript], Awaitable[Transcript]]


class Deltas:
    """Splits growing text into deltas, without white space at the two ends of the whole text."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def push(self, text: str) -> str:
        """The text that can be sent now. White space at its end waits for the next word."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._begun = self._begun or bool(kept)
        return kept


class EventStream(StreamingResponse):
    """An answer of events. `cleanup` is called when it ends or the client disconnects, even if no event
    was read."""

    media_type = "text/event-stream"

    def __init__(self, body: AsyncIterator[bytes], cleanup: Callable[[], None]) -> None:
        super().__init__(body, headers=NO_BUFFER)
        self.cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.cleanup()


async def events(
    stream: TranscriptionStream, *, logprobs: bool, assign: Assign | None = None
) -> AsyncIterator[bytes]:
    """The body of the answer. `assign` adds speakers once everything is decoded."""
    deltas, sent = Deltas(), list[Json]()
    try:
        while (part := await _next(stream)) is not None:
            if isinstance(part, bytes):
                yield part
                continue
            for text, tokens in pieces(part):
                logprob_items = answers.logprobs(tokens)
                sent += logprob_items
                delta: dict[str, Json] = {"delta": deltas.push(text)}
                if logprobs:
                    delta["logprobs"] = logprob_items
                if delta["delta"] or (logprobs and logprob_items):
                    yield data({"type": "transcript.text.delta", **delta})
        assert stream.outcome is not None and stream.outcome.transcript is not None
        transcript = stream.outcome.transcript
        if assign is not None:
            assigning = asyncio.ensure_future(assign(transcript))
            while not (await asyncio.wait({assigning}, timeout=PING_S))[0]:
                yield PING
            transcript = assigning.result()
            for segment in answers.speaker_segments(transcript):
                yield data(segment)
        yield data(_done(transcript, sent if logprobs else None))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield b"event: error\n" + data(error.body())


def pieces(part: Part) -> Iterator[tuple[str, tuple[Token, ...]]]:
    """The text and the tokens of each segment. A part can hold several windows, and half a minute of text
    in one event is hard to follow."""
    tokens = iter(part.tokens)
    for segment in part.segments:
        yield segment.text, tuple(islice(tokens, len(segment.tokens)))
    assert next(tokens, None) is None, "every token belongs to a segment"


async def _next(stream: TranscriptionStream) -> Part | bytes | None:
    """The next part; a ping if there is none for some time."""
    try:
        return await asyncio.wait_for(stream.next(), PING_S)
    except TimeoutError:
        return PING


def data(body: Mapping[str, object]) -> bytes:
    """One event with its data on one line."""
    return b"data: " + json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


def _done(transcript: Transcript, sent: list[Json] | None) -> dict[str, Json]:
    body: dict[str, Json] = {
        "type": "transcript.text.done",
        "text": transcript.text,
        "languages": answers.languages(transcript),
        "usage": answers.token_usage(transcript),
        **answers.warnings(transcript),
    }
    return body if sent is None else {**body, "logprobs": sent}
