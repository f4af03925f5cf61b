"""Speech serving: the process's transcriber in its own thread, used from the event loop.

All requests share one session, so the windows of all uploads share the engine's slots. After `idle_unload_s`
without work the model leaves memory; the next request has it loaded and waits. Does not know forms and
answers.

A front end has no model and is ready at once: it accepts jobs, and `forescribe worker` does them on other
machines. Recordings are still decoded here, for their length and to refuse what is not audio. What only the
model can tell (whether it knows a language that Whisper knows) fails the job instead of the request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Self

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.requests import Stats

from ..access.limits import Admission
from ..errors import ApiError
from ..process import POLL_S, IdleUnload, Life, ModelThread, log_engine
from ..settings import NO_DIARIZER, Settings
from ..telemetry import Metrics, Observation, Tracing, report
from .decoding import Decoding
from .diarization import Speakers

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.driver import Session
    from forescribe.asr.decode.options import Options
    from forescribe.asr.decode.results import Outcome, Tap
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.live.events import LiveOptions, Tell
    from forescribe.asr.live.stream import LiveStream
    from forescribe.asr.model.speech_model import SpeechTokens
    from forescribe.diarize.diarizer import Diarizer


SPEECH_MODEL = "the speech model"

READERS = max(2, len(os.sched_getaffinity(0)) // 4)
"""Uploads decoded at a time, and threads that cut them into windows. A child costs 38 ms of a core, mostly to
be started: two at a time decode 53 uploads in a second, fewer than a card transcribes if they are short."""

DECODE_S, DECODE_BYTES = 600, 1 << 30
"""Time and additional memory of the decoder of one upload: a hundred times what four hours of any codec
take."""

NAME = "file"
"""What messages call the upload: the name of its field, never the client's name for it."""

ENGINE_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "rounds": "Rounds of the engine, each of a whole batch.",
        "row_rounds": "Rounds that windows took part in.",
        "target_forwards": "Forward passes of the target.",
        "draft_forwards": "Forward passes of drafts.",
        "faults": "Exceptions in models, drafters, rules and schedules, repeated ones included.",
        "draft_faults": "Those in drafters: words stay right, and speed is lost.",
    }
)
"""The counters in the engine's statistics, with their help."""

log = logging.getLogger("forescribe.api")


class Serving:
    """One transcriber, one session, one thread."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Transcriber] | None,
        load_diarizer: Callable[[], Diarizer],
        decoders: Decoders | None = None,
    ) -> None:
        self.settings = settings
        self.life = Life(settings, self._close)
        self._load = load  # None for a front end
        self.admission = Admission(settings)
        self.tracing = Tracing()
        self.decoders = decoders or Decoders(READERS)
        self.speakers = Speakers(load_diarizer, self.decoders)
        self.metrics = Metrics()
        self.session: Session | None = None
        self.tokens: SpeechTokens | None = None
        """The model's special tokens, whether it is in memory or not; a front end does not know them."""
        self._stats = Stats()  # of sessions that have ended
        self.idle = IdleUnload(settings.idle_unload_s or 0.0, self._busy, self._unload)
        self.thread = ModelThread(
            SPEECH_MODEL,
            settings.model_name,
            self._loaded_session,
            self._run,
            self.life.fail,
            self.idle.wanted,
        )
        _register(self)
        self._tell_build()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """With the models of the settings."""
        load = None if settings.front_end else partial(_load_transcriber, settings)
        serving = cls(settings, load, partial(_load_diarizer, settings))
        serving.tracing = Tracing.from_environment()
        return serving

    def start(self) -> None:
        self.decoders.start()
        if self._load is not None:
            self.thread.start()
            self.idle.start()
        elif self.life.state == "loading":
            self.life.state = "ready"

    async def stop(self) -> None:
        """Drain, and wait for the end."""
        self.life.drain()
        while self.admission.requests and time.monotonic() < self.life.end_s:
            await asyncio.sleep(0.05)
        self._close()
        # A load in progress is not waited for.
        if self.session is not None:
            await asyncio.to_thread(self.thread.join)
        await asyncio.to_thread(self.decoders.close)
        if self.life.state != "failed":
            self.life.state = "stopped"

    def _close(self) -> None:
        self.thread.closed.set()
        self.idle.stop()
        if self.session is not None:
            self.session.close()

    def stats(self) -> Stats:
        """The engine's statistics since the start, at most a few seconds old."""
        session = self.session
        return self._stats if session is None else self._stats + session.stats

    @property
    def vacant(self) -> bool:
        """Whether requests are kept out, and nothing of them is left."""
        session = self.session
        return self.admission.vacant and (session is None or session.idle)

    @property
    def round_s(self) -> float:
        return 0.0 if self.session is None else self.session.standing_s

    # -- on the event loop ------------------------------------------------------------------------

    def check(self) -> None:
        """Raises ApiError `not_ready` if no work is admitted."""
        if not self.life.open:
            raise ApiError("not_ready", f"the server is {self.life.state}")

    @property
    def translates(self) -> bool:
        """Whether the model translates, as far as it is known."""
        return self.tokens is None or self.tokens.translates

    def check_language(self, names: str, param: str = "language") -> None:
        """Raises ApiError `invalid_value`, which names the field `param`, for one of several languages,
        separated by commas, that the model does not know."""
        from forescribe.asr.model.languages import read_languages

        try:
            (read_languages if self.tokens is None else self.tokens.spoken)(names)
        except UsageError as error:
            raise ApiError.of(error, param=param) from error

    async def decoded(self, file: BinaryIO, name: str = NAME) -> DecodedFile:
        """The samples of an upload, which the caller closes; `name` is that of its field. Raises ApiError for
        a file that is not audio, is too long, or takes too long to decode."""
        bounds = Bounds(
            max_s=self.settings.max_audio_s,
            wall_s=DECODE_S,
            cpu_s=DECODE_S,
            memory_bytes=DECODE_BYTES,
        )
        began, began_ns = time.perf_counter(), time.time_ns()
        samples = self.decoders.submit(file, bounds, name=name)
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
            raise ApiError.of(error, param=name) from error

    async def awake(self) -> None:
        """Wait until the model is in memory; a reservation keeps it there. Raises ApiError `not_ready`."""
        self.idle.want()
        while self.session is None:
            self.check()
            await asyncio.sleep(POLL_S)

    def follow(
        self,
        samples: DecodedFile,
        options: Options,
        tap: Tap | None,
        progressed: Callable[[float], None],
        done: Callable[[], None],
    ) -> Decoding:
        """Queue an upload; the model is `awake`. `progressed` is called with the seconds that are decoded,
        `done` when the engine is done with it, however it ends. Raises ApiError if its options cannot be
        served or no work is admitted; then neither is called."""
        observation = Observation(self.metrics, self.tracing)

        def ended(outcome: Outcome | None) -> None:
            try:
                if outcome is not None:
                    observation.ended(outcome)
            finally:
                done()

        decoding = Decoding(
            timeout_s=self.settings.timeout_s,
            progressed=progressed,
            done=ended,
            phases=observation.phases,
        )
        try:
            with self.idle.lock:
                session = self._ready()
                submission = session.submit(
                    samples, options, decoding, name=NAME, tap=tap, phases=decoding.phases
                )
        except ForescribeError as error:
            raise ApiError.of(error, param="prompt") from error
        decoding.queued(session, submission)
        return decoding

    def live(self, options: LiveOptions, tell: Tell) -> LiveStream:
        """A live stream in the session; the model is `awake`, and the caller holds it (`idle.hold`). Not on
        the event loop: the first one may load the voice detector. Raises ApiError if its options cannot be
        served or no work is admitted."""
        from forescribe.asr.live.stream import LiveStream

        self.admission.check()
        try:
            return LiveStream(self._ready(), options, tell)
        except ForescribeError as error:
            raise ApiError.of(error, param="session") from error

    def _ready(self) -> Session:
        self.check()
        if self.session is None:
            raise ApiError("not_ready", "the model was unloaded")
        return self.session

    # -- on the engine's thread -------------------------------------------------------------------

    def _loaded_session(self) -> Session:
        with loading():
            assert self._load is not None, "a front end has no thread"
            transcriber = self._load()
            from forescribe.asr.decode.driver import Session

            return Session(transcriber.context, readers=READERS)

    def _run(self, session: Session) -> None:
        whisper = session.context.whisper
        self._tell_build(str(whisper.engine), whisper.device.name)
        self.tokens, self.session = whisper.tokens, session
        self.idle.loaded()
        if self.thread.closed.is_set():  # the end came while it was loaded
            session.close()
        if self.life.state == "loading":
            if self.settings.diarizer != NO_DIARIZER:
                self.speakers.prepare()
            self.life.state = "ready"
            log.info('{"event": "ready"}')
        if self.life.open:
            session.run()

    def _tell_build(self, engine: str = "", device: str = "") -> None:
        """What runs here; engine and device are unknown until the model is loaded."""
        facts = {"version": version("forescribe"), "model": self.settings.model_name}
        self.metrics.build.info({**facts, "engine": engine, "device": device})

    # -- on a thread that looks whether it is idle ------------------------------------------------

    def _busy(self) -> bool:
        """Whether the model is needed, or is not loaded yet."""
        session = self.session
        inside = self.admission.requests or self.admission.uploads
        return bool(inside) or session is None or not session.idle

    def _unload(self) -> None:
        session, self.session = self.session, None
        assert session is not None
        self._stats += session.stats
        session.close()  # its thread ends, and nothing refers to the model any more
        self.speakers.unload()
        report("unloaded", what=SPEECH_MODEL, name=self.settings.model_name)


def _load_transcriber(settings: Settings) -> Transcriber:
    from forescribe.asr.decode.transcriber import Transcriber

    transcriber = Transcriber.load(
        settings.model, settings.draft, language=settings.language, **settings.load_arguments()
    )
    engine, device = transcriber.context.forward, transcriber.whisper.device.kind
    log_engine(SPEECH_MODEL, engine, asked=settings.engine, device=device)
    return transcriber


def _load_diarizer(settings: Settings) -> Diarizer:
    from forescribe.diarize.engines import registry

    network = not settings.local_files_only
    return registry.load(settings.diarizer, device=settings.device, network=network)


def _register(serving: Serving) -> None:
    """Register series that are read when metrics are requested."""
    metrics, admission = serving.metrics, serving.admission

    def slots_busy() -> float:
        session = serving.session
        if session is None:
            return 0.0
        return 1 - session.context.engine.free / session.context.engine.batch

    def count(name: str) -> float:
        return float(getattr(serving.stats(), name))

    for name, text in ENGINE_COUNTS.items():
        series = "engine_faults" if name == "faults" else name
        metrics.count(series, text, partial(count, name))
    text = "Time of the engine's thread by stage; up to five seconds old."
    metrics.count("engine_seconds", text, lambda: serving.stats().seconds, "stage")
    metrics.watch("ready", "Whether requests are admitted.", lambda: serving.life.state == "ready")
    text = "Whether the speech model is in memory; see idle_unload_s."
    metrics.watch("model_loaded", text, lambda: serving.session is not None)
    metrics.watch("requests_inside", "Requests in progress.", lambda: admission.requests)
    metrics.watch("slots_busy", "Share of the engine's slots in use.", slots_busy)
    text, folder = "Free space for uploads and their samples.", tempfile.gettempdir()
    metrics.watch("scratch_free_bytes", text, lambda: shutil.disk_usage(folder).free)
    metrics.watch("queued_audio_seconds", "Audio not yet decoded.", lambda: admission.seconds)


def _discard(samples: Future[DecodedFile]) -> None:
    """Close samples whose request was cancelled."""
    if not samples.cancelled() and samples.exception() is None:
        samples.result().close()
