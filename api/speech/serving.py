"""Speech serving: the process's transcriber in its own thread, used from the event loop.

    serving = Serving.of(settings)
    serving.start()                          # loads in the thread; `state` tells how far it is
    stream = serving.follow(samples, options, reservation, None)    # one upload through the engine
    try:
        while (part := await stream.next()) is not None: ...    # parts as they become final
        stream.outcome
    finally:
        stream.cancel()                      # does nothing after the end
    await serving.stop()

After `idle_unload_s` without work the model leaves memory; the next request has it loaded and waits.

All requests share one session, so the windows of all uploads share the engine's slots. Does not know
forms and answers.

A front end has no model and is ready at once: it accepts jobs, and `forescribe worker` does them on other
machines. Recordings are still decoded here, in child processes, for their length and to refuse what is not
audio. What only the model can tell (whether it knows a language that Whisper knows) fails the job instead of
the request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from forescribe.asr.audio.fork_server import Bounds
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import ForescribeError, UsageError
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.stats import Stats

from ..access.limits import Admission, Reservation
from ..errors import ApiError
from ..http.errors import CURRENT, report
from ..metrics import Metrics, watch
from ..process.lifecycle import IdleUnload, Lifecycle
from ..process.models import POLL_S, Mailbox, ModelThread, log_engine
from ..settings import Settings
from ..telemetry import Tracing, Value, place
from .diarization import Speakers

if TYPE_CHECKING:
    from forescribe.asr.audio.inputs import DecodedFile
    from forescribe.asr.decode.options import Options, Outcome
    from forescribe.asr.decode.parts import Part
    from forescribe.asr.decode.session import Session
    from forescribe.asr.decode.submission import Tap
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.formats.transcript import Transcript
    from forescribe.asr.live.events import LiveOptions, Tell
    from forescribe.asr.live.stream import LiveStream
    from forescribe.asr.model.tokens import SpecialTokens
    from forescribe.diarize.diarizer import Diarizer


SPEECH_MODEL = "the speech model"
"""What log lines call it."""

READERS = 2
"""Uploads decoded at a time, and threads that cut them into windows: both are fast beside the model."""

DECODE_S, DECODE_BYTES = 600, 1 << 30
"""Time and additional memory of the decoder of one upload: a hundred times what four hours of any codec
take."""

NAME = "file"
"""What messages call the upload: the name of its field, never the client's name for it."""

TRACED = ("windows", "tokens", "drafted", "accepted", "rounds")
"""Figures of a transcript that its span has as attributes."""

log = logging.getLogger("forescribe.api")


class Serving(Lifecycle):
    """One transcriber, one session, one thread."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Transcriber] | None,
        load_diarizer: Callable[[], Diarizer],
        decoders: Decoders | None = None,
    ) -> None:
        super().__init__(settings)
        self._load = load  # None for a front end
        self.admission = Admission(settings)
        self.tracing = Tracing()
        self.decoders = decoders or Decoders(READERS)
        self.speakers = Speakers(load_diarizer, self.decoders)
        self.metrics = Metrics()
        self.session: Session | None = None
        self._facts: Facts | None = None
        self._stats = Stats()  # of sessions that have ended
        self.idle = IdleUnload(settings.idle_unload_s or 0.0, self._busy, self._unload)
        self.thread = ModelThread(
            SPEECH_MODEL,
            settings.model_name,
            self._loaded_session,
            self._run,
            self.fail,
            self.idle.wanted,
        )
        watch(
            self.metrics,
            self.admission,
            settings.model_name,
            lambda: self.state == "ready",
            lambda: self.session,
            self.stats,
        )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """With the models of the settings."""
        load = None if settings.front_end else partial(load_transcriber, settings)
        serving = cls(settings, load, partial(load_diarizer, settings))
        serving.tracing = Tracing.from_environment()
        return serving

    def start(self) -> None:
        self.decoders.start()
        if self._load is not None:
            self.thread.start()
            self.idle.start()
        elif self.state == "loading":
            self._facts, self.state = Facts(None, drafting=True), "ready"

    async def stop(self) -> None:
        """Drain, and wait for the end."""
        self.drain()
        while self.admission.requests and time.monotonic() < self.end_s:
            await asyncio.sleep(0.05)
        self.close()
        # A load in progress is not waited for.
        if self.session is not None:
            await asyncio.to_thread(self.thread.join)
        await asyncio.to_thread(self.decoders.close)
        if self.state != "failed":
            self.state = "stopped"

    def close(self) -> None:
        self.thread.closed.set()
        self.idle.stop()
        if self.session is not None:
            self.session.close()

    def stats(self) -> Stats:
        """The engine's statistics since the start, at most a few seconds old."""
        session = self.session
        return self._stats if session is None else self._stats + session.stats

    @property
    def round_s(self) -> float:
        return 0.0 if self.session is None else self.session.standing_s

    # -- on the event loop ------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """What is known of the model, in memory or not. Raises ApiError `not_ready` before it was loaded."""
        if not self.open or self._facts is None:
            raise ApiError("not_ready", f"the server is {self.state}")
        return self._facts

    def check(self) -> None:
        """Raises ApiError `not_ready` if no work is admitted."""
        _ = self.facts

    @property
    def multilingual(self) -> bool:
        """Whether the model translates. Raises ApiError `not_ready` before it is loaded."""
        tokens = self.facts.tokens
        return tokens is None or tokens.translates

    def language(self, name: str, param: str = "language") -> str:
        """The code of a language, or of several, separated by commas. Raises ApiError `invalid_value`, which
        names the field `param`, for one that the model does not know."""
        from forescribe.asr.model.tokens import known_languages, language_codes

        codes, tokens = language_codes(name), self.facts.tokens
        if tokens is None:
            for unknown in sorted(set(codes) - known_languages()):
                raise ApiError("invalid_value", f"unknown language {unknown!r}", param=param)
            return ",".join(codes)
        try:
            return ",".join(map(tokens.language, codes))
        except UsageError as error:
            raise ApiError.of(error, param=param) from error

    async def decoded(self, file: BinaryIO) -> DecodedFile:
        """The samples of an upload, which the caller closes. Raises ApiError for a file that is not audio,
        is too long, or takes too long to decode."""
        bounds = Bounds(
            max_s=self.settings.max_audio_s,
            wall_s=DECODE_S,
            cpu_s=DECODE_S,
            memory_bytes=DECODE_BYTES,
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

    async def awake(self) -> None:
        """Wait until the model is in memory; a reservation keeps it there. Raises ApiError `not_ready`."""
        self.idle.want()
        while self.session is None:
            self.check()
            await asyncio.sleep(POLL_S)

    def follow(
        self, samples: DecodedFile, options: Options, reservation: Reservation, tap: Tap | None
    ) -> TranscriptionStream:
        """Queue an upload; the model is `awake`. When the engine is done with it, however it ends, its
        samples are closed, and its reservation is released unless a `tap` has more to do. Raises ApiError if
        its options cannot be served or no work is admitted; then nothing of it was taken."""
        observation = Observation(self.metrics, self.tracing)
        done = ExitStack()
        done.callback(samples.close)
        if tap is None:
            done.callback(reservation.release)
        stream = TranscriptionStream(
            observation, self.settings.timeout_s, reservation.progressed, done.close
        )
        phases = observation.phases
        try:
            with self.idle.lock:
                session = self._ready()
                submission = session.submit(
                    samples, options, stream, name=NAME, tap=tap, phases=phases
                )
        except ForescribeError as error:
            raise ApiError.of(error, param="prompt") from error
        stream.cancelled_by(lambda: session.cancel(submission))
        return stream

    def live(self, options: LiveOptions, tell: Tell) -> LiveStream:
        """A live stream in the session; the model is `awake`, and the caller holds it (`idle.hold`). Not on
        the event loop: the first one may load the voice detector. Raises ApiError if its options cannot be
        served or no work is admitted."""
        from forescribe.asr.live.stream import LiveStream

        try:
            return LiveStream(self._ready(), options, tell)
        except ForescribeError as error:
            raise ApiError.of(error, param="session") from error

    def _ready(self) -> Session:
        if not self.open or self.session is None:
            raise ApiError("not_ready", f"the server is {self.state}")
        return self.session

    # -- on the engine's thread -------------------------------------------------------------------

    def _loaded_session(self) -> Session:
        with loading():
            assert self._load is not None, "a front end has no thread"
            transcriber = self._load()
            from forescribe.asr.decode.session import Session

            return Session(transcriber.context, readers=READERS)

    def _run(self, session: Session) -> None:
        whisper = session.context.whisper
        self._facts = Facts(whisper.tokens, whisper.drafting)
        self.session = session
        self.idle.loaded()
        if self.thread.closed.is_set():  # the end came while it was loaded
            session.close()
        if self.state == "loading":
            self.state = "ready"
            log.info('{"event": "ready"}')
        if self.open:
            session.run()

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


class TranscriptionStream:
    """The listener of a submission: called on the engine's thread, read on the event loop.

    `timeout_s` counts from its creation. `progressed` is called with the seconds that are decoded, `done`
    when the engine is done with the recording. The submitting code sets `cancelled_by`.
    """

    def __init__(
        self,
        observation: Observation,
        timeout_s: float,
        progressed: Callable[[float], None],
        done: Callable[[], None],
    ) -> None:
        self.outcome: Outcome | None = None
        self._observation, self._progressed, self._done = observation, progressed, done
        self._parts: Mailbox[Part | None] = Mailbox(timeout_s)  # at most a recording's windows
        self._cancel: Callable[[], None] | None = None

    # -- on the engine's thread -------------------------------------------------------------------

    def progressed(self, part: Part) -> None:
        self._progressed(part.done_s)
        self._parts.put(part)

    def ended(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        try:
            if outcome is not None:
                self._observation.ended(outcome)
        finally:
            self._done()
            self._parts.put(None)

    # -- on the event loop ------------------------------------------------------------------------

    def cancelled_by(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    async def next(self) -> Part | None:
        """The next part; None at the end, when `outcome` is set.

        Raises ApiError if the recording fails or takes too long.
        """
        part = await self._parts.next()
        if part is None:
            self._cancel = None
            assert self.outcome is not None  # a reader that has cancelled does not read on
            if self.outcome.error is not None:
                raise ApiError.of(self.outcome.error) from self.outcome.error
        return part

    @property
    def transcript(self) -> Transcript:
        """The transcript, once `next` has said that it is there."""
        assert self.outcome is not None and self.outcome.transcript is not None
        return self.outcome.transcript

    def cancel(self) -> None:
        """Free its slots before the engine's next round."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None


class Observation:
    """What is told of one recording, from the time when it was queued."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self.metrics, self.tracing, self.phases = metrics, tracing, tracing.phases()
        self._place, self._request_id = place(), CURRENT.get()
        self._queued_ns = time.time_ns()

    def ended(self, outcome: Outcome) -> None:
        """Count, log and trace what the engine has done."""
        ended_ns, wall_s = time.time_ns(), outcome.wall_s
        wait_s = max(0.0, (ended_ns - self._queued_ns) / 1e9 - wall_s)
        self.metrics.ended(outcome)
        self.metrics.took("wait", wait_s)
        self.metrics.took("transcribe", wall_s)
        facts: dict[str, object] = {"request_id": self._request_id, "wait_s": round(wait_s, 3)}
        traced: dict[str, Value] = {}
        if outcome.error is not None:
            facts["error"] = traced["error_type"] = outcome.error.code
        elif outcome.transcript is not None:
            audio_s, stats = outcome.transcript.duration, outcome.transcript.stats
            traced = {name: cast(Value, stats[name]) for name in TRACED}
            facts |= {
                "audio_s": round(audio_s, 3),
                "wall_s": round(wall_s, 3),
                "x_real_time": round(audio_s / wall_s, 2) if wall_s > 0 else None,
                "windows": stats["windows"],
                "tokens": stats["tokens"],
                "acceptance_rate": stats["acceptance_rate"],
                "fallbacks": sum(d.tried > 0 for d in outcome.decoded),
            }
        report("recording", **facts)
        began_ns = self._queued_ns + round(1e9 * wait_s)
        self.tracing.record("queue", self._queued_ns, began_ns, parent=self._place)
        span = self.tracing.record("transcribe", began_ns, ended_ns, parent=self._place, **traced)
        self.tracing.record_phases(self.phases, span)


@dataclass(frozen=True)
class Facts:
    """What requests are checked against: the model's special tokens, which a front end does not know, and
    whether something drafts."""

    tokens: SpecialTokens | None
    drafting: bool


def load_transcriber(settings: Settings) -> Transcriber:
    """The speech model of the settings."""
    from forescribe.asr.decode.transcriber import Transcriber

    transcriber = Transcriber.load(
        settings.model,
        settings.draft,
        language=settings.language,
        **settings.load_arguments(),
    )
    log_engine(
        SPEECH_MODEL,
        transcriber.context.forward,
        asked=settings.engine,
        device=transcriber.whisper.device.kind,
    )
    return transcriber


def load_diarizer(settings: Settings) -> Diarizer:
    """The diarizer of the settings."""
    from forescribe.diarize.engines import registry

    network = not settings.local_files_only
    return registry.load(settings.diarizer, device=settings.device, network=network)


def _discard(samples: Future[DecodedFile]) -> None:
    """Close samples whose request was cancelled."""
    if not samples.cancelled() and samples.exception() is None:
        samples.result().close()
