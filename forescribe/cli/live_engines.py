"""What turns the audio of `forescribe listen` into events: a model in this process.

    with LocalEngine(transcriber, options) as engine:
        engine.feed(samples)
        engine.finish()
        while not engine.wait(0.1): ...
        engine.events()

Events are told on other threads and taken by the caller's. The other engine is a server (`live_server`).
Knows nothing of what events are shown on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from forescribe.asr.live.stream import LiveStream
from forescribe.asr.sessions.session import Session
from forescribe.speculative.device import keep_to_one_core

if TYPE_CHECKING:
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.live.events import Event, LiveOptions
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.engines.online import OnlineSpeakers


class LiveEngine(Protocol):
    """Where samples become events; a context manager, which drops at its end what is not told."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def feed(self, samples: Samples) -> None:
        """Take the next samples [T] at 16 kHz. Raises what has ended the engine."""

    def finish(self) -> None:
        """The audio has ended."""

    def wait(self, timeout_s: float, *, idle: bool = False) -> bool:
        """Wait until everything has been told or, if `idle`, until nothing is being decoded; False after
        `timeout_s`. Raises what has ended the engine."""

    def events(self) -> Iterator[Event]:
        """What has been told since the last call."""

    @property
    def behind_s(self) -> float:
        """Seconds of audio that wait for it."""


class LocalEngine:
    """A model in a thread of this process, and in another one the `speakers`, where they are wanted."""

    def __init__(
        self,
        transcriber: Transcriber,
        options: LiveOptions,
        speakers: OnlineSpeakers | None = None,
    ) -> None:
        self._session = Session(transcriber.context, readers=1)
        self._told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._worker = ThreadPoolExecutor(1, "speakers", initializer=keep_to_one_core)
        self._speakers = None
        if speakers is not None:
            from forescribe.diarize.live_speakers import LiveSpeakers

            self._speakers = LiveSpeakers(lambda: speakers, self._told.put, self._worker)
        self._stream = LiveStream(self._session, options, self._speakers or self._told.put)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="the speech model", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._speakers is not None:
            self._speakers.cancel()
        self._stream.cancel()
        self._worker.shutdown(cancel_futures=True)
        self._session.close()
        self._thread.join()

    @property
    def behind_s(self) -> float:
        speakers_s = 0.0 if self._speakers is None else self._speakers.behind_s
        return max(self._stream.behind_s, speakers_s)

    def feed(self, samples: Samples) -> None:
        self._check()
        self._stream.feed(samples)

    def finish(self) -> None:
        self._stream.finish()

    def wait(self, timeout_s: float, *, idle: bool = False) -> bool:
        self._check()
        over = self._stream.wait(timeout_s, idle=idle)
        return over and (idle or self._speakers is None or self._speakers.wait(timeout_s))

    def events(self) -> Iterator[Event]:
        while not self._told.empty():
            yield self._told.get()

    def _run(self) -> None:
        try:
            self._session.run()
        except BaseException as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
