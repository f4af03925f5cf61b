"""Serving: the process's engine in its own thread, seen from the event loop.

    serving = Serving.of(settings)
    serving.start()                                  # loads beside the loop; `state` tells
    following = serving.follow(task)                 # parts as they become final, then the outcome
    await serving.stop()

All requests share one session, so the windows of all uploads share the engine's slots. Knows nothing
of forms and answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, BinaryIO, Literal

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.speculative.models.load_lock import loading

from ..access.capacity import Admission
from ..errors import ApiError
from ..metrics import Metrics
from ..process.model_loads import Failure, Load, told
from ..settings import Settings
from .diarization import Speakers
from .following import Following, Task

if TYPE_CHECKING:
    from forescribe.asr.audio.decoded_file import DecodedFile
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.sessions.session import Session
    from forescribe.diarize.diarizer import Diarizer

State = Literal["loading", "ready", "draining", "stopped", "broken", "failed"]
"""Of the speech model. `draining` begins at the signal, before work is refused; `broken` is an engine that
hangs, `failed` one that cannot be loaded or has ended: then the process ends."""

WAIT_S = 0.1

log = logging.getLogger("forescribe.api")

NAME = "file"
"""What messages call the upload: the field that it came in, never the client's name for it."""


class Serving:
    """One transcriber, one session, one thread. `load` takes as long as it takes."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Transcriber],
        load_diarizer: Callable[[], Diarizer],
        decoders: Decoders | None = None,
    ) -> None:
        self.settings, self._load = settings, load
        self.admission = Admission(settings)
        self.decoders = decoders or Decoders(settings.readers)
        self.speakers = Speakers(load_diarizer, self.decoders)
        self.metrics = _watched(self)
        self.state: State = "loading"
        self.loaded = threading.Event()
        """Whether the load is over, well or not."""
        self.others: tuple[threading.Event, ...] = ()
        """The same of the process's other models."""
        self.failed: Callable[[Failure], None] = lambda failure: None
        """Told, on the engine's thread, why the process has to end."""
        self.ending: list[Callable[[], None]] = []
        """Called once the end is known, each in a thread of its own."""
        self.closing: list[Callable[[], None]] = []
        """The same once no more work is let in."""
        self.joined: Callable[[], None] = lambda: None
        """Called before a request's work comes into an engine."""
        self.session: Session | None = None
        self._open = False  # work is let in although the end was announced
        self._closed = threading.Event()
        self._once = threading.Lock()  # taken by the first `drain`, for good
        self._end_s = math.inf
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)

    @classmethod
    def of(cls, settings: Settings) -> Serving:
        """With the model that the settings name."""

        def load() -> Transcriber:
            from forescribe.asr.decode.transcriber import Transcriber

            return Transcriber.load(
                settings.model,
                settings.draft,
                language=settings.language,
                device=settings.device,
                dtype=settings.dtype,
                batch=settings.batch_size,
                gamma=settings.gamma,
                network=not settings.local_files_only,
            )

        def load_diarizer() -> Diarizer:
            from forescribe.diarize.engines import registry

            network = not settings.local_files_only
            return registry.load(settings.diarizer, device=settings.device, network=network)

        return cls(settings, load, load_diarizer)

    @property
    def transcriber(self) -> Transcriber:
        """Raises `not_ready` before it is loaded."""
        return self._ready().transcriber

    def start(self) -> None:
        self.decoders.start()
        self._thread.start()

    def announce(self) -> float:
        """`/ready` says from here on that the end is near, and work is let in for so many seconds more:
        who shares out requests needs them to notice. Then `drain` follows by itself. Returns at once: a
        signal may call it."""
        announce_s = self.settings.announce_s if self.state == "ready" else 0.0
        self._open = announce_s > 0
        self._end()
        _later(announce_s, self.drain)
        return announce_s

    def drain(self) -> None:
        """Nothing comes in any more; what is inside has `drain_s` to end, then it is told to come
        again. Returns at once, and does nothing the second time."""
        self._open = False
        self._end()
        if not self._once.acquire(blocking=False):  # a signal's handler must not wait for itself
            return
        self._end_s = time.monotonic() + self.settings.drain_s
        _apart(self.closing)
        _later(self.settings.drain_s, self._close)

    def _end(self) -> None:
        if self.state in ("loading", "ready"):
            self.state = "draining"
        told, self.ending = self.ending, []
        _apart(told)

    async def stop(self) -> None:
        """Drains, and waits for the end."""
        self.drain()
        while self.admission.requests and time.monotonic() < self._end_s:
            await asyncio.sleep(0.05)
        self._close()
        if self.session is not None:  # what is still loading is not waited for
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self.decoders.close)
        if self.state != "failed":
            self.state = "stopped"

    def _close(self) -> None:
        self._closed.set()
        if self.session is not None:
            self.session.close()

    # -- the watchdog's ---------------------------------------------------------------------------

    @property
    def standing_s(self) -> float:
        return 0.0 if self.session is None else self.session.standing_s

    def give_out(self) -> None:
        self.state = "broken"

    def check(self) -> None:
        """Raises `not_ready` where nothing may come in."""
        self._ready()

    def language(self, name: str) -> str:
        """The code of a language. Raises `invalid_value` for one that the model does not know."""
        try:
            return self.transcriber.whisper.tokens.language(name)
        except UsageError as error:
            raise ApiError.of(error, param="language") from error

    # -- from the event loop ----------------------------------------------------------------------

    async def decoded(self, file: BinaryIO) -> DecodedFile:
        """The samples of an upload, which are the caller's to close. Raises ApiError for what is no
        audio, too long, or takes its decoder too long."""
        limits = self.settings
        bounds = Bounds(
            max_s=limits.max_audio_s,
            wall_s=limits.decode_timeout_s,
            cpu_s=math.ceil(limits.decode_timeout_s),
            memory_bytes=limits.decode_memory_bytes,
        )
        made = self.decoders.submit(file, bounds, name=NAME)
        try:
            return await asyncio.wrap_future(made)
        except asyncio.CancelledError:
            made.add_done_callback(_discarded)
            raise
        except ForescribeError as error:
            raise ApiError.of(error, param="file") from error

    def follow(self, task: Task) -> Following:
        """Queues an upload. Raises ApiError where its options cannot be served or nothing may come
        in; it is released then."""
        following = Following(task, self.settings.timeout_s, self.metrics)
        try:
            session = self._ready()
            self.joined()
            submission = session.submit(
                task.spool, task.options, following, name=NAME, tap=task.tap
            )
        except ForescribeError as error:
            task.release()
            raise ApiError.of(error, param="prompt") from error
        except BaseException:
            task.release()
            raise
        following.cancelled_by(lambda: session.cancel(submission))
        return following

    @property
    def open(self) -> bool:
        """Whether work is let in."""
        return self.state == "ready" or self._open

    @property
    def leaving(self) -> bool:
        """Whether the process ends, and no work is let in any more."""
        return self.state in ("draining", "stopped", "failed") and not self._open

    def _ready(self) -> Session:
        if not self.open or self.session is None:
            raise ApiError("not_ready", f"the server is {self.state}")
        return self.session

    # -- the engine's thread ----------------------------------------------------------------------

    def _serve(self) -> None:
        what = "the speech model"
        try:
            session = Load(what, self.settings.model_name).run(self._loaded_session)
            self.loaded.set()
            self._wait_for_others()
            self.session = session
            if self.state == "loading":
                self.state = "ready"
                log.info('{"event": "ready"}')
                session.run()
        except Exception as error:
            self.state = "failed"
            told(error)
            self.failed(Failure.of(what, error))
        finally:
            self.loaded.set()

    def _loaded_session(self) -> Session:
        with loading():
            transcriber = self._load()
            from forescribe.asr.sessions.session import Session

            return Session(transcriber, readers=self.settings.readers)

    def _wait_for_others(self) -> None:
        """No round is played beside a load: transformers changes torch's default dtype for the whole
        process meanwhile."""
        for other in self.others:
            while not (other.wait(WAIT_S) or self._closed.is_set()):
                pass


def _apart(acts: list[Callable[[], None]]) -> None:
    for act in acts:
        threading.Thread(target=act, name="ending", daemon=True).start()


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _discarded(made: Future[DecodedFile]) -> None:
    """Whoever wanted the samples has left."""
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def _busy(serving: Serving) -> float:
    if serving.session is None:
        return 0.0
    transcriber = serving.session.transcriber
    return 1 - transcriber.engine.free / transcriber.batch


def _watched(serving: Serving) -> Metrics:
    metrics, admission = Metrics(), serving.admission
    metrics.watch("ready", "Whether requests are let in.", lambda: serving.state == "ready")
    metrics.watch("requests_inside", "Requests under way.", lambda: admission.requests)
    metrics.watch("slots_busy", "Share of the engine's rows in use.", lambda: _busy(serving))
    metrics.watch(
        "scratch_free_bytes",
        "Room where uploads and their samples go.",
        lambda: shutil.disk_usage(tempfile.gettempdir()).free,
    )
    metrics.engine(lambda: serving.session.stats.seconds if serving.session is not None else {})
    metrics.watch("queued_audio_seconds", "Audio not yet decoded.", lambda: admission.seconds)
    return metrics
