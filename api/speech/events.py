"""Events: a transcription as it becomes final, as server-sent events with OpenAI's names.

    data: {"type": "transcript.text.delta", "delta": "..."}
    data: {"type": "transcript.text.done", "text": "...", ...}

Only final text is sent, in order, so the deltas joined are the text of `done`. A failure on the way is
an event named `error`, and no `done` follows: OpenAI's SDK raises on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from forescribe.asr.formats.transcript import Json, Transcript

from ..errors import ApiError
from . import answers
from .following import Following

if TYPE_CHECKING:
    from forescribe.asr.sessions.parts import Part, Token

PING_S = 15.0
"""Proxies cut a connection on which nothing is said for a minute."""

PING = b": ping\n\n"


NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Or a proxy may keep events until there are enough of them."""

Told = Callable[[Transcript], Awaitable[Transcript]]


class Deltas:
    """Text as it grows, without the white space at both ends that the whole text does not have."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def push(self, text: str) -> str:
        """What can be sent now. White space at the end waits for the word that follows it."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._begun = self._begun or bool(kept)
        return kept


class EventStream(StreamingResponse):
    """The answer that events make. `over` is called when it ends or the client leaves, even if not one
    event was asked for."""

    media_type = "text/event-stream"

    def __init__(self, body: AsyncIterator[bytes], over: Callable[[], None]) -> None:
        super().__init__(body, headers=NO_BUFFER)
        self.over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.over()


async def events(
    following: Following, *, logprobs: bool, told: Told | None = None
) -> AsyncIterator[bytes]:
    """The body of the answer. `told` finds the speakers, once all is decoded."""
    deltas, sent = Deltas(), list[Json]()
    try:
        while (part := await _next(following)) is not None:
            if isinstance(part, bytes):
                yield part
                continue
            for text, tokens in pieces(part):
                found = answers.logprobs(tokens)
                sent += found
                delta: dict[str, Json] = {"delta": deltas.push(text)}
                if logprobs:
                    delta["logprobs"] = found
                if delta["delta"] or (logprobs and found):
                    yield data({"type": "transcript.text.delta", **delta})
        assert following.outcome is not None and following.outcome.transcript is not None
        transcript = following.outcome.transcript
        if told is not None:
            finding = asyncio.ensure_future(told(transcript))
            while not (await asyncio.wait({finding}, timeout=PING_S))[0]:
                yield PING
            transcript = finding.result()
            for segment in answers.spoken(transcript):
                yield data(segment)
        yield data(_done(transcript, sent if logprobs else None))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield b"event: error\n" + data(error.body())


def pieces(part: Part) -> Iterator[tuple[str, tuple[Token, ...]]]:
    """A delta for each segment, with its tokens. Windows that end together come as one part, and half a
    minute of text at once is nothing to read along with."""
    tokens = iter(part.tokens)
    for segment in part.segments:
        yield segment.text, tuple(islice(tokens, len(segment.tokens)))
    assert next(tokens, None) is None, "every token is a segment's"


async def _next(following: Following) -> Part | bytes | None:
    """What comes next; a ping where nothing comes for long."""
    try:
        return await asyncio.wait_for(following.next(), PING_S)
    except TimeoutError:
        return PING


def data(body: Mapping[str, object]) -> bytes:
    """One event, in one line."""
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
