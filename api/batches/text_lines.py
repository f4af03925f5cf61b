"""Lines of text batches, which this process's text model answers in an event loop of its own.

    texts.begin(batch, line, body, ended)     # ended(line, Answer | ApiError), on another thread
    texts.has(line)                           # whether it is still being answered here

A line is no job: what has not been answered when the process ends is begun again by the next one. Prompts,
limits and answers are those of the routes; a line takes no place of a client's requests, as at most
`batch_size` lines of a batch are in the model's queue. Does not know rows or files.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ApiError
from ..jobs.active import report_fault
from ..speech.serving import Serving
from ..text.forms import (
    ChatForm,
    CompletionForm,
    TextForm,
    checked,
    prompt_tokens,
    shape_of,
    texts_of,
)
from ..text.serving import TextServing
from .table import Batch, LineRow

if TYPE_CHECKING:
    from ..text.forms import Text

FORMS: Mapping[str, type[TextForm]] = {
    "/v1/chat/completions": ChatForm,
    "/v1/completions": CompletionForm,
}
"""The endpoints of text batches."""


@dataclass(frozen=True)
class Answer:
    """The body of a line's answer, and its tokens read and written."""

    body: bytes
    usage: tuple[int, int]


Ended = Callable[[LineRow, "Answer | ApiError"], None]


def parse_text(endpoint: str, body: Mapping[str, Any]) -> TextForm:
    """Check the fields. Raises ApiError `invalid_value` with the name of the field."""
    form: TextForm = checked({k: v for k, v in body.items() if v is not None}, FORMS[endpoint])
    if form.stream:
        raise ApiError("invalid_value", "stream: a batch has no streams", param="stream")
    return form


def passes(error: ApiError) -> bool:
    """Whether a line that was refused waits, because the server is full or the key has reached a limit that
    passes."""
    return error.status in (429, 503, 507)


class TextLines:
    """The lines that are being answered in this process."""

    def __init__(self, serving: Serving, text: TextServing) -> None:
        self._serving, self._text = serving, text
        self._answering: dict[tuple[str, int], Future[None]] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def check(self) -> None:
        """Raises ApiError `model_not_found` if this server generates no text."""
        if self._text.state == "off":
            self._text.check()

    def begin(self, batch: Batch, line: LineRow, body: Mapping[str, Any], ended: Ended) -> None:
        """Queue the texts of a line. Raises ApiError for what its route would refuse."""
        form = parse_text(batch.endpoint, body)
        generator = self._text.check()
        self._text.check_model(form.model)
        texts = texts_of(form, generator.encode)
        answer, place = self._answer(batch, line, form, texts, ended), (line.batch, line.k)
        with self._lock:
            if self._closed:
                answer.close()
                raise ApiError("not_ready", "the server is stopping")
            future = asyncio.run_coroutine_threadsafe(answer, self._running())
            self._answering[place] = future
        future.add_done_callback(lambda _: self._forget(place))

    def has(self, line: LineRow) -> bool:
        with self._lock:
            return (line.batch, line.k) in self._answering

    def cancel(self, batch: str) -> None:
        """Free the slots of a batch's lines; none of them is told as ended."""
        with self._lock:
            futures = [f for (owner, _), f in self._answering.items() if owner == batch]
        for future in futures:
            future.cancel()

    def stop(self) -> None:
        """Leave all lines to the next process. Does nothing the second time."""
        with self._lock:
            self._closed = True
            futures, loop = list(self._answering.values()), self._loop
            self._loop = None
        for future in futures:
            future.cancel()
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop, started by the first line."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=_run, args=(self._loop,), name="batch-texts", daemon=True
            ).start()
        return self._loop

    def _forget(self, place: tuple[str, int]) -> None:
        with self._lock:
            del self._answering[place]

    async def _answer(
        self, batch: Batch, line: LineRow, form: TextForm, texts: Sequence[Text], ended: Ended
    ) -> None:
        read, began_ns = prompt_tokens(form, texts), time.time_ns()
        left_s = max(1.0, batch.expires_at - time.time())
        try:
            request = self._text.write(texts, lambda: None, left_s)
            try:
                completions = await request.completions()
            finally:
                request.cancel()
                tokens = request.written
                self._serving.tracing.record("generate", began_ns, time.time_ns(), tokens=tokens)
            body = json.dumps(shape_of(form).whole(completions, read), ensure_ascii=False)
            answer: Answer | ApiError = Answer(body.encode(), (read, request.written))
        except ApiError as error:
            answer = error
        try:
            if not (isinstance(answer, ApiError) and passes(answer)):  # it is begun again
                await asyncio.to_thread(ended, line, answer)
        except Exception as error:  # the database or the storage is away: the line is begun again
            report_fault("batch", error)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
