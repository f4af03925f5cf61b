"""TextServing: the process's text model in its own thread, seen from the event loop.

    texting = TextServing.of(settings)
    texting.start()
    reading = texting.write(prompts, options, place)    # news of all texts, until each has ended
    await texting.stop()

All requests share one generator's rows. Knows nothing of forms and answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from forescribe.asr.errors import out_of_memory
from forescribe.speculative.errors import RequestError

from ..access.capacity import Place
from ..errors import ApiError
from ..metrics import Metrics
from ..process.model_loads import Failure, Load, told
from ..settings import Settings

if TYPE_CHECKING:
    from forescribe.text.generator import Event, TextGenerator
    from forescribe.text.streaming import Options

State = Literal["off", "loading", "ready", "stopped", "broken", "failed"]

log = logging.getLogger("forescribe.api")

WAIT_S = 0.1


class TextServing:
    """One generator, one thread. Without a model in the settings it is off."""

    def __init__(self, settings: Settings, load: Callable[[], TextGenerator] | None) -> None:
        self.settings, self._load = settings, load
        self.state: State = "off" if load is None else "loading"
        self.loaded = (
            threading.Event()
        )  # whether the load is over, as in forescribe.api.speech.serving
        self.others: tuple[threading.Event, ...] = ()
        self.failed: Callable[[Failure], None] = lambda failure: None
        self.joined: Callable[[], None] = lambda: None
        if load is None:
            self.loaded.set()
        self.generator: TextGenerator | None = None
        self._changed = threading.Condition()  # guards what follows
        self._new: deque[Reading] = deque()
        self._gone: deque[Reading] = deque()
        self._closed = False
        self._owners: dict[int, tuple[Reading, int]] = {}  # of the engine's thread alone
        self._began_s: float | None = None  # when the round under way began
        self._thread = threading.Thread(target=self._serve, name="text", daemon=True)

    @classmethod
    def of(cls, settings: Settings) -> TextServing:
        """With the model that the settings name."""
        if settings.text_model is None:
            return cls(settings, None)

        def load() -> TextGenerator:
            from forescribe.text.generator import TextGenerator
            from forescribe.text.text_presets import resolve

            pair = resolve(settings.text_model, settings.text_draft)
            return TextGenerator.load(
                pair.target,
                pair.draft,
                device=settings.device,
                dtype=settings.dtype,
                batch=settings.batch_size,
                gamma=settings.gamma,
                network=not settings.local_files_only,
            )

        return cls(settings, load)

    def watched_by(self, metrics: Metrics) -> None:
        """Figures for operators, read when they are asked for; 0 where it is off."""

        def stat(name: str) -> Callable[[], float]:
            return lambda: getattr(self.generator.stats, name) if self.generator else 0

        metrics.watch("text_ready", "Whether texts are written.", lambda: self.state == "ready")
        metrics.watch("text_tokens", "Tokens of texts written so far.", stat("emitted"))
        metrics.watch("text_drafted", "Tokens that the draft has proposed.", stat("drafted"))
        metrics.watch("text_accepted", "Drafted tokens that the target kept.", stat("accepted"))

    def start(self) -> None:
        if self.state == "loading":
            self._thread.start()

    async def stop(self) -> None:
        """What is under way is told to come again. What is still loading is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self.generator is not None:
            await asyncio.to_thread(self._thread.join)
        self.state = "stopped"

    # -- the watchdog's ---------------------------------------------------------------------------

    @property
    def standing_s(self) -> float:
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def give_out(self) -> None:
        self.state = "broken"

    # -- from the event loop ----------------------------------------------------------------------

    def check(self) -> TextGenerator:
        """The generator. Raises `model_not_found` where there is none, `not_ready`."""
        if self.state == "off":
            text = "this server writes no text; the setting text_model names a model that does"
            raise ApiError("model_not_found", text, param="model")
        if self.state != "ready" or self.generator is None:
            raise ApiError("not_ready", f"the text model is {self.state}")
        return self.generator

    def known(self, model: str) -> None:
        """Raises `model_not_found` for another name than the model's."""
        there = self.settings.text_name
        if model not in (there, self.settings.text_model):
            text = f"no model {model!r} for text here; there is {there!r}"
            raise ApiError("model_not_found", text, param="model")

    def write(
        self, prompts: Sequence[tuple[int, ...]], options: Sequence[Options], place: Place
    ) -> Reading:
        """Queues texts, all of one request; the place is given back when the last has ended."""
        self.joined()
        reading = Reading(self, prompts, options, place)
        with self._changed:
            if self._closed:
                raise ApiError("not_ready", "the server is stopping")
            self._new.append(reading)
            self._changed.notify_all()
        return reading

    def cancel(self, reading: Reading) -> None:
        with self._changed:
            self._gone.append(reading)
            self._changed.notify_all()

    # -- the model's thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        what = "the text model"
        try:
            assert self._load is not None
            generator = Load(what, str(self.settings.text_model)).run(self._load)
            self.loaded.set()
            self._wait_for_others()
            self.generator = generator
            if not self._closed:
                self.state = "ready"
                log.info('{"event": "text ready"}')
            while self._turn(self.generator):
                pass
        except Exception as error:
            self.state = "failed"
            told(error)
            self.failed(Failure.of(what, error))
        finally:
            self.loaded.set()
            self._leave()

    def _wait_for_others(self) -> None:
        """As `api.speech.serving.Serving` does, and for its reason."""
        for other in self.others:
            while not (other.wait(WAIT_S) or self._closed):
                pass

    def _turn(self, generator: TextGenerator) -> bool:
        """Takes what is new, plays a round, tells what came of it. False at the end."""
        with self._changed:
            while not (self._closed or self._new or self._gone) and generator.idle:
                self._changed.wait()
            if self._closed:
                return False
            new, gone = list(self._new), list(self._gone)
            self._new.clear()
            self._gone.clear()
        for reading in new:
            self._submit(generator, reading)
        for reading in gone:
            for number in [n for n, (owner, _) in self._owners.items() if owner is reading]:
                generator.cancel(number)
                del self._owners[number]
            reading.place.leave()
        self._began_s = time.monotonic()
        try:
            events = generator.step()
        except Exception as error:  # a fault of the model fails what is under way, nothing later
            told(error)
            self._fail_all(generator, error)
            return True
        finally:
            self._began_s = None
        for event in events:
            self._tell(generator, event)
        if generator.broken is not None:
            raise generator.broken  # whoever looks after the process starts the next
        return True

    def _tell(self, generator: TextGenerator, event: Event) -> None:
        if event.number not in self._owners:
            return  # another text of its request has failed in this round
        owner, index = self._owners[event.number]
        done = event.completion
        if done is not None:
            del self._owners[event.number]
            if done.draft_error is not None:
                log.warning("a text goes on without drafts", exc_info=done.draft_error)
            if done.error is not None:
                log.error("a text has failed", exc_info=done.error)
                self._fail(generator, owner, _failed(done.error))
                return
        owner.tell(index, event)

    def _fail(self, generator: TextGenerator, reading: Reading, error: ApiError) -> None:
        """All texts of one request."""
        for number in [n for n, (owner, _) in self._owners.items() if owner is reading]:
            generator.cancel(number)
            del self._owners[number]
        reading.fail(error)

    def _fail_all(self, generator: TextGenerator, error: Exception) -> None:
        failed = _failed(error)
        for reading in {owner for owner, _ in self._owners.values()}:
            reading.fail(failed)
        for number in self._owners:
            generator.cancel(number)
        self._owners = {}

    def _submit(self, generator: TextGenerator, reading: Reading) -> None:
        try:
            pairs = zip(reading.prompts, reading.options, strict=True)
            for index, (prompt, options) in enumerate(pairs):
                self._owners[generator.submit(prompt, options)] = reading, index
        except RequestError as error:
            self._fail(generator, reading, ApiError("invalid_value", str(error)))
        except Exception as error:
            log.error("a text has failed", exc_info=error)
            self._fail(generator, reading, _failed(error))

    def _leave(self) -> None:
        """Nobody waits for what will not come."""
        with self._changed:
            self._closed = True
            left = {owner for owner, _ in self._owners.values()} | set(self._new)
        for reading in left:
            reading.fail(ApiError("not_ready", "the server is stopping"))


def _failed(error: BaseException) -> ApiError:
    """What a client is told of a fault."""
    if out_of_memory(error) or (error.__cause__ is not None and out_of_memory(error.__cause__)):
        return ApiError("overloaded", "the device is out of memory")
    return ApiError("internal_error", "the server failed; the fault is logged")


class Reading:
    """The texts of one request on their way: told on the model's thread, heard on the event loop's."""

    def __init__(
        self,
        serving: TextServing,
        prompts: Sequence[tuple[int, ...]],
        options: Sequence[Options],
        place: Place,
    ) -> None:
        self.serving, self.prompts, self.options, self.place = serving, prompts, options, place
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + serving.settings.timeout_s
        self._left = len(prompts)
        self._heard: asyncio.Queue[tuple[int, Event] | ApiError] = (
            asyncio.Queue()
        )  # at most its tokens

    # -- on the model's thread --------------------------------------------------------------------

    def tell(self, index: int, event: Event) -> None:
        if event.completion is not None:
            self._left -= 1
            if not self._left:
                self.place.leave()
        self._put((index, event))

    def fail(self, error: ApiError) -> None:
        self.place.leave()
        self._put(error)

    def _put(self, news: tuple[int, Event] | ApiError) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._heard.put_nowait, news)

    # -- on the event loop ------------------------------------------------------------------------

    async def next(self) -> tuple[int, Event]:
        """The next news, with the number of the text. As many end as there are prompts.

        Raises ApiError where it fails or takes too long.
        """
        try:
            async with asyncio.timeout_at(self._end_s):
                news = await self._heard.get()
        except TimeoutError as error:
            if self._loop.time() < self._end_s:
                raise  # somebody else's
            text = f"not done within {self.serving.settings.timeout_s:g} s"
            raise ApiError("inference_timeout", text) from error
        if isinstance(news, ApiError):
            raise news
        return news

    def cancel(self) -> None:
        """Rows are free before the next round; does nothing after the end."""
        if self._left:
            self.serving.cancel(self)
