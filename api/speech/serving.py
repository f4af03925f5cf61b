"""Speech serving: the process's transcriber in its own thread, used from the event loop.

    serving = Serving.of(settings)
    serving.start()                          # loads in the thread; `state` tells how far it is
    stream = serving.follow(task)            # parts as they become final, then the outcome
    await serving.stop()

All requests share one session, so the windows of all uploads share the engine's slots. Does not know
forms and answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, BinaryIO, Self

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.speculative.models.checkpoint import loading

from ..access.capacity import Admission
from ..access.meter import Meter
from ..errors import ApiError
from ..metrics import Metrics
from ..process.lifecycle import Lifecycle
from ..process.model_loads import Failure, log_engine
from ..process.model_thread import ModelThread
from ..settings import Settings
from ..telemetry import trace_settings
from ..telemetry.tracing import Tracing
from .diarization import Speakers
from .serving_metrics import watch
from .transcription_stream import TranscriptionStream, TranscriptionTask

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.sessions.session import Session
    from forescribe.diarize.diarizer import Diarizer

log = logging.getLogger("forescribe.api")

SPEECH_MODEL = "the speech model"
"""What log lines call it."""

NAME = "file"
"""What messages call the upload: the name of its field, never the client's name for it."""


class Serving(Lifecycle):
    """One transcriber, one session, one thread."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Transcriber],
        load_diarizer: Callable[[], Diarizer],
        decoders: Decoders | None = None,
    ) -> None:
        super().__init__(settings)
        self._load = load
        self.admission = Admission(settings)
        self.usage = Meter()
        self.tracing = Tracing()
        self.decoders = decoders or Decoders(settings.readers)
        self.speakers = Speakers(load_diarizer, self.decoders)
        self.metrics = Metrics()
        self.failed: Callable[[Failure], None] = lambda failure: None
        """Called on the engine's thread with the reason why the process has to end."""
        self.joined: Callable[[], None] = lambda: None
        """Called before a request's work enters an engine."""
        self.session: Session | None = None
        self.thread = ModelThread(
            SPEECH_MODEL, settings.model_name, self._loaded_session, self._run, self._fail
        )
        watch(
            self.metrics,
            self.admission,
            settings.model_name,
            lambda: self.state == "ready",
            lambda: self.session,
        )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """With the models of the settings."""

        def load() -> Transcriber:
            from forescribe.asr.decode.transcriber import Transcriber

            transcriber = Transcriber.load(
                settings.model,
                settings.draft,
                language=settings.language,
                device=settings.device,
                dtype=settings.dtype,
                draft_dtype=settings.draft_dtype,
                quantize=settings.quantize,
                engine=settings.engine,
                batch=settings.batch_size,
                gamma=settings.gamma,
                network=not settings.local_files_only,
            )
            log_engine(
                SPEECH_MODEL,
                transcriber.context.forward,
                asked=settings.engine,
                device=transcriber.whisper.device.kind,
            )
            return transcriber

        def load_diarizer() -> Diarizer:
            from forescribe.diarize.engines import registry

            network = not settings.local_files_only
            return registry.load(settings.diarizer, device=settings.device, network=network)

        serving = cls(settings, load, load_diarizer)
        serving.tracing = trace_settings.of(settings)
        return serving

    def start(self) -> None:
        self.decoders.start()
        self.thread.start()

    async def stop(self) -> None:
        """Drain, and wait for the end."""
        self.drain()
        while self.admission.requests and time.monotonic() < self.end_s:
            await asyncio.sleep(0.05)
        self.close()
        if self.session is not None:  # a load in progress is not waited for
            await asyncio.to_thread(self.thread.join)
        await asyncio.to_thread(self.decoders.close)
        if self.state != "failed":
            self.state = "stopped"

    def close(self) -> None:
        self.thread.closed.set()
        if self.session is not None:
            self.session.close()

    # -- for the watchdog -------------------------------------------------------------------------

    @property
    def round_s(self) -> float:
        """Seconds since the current round began; 0 between rounds."""
        return 0.0 if self.session is None else self.session.standing_s

    def mark_broken(self) -> None:
        self.state = "broken"

    # -- on the event loop ------------------------------------------------------------------------

    @property
    def transcriber(self) -> Transcriber:
        """Raises ApiError `not_ready` before it is loaded."""
        return self._ready().transcriber

    def check(self) -> None:
        """Raises ApiError `not_ready` if no work is admitted."""
        self._ready()

    @property
    def multilingual(self) -> bool:
        """Whether the model translates. Raises ApiError `not_ready` before it is loaded."""
        return self.transcriber.whisper.tokens.translates

    def language(self, name: str) -> str:
        """The code of a language. Raises ApiError `invalid_value` for one that the model does not know."""
        try:
            return self.transcriber.whisper.tokens.language(name)
        except UsageError as error:
            raise ApiError.of(error, param="language") from error

    async def decoded(self, file: BinaryIO) -> DecodedFile:
        """The samples of an upload, which the caller closes. Raises ApiError for a file that is not audio,
        is too long, or takes too long to decode."""
        settings = self.settings
        bounds = Bounds(
            max_s=settings.max_audio_s,
            wall_s=settings.decode_timeout_s,
            cpu_s=math.ceil(settings.decode_timeout_s),
            memory_bytes=settings.decode_memory_bytes,
        )
        began, began_ns = time.perf_counter(), time.time_ns()
        samples = self.decoders.submit(file, bounds, name=NAME)
        try:
            decoded = await asyncio.wrap_future(samples)
            self.metrics.took("decode", time.perf_counter() - began)
            audio_s = round(decoded.duration_s, 3)
            self.tracing.record("decode", began_ns, time.time_ns(), audio_s=audio_s)
            return decoded
        except asyncio.CancelledError:
            samples.add_done_callback(_discard)
            raise
        except ForescribeError as error:
            raise ApiError.of(error, param="file") from error

    def follow(self, task: TranscriptionTask) -> TranscriptionStream:
        """Queue an upload. Raises ApiError if its options cannot be served or no work is admitted; the
        task is released then."""
        stream = TranscriptionStream(task, self.settings.timeout_s, self.metrics, self.tracing)
        try:
            session = self._ready()
            self.joined()
            submission = session.submit(
                task.decoded_file,
                task.options,
                stream,
                name=NAME,
                tap=task.tap,
                phases=stream.phases,
            )
        except ForescribeError as error:
            task.release()
            raise ApiError.of(error, param="prompt") from error
        except BaseException:
            task.release()
            raise
        stream.cancelled_by(lambda: session.cancel(submission))
        return stream

    def _ready(self) -> Session:
        if not self.open or self.session is None:
            raise ApiError("not_ready", f"the server is {self.state}")
        return self.session

    # -- on the engine's thread -------------------------------------------------------------------

    def _loaded_session(self) -> Session:
        with loading():
            transcriber = self._load()
            from forescribe.asr.sessions.session import Session

            return Session(transcriber, readers=self.settings.readers)

    def _run(self, session: Session) -> None:
        self.session = session
        if self.state == "loading":
            self.state = "ready"
            log.info('{"event": "ready"}')
            session.run()

    def _fail(self, failure: Failure) -> None:
        self.state = "failed"
        self.failed(failure)


def _discard(samples: Future[DecodedFile]) -> None:
    """Close samples whose request was cancelled."""
    if not samples.cancelled() and samples.exception() is None:
        samples.result().close()
