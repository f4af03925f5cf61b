"""The texts of one request, as a stream of events on the event loop.

    request = serving.write(prompts, options, reservation)
    index, event = await request.next()

Events come from the model's thread. Does not know forms and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..access.capacity import Reservation
from ..errors import ApiError

if TYPE_CHECKING:
    from forescribe.text.generator import Event
    from forescribe.text.streaming import Options


class TextRequest:
    """The prompts of one request with their options. The reservation is released when the last text has
    ended; `cancelled` is called once if the request is cancelled before."""

    def __init__(
        self,
        prompts: Sequence[tuple[int, ...]],
        options: Sequence[Options],
        reservation: Reservation,
        timeout_s: float,
        cancelled: Callable[[TextRequest], None],
    ) -> None:
        self.prompts, self.options, self.reservation = prompts, options, reservation
        self.timeout_s, self._cancelled = timeout_s, cancelled
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_s
        self._unfinished = len(prompts)
        self._written = [0] * len(prompts)  # tokens of each text so far
        self._events: asyncio.Queue[tuple[int, Event] | ApiError] = asyncio.Queue()
        """At most as many as the request's tokens."""

    # -- on the model's thread --------------------------------------------------------------------

    def put(self, index: int, event: Event) -> None:
        """Pass on an event of text `index`."""
        self._written[index] += len(event.tokens)
        if event.completion is not None:
            self._written[index] = len(event.completion.ids)
            self._unfinished -= 1
            if not self._unfinished:
                self.reservation.release()
        self._put((index, event))

    def fail(self, error: ApiError) -> None:
        self.reservation.release()
        self._put(error)

    def _put(self, item: tuple[int, Event] | ApiError) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self._events.put_nowait, item)

    # -- on the event loop ------------------------------------------------------------------------

    @property
    def written(self) -> int:
        """Tokens of all texts so far, end-of-text and stop strings included."""
        return sum(self._written)

    async def next(self) -> tuple[int, Event]:
        """The next event, with the number of its text. Each text ends with one completion.

        Raises ApiError if the request fails or takes too long.
        """
        try:
            async with asyncio.timeout_at(self._end_s):
                item = await self._events.get()
        except TimeoutError as error:
            if self._loop.time() < self._end_s:
                raise  # a timeout of the caller
            text = f"not done within {self.timeout_s:g} s"
            raise ApiError("inference_timeout", text) from error
        if isinstance(item, ApiError):
            raise item
        return item

    def cancel(self) -> None:
        """Free the request's slots before the next round; does nothing after the end."""
        if self._unfinished:
            self._cancelled(self)
