"""Text serving: the process's text model in its own thread, used from the event loop.

All requests share the slots of one generator. Does not know forms and answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forescribe.asr.errors import out_of_memory
from forescribe.speculative.errors import RequestError

from ..errors import ApiError
from ..process import Life, Mailbox, ModelThread, log_engine, log_unexpected
from ..settings import Settings
from ..telemetry import Metrics

if TYPE_CHECKING:
    from forescribe.text.generator import TextGenerator
    from forescribe.text.streaming import Completion, Event

    from .forms import Text


TEXT_MODEL = "the text model"

log = logging.getLogger("forescribe.api")


class TextServing:
    """One generator, one thread. Off if the settings name no text model."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.life = Life(settings, self._end)
        self.generator: TextGenerator | None = None
        self.thread = ModelThread(
            TEXT_MODEL, str(settings.text_model), self._load, self._run, self.life.fail
        )
        if settings.text_model is None:
            self.life.state = "off"
            self.thread.loaded.set()
        self._changed = threading.Condition()  # guards the next two
        self._told: list[TextRequest] = []
        """Requests that are new or were cancelled since the last round."""
        self._closed = False
        self._owners: dict[int, tuple[TextRequest, int]] = {}  # used by the model's thread only
        self._round_began_s: float | None = None

    def watch(self, metrics: Metrics) -> None:
        """Register gauges that are read when metrics are requested; 0 if it is off."""

        def stat(name: str) -> Callable[[], float]:
            return lambda: getattr(self.generator.stats, name) if self.generator else 0

        metrics.watch("text_tokens", "Tokens generated so far.", stat("emitted"))
        metrics.watch("text_drafted", "Tokens drafted for texts.", stat("drafted"))
        metrics.watch("text_accepted", "Drafted tokens accepted by the target.", stat("accepted"))
        metrics.watch("text_draft_faults", "Exceptions in text drafters.", stat("draft_faults"))

    def start(self) -> None:
        self.thread.start()

    async def stop(self) -> None:
        """Fail requests in progress with `not_ready`. A load in progress is not waited for."""
        self._end()
        if self.generator is not None:
            await asyncio.to_thread(self.thread.join)
        self.life.state = "stopped"

    def _end(self) -> None:
        self.thread.closed.set()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def round_s(self) -> float:
        began_s = self._round_began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    # -- on the event loop ------------------------------------------------------------------------

    def check(self) -> TextGenerator:
        """The generator. Raises ApiError `model_not_found` if there is none, `not_ready`."""
        if self.life.state == "off":
            text = "this server generates no text; the setting text_model names a model for it"
            raise ApiError("model_not_found", text, param="model")
        if self.life.state != "ready" or self.generator is None:
            raise ApiError("not_ready", f"the text model is {self.life.state}")
        return self.generator

    def named(self, model: str | None) -> str:
        """The model's name as the client has it; None is the loaded one. Raises ApiError `model_not_found`
        for another's."""
        name = self.settings.text_name
        assert name is not None, "checked before"
        if model not in (None, name, self.settings.text_model):
            text = f"there is no text model {model!r}; there is {name!r}"
            raise ApiError("model_not_found", text, param="model")
        return model or name

    def write(self, texts: Sequence[Text], release: Callable[[], None]) -> TextRequest:
        """Queue the texts of one request: prompts with their options. `release` is called when the last of
        them has ended. Raises ApiError `not_ready`."""
        request = TextRequest(texts, release, self.settings.timeout_s, self._tell)
        with self._changed:
            if self._closed:
                raise ApiError("not_ready", "the server is stopping")
            self._tell(request)
        return request

    def _tell(self, request: TextRequest) -> None:
        with self._changed:
            self._told.append(request)
            self._changed.notify_all()

    # -- on the model's thread --------------------------------------------------------------------

    def _load(self) -> TextGenerator:
        from forescribe.text.generator import TextGenerator
        from forescribe.text.presets import resolve

        settings = self.settings
        assert settings.text_model is not None, "off"
        pair = resolve(settings.text_model, settings.text_draft)
        generator = TextGenerator.load(
            pair.target, pair.draft, context=settings.text_context, **settings.load_arguments()
        )
        engine, device = generator.target.engine, generator.device.kind
        log_engine(TEXT_MODEL, engine, asked=settings.engine, device=device)
        return generator

    def _run(self, generator: TextGenerator) -> None:
        self.generator = generator
        try:
            if not self._closed:
                self.life.state = "ready"
                log.info('{"event": "text ready"}')
            while self._step(generator):
                pass
        finally:
            with self._changed:
                self._closed = True
                unfinished = {*self._requests(), *self._told}
            for request in unfinished:
                request.fail(ApiError("not_ready", "the server is stopping"))

    def _step(self, generator: TextGenerator) -> bool:
        """Start and cancel requests, run a round, and pass on its events. False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._told or not generator.idle)
            if self._closed:
                return False
            told, self._told = self._told, []
        for request in told:
            if request.cancelled:
                self._drop(generator, request)
                request.release()
            else:
                self._submit(generator, request)
        self._round_began_s = time.monotonic()
        try:
            events = generator.step()
        except Exception as error:  # the requests in progress fail, not later ones
            log_unexpected(error)
            for request in self._requests():
                self._fail(generator, request, _api_error(error))
            return True
        finally:
            self._round_began_s = None
        for event in events:
            self._deliver(generator, event)
        if generator.broken is not None:
            raise generator.broken  # the process ends, and its supervisor starts the next
        return True

    def _submit(self, generator: TextGenerator, request: TextRequest) -> None:
        try:
            for index, (prompt, options) in enumerate(request.texts):
                self._owners[generator.submit(prompt, options)] = request, index
        except RequestError as error:
            self._fail(generator, request, ApiError("invalid_value", str(error)))
        except Exception as error:
            log.error("a text has failed", exc_info=error)
            self._fail(generator, request, _api_error(error))

    def _deliver(self, generator: TextGenerator, event: Event) -> None:
        if event.number not in self._owners:
            return  # another text of its request has failed in this round
        request, index = self._owners[event.number]
        completion = event.completion
        if completion is not None:
            del self._owners[event.number]
            if completion.draft_error is not None:
                log.warning("a text continues without drafts", exc_info=completion.draft_error)
            if completion.error is not None:
                log.error("a text has failed", exc_info=completion.error)
                return self._fail(generator, request, _api_error(completion.error))
        request.put(index, event)

    def _requests(self) -> set[TextRequest]:
        return {request for request, _ in self._owners.values()}

    def _drop(self, generator: TextGenerator, request: TextRequest) -> None:
        """Cancel all texts of a request."""
        for number in [n for n, (owner, _) in self._owners.items() if owner is request]:
            generator.cancel(number)
            del self._owners[number]

    def _fail(self, generator: TextGenerator, request: TextRequest, error: ApiError) -> None:
        self._drop(generator, request)
        request.fail(error)


class TextRequest:
    """The texts of one request: its prompts with their options, and the events of the model's thread. The
    capacity is released when the last text has ended; `tell` is called if it is `cancelled` before."""

    def __init__(
        self,
        texts: Sequence[Text],
        release: Callable[[], None],
        timeout_s: float,
        tell: Callable[[TextRequest], None],
    ) -> None:
        self.texts, self.release = texts, release
        self.cancelled = False
        self._tell, self._unfinished = tell, len(texts)
        self._events: Mailbox[tuple[int, Event] | ApiError] = Mailbox(timeout_s)
        """At most as many as the request's tokens."""

    # -- on the model's thread --------------------------------------------------------------------

    def put(self, index: int, event: Event) -> None:
        """Pass on an event of text `index`."""
        if event.completion is not None:
            self._unfinished -= 1
            if not self._unfinished:
                self.release()
        self._events.put((index, event))

    def fail(self, error: ApiError) -> None:
        self.release()
        self._events.put(error)

    # -- on the event loop ------------------------------------------------------------------------

    async def next(self) -> tuple[int, Event]:
        """The next event, with the number of its text. Each text ends with one completion.

        Raises ApiError if the request fails or takes too long.
        """
        item = await self._events.next()
        if isinstance(item, ApiError):
            raise item
        return item

    async def completions(self) -> list[Completion]:
        """All texts in their order, once they have ended. Raises as `next` does."""
        ended: dict[int, Completion] = {}
        while len(ended) < len(self.texts):
            index, event = await self.next()
            if event.completion is not None:
                ended[index] = event.completion
        return [ended[index] for index in range(len(ended))]

    def cancel(self) -> None:
        """Free the request's slots before the next round; does nothing after the end."""
        if self._unfinished:
            self.cancelled = True
            self._tell(self)


def _api_error(error: BaseException) -> ApiError:
    """The error that a client receives after a fault."""
    if out_of_memory(error) or (error.__cause__ is not None and out_of_memory(error.__cause__)):
        return ApiError("overloaded", "the device is out of memory")
    return ApiError("internal_error", "the server failed; the fault is logged")
