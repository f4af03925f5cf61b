"""A live session of `forescribe listen`: the model that turns audio into events, and the audio from its first
sample to its last word. Knows nothing of how text is shown, and of files.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from forescribe.asr.audio.arriving import BLOCK_S
from forescribe.asr.decode.driver import Session
from forescribe.asr.errors import ForescribeError
from forescribe.asr.live.events import Committed, Completed, Failed
from forescribe.asr.live.stream import LiveStream
from forescribe.speculative.device import keep_to_one_core

if TYPE_CHECKING:
    from forescribe.asr.audio.arriving import Arrival
    from forescribe.asr.batch.interrupts import Stop
    from forescribe.asr.decode.transcriber import Transcriber
    from forescribe.asr.live.events import Event, LiveOptions
    from forescribe.asr.live.record import LiveRecord
    from forescribe.asr.segment.windows import Samples
    from forescribe.diarize.engines.online import OnlineSpeakers

    from .console import Console
    from .live_text import LiveText

GRACE_S = 0.3
"""After Ctrl-C, which ends the program before the pipe too: for what that has still to say."""

FED_S = 15.0
"""Seconds that may wait in the engine; what comes faster waits before it."""


class LiveEngine:
    """Turns samples into events: a model in a thread of this process, and in another one the `speakers`,
    where they are wanted. A context manager, which drops at its end what is not told."""

    def __init__(
        self, transcriber: Transcriber, options: LiveOptions, speakers: OnlineSpeakers | None = None
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

    def __exit__(self, *_: object) -> None:
        if self._speakers is not None:
            self._speakers.cancel()
        self._stream.cancel()
        self._worker.shutdown(cancel_futures=True)
        self._session.close()
        self._thread.join()

    @property
    def behind_s(self) -> float:
        """Seconds of audio that wait for it."""
        speakers_s = 0.0 if self._speakers is None else self._speakers.behind_s
        return max(self._stream.behind_s, speakers_s)

    def feed(self, samples: Samples) -> None:
        """Take the next samples [T] at 16 kHz. Raises what has ended the engine."""
        self._check()
        self._stream.feed(samples)

    def finish(self) -> None:
        """The audio has ended."""
        self._stream.finish()

    def wait(self, timeout_s: float, *, idle: bool = False) -> bool:
        """Wait until everything has been told or, if `idle`, until nothing is being decoded; False after
        `timeout_s`. Raises what has ended the engine."""
        self._check()
        over = self._stream.wait(timeout_s, idle=idle)
        return over and (idle or self._speakers is None or self._speakers.wait(timeout_s))

    def events(self) -> Iterator[Event]:
        """What has been told since the last call."""
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


@dataclass
class LiveSession:
    """The audio from its first sample to its last word. `files`: the text is kept in `record`."""

    console: Console
    arrival: Arrival
    engine: LiveEngine
    record: LiveRecord
    text: LiveText
    stop: Stop
    files: bool
    _spans: dict[int, tuple[float, float]] = field(default_factory=dict)  # of items in completion
    _ended_s: float = 0.0  # where the last of them ends

    def run(self, *, lockstep: bool) -> ForescribeError | None:
        """Feed all audio and show all text; the error that ended the audio, if one did. With `lockstep`
        every step is decoded before the next one is fed."""
        error = None
        try:
            for samples in self._blocks():
                self.record.feed(samples)
                self.engine.feed(samples)
                self._show()
                while not self.engine.wait(BLOCK_S, idle=True) if lockstep else self._must_wait():
                    self._show()
                    if not lockstep:
                        time.sleep(BLOCK_S)
        except ForescribeError as raised:
            error = raised
        finally:
            self.arrival.close()
        try:
            self.engine.finish()
            while not (self.text.closed and not self.files):
                over = self.engine.wait(BLOCK_S)
                self._show()
                if over:
                    break
        except ForescribeError as raised:  # what was told until then is kept
            error = error or raised
            self._show()
            for start_s, end_s in (*self._spans.values(), (self._ended_s, self.record.seconds)):
                self.record.fail(start_s, end_s, raised)
            with suppress(BrokenPipeError):
                self.text.end()
        self.text.erase()
        return error

    def summarise(self) -> None:
        for notice in self.arrival.notices:
            self.console.notice(notice.message)
        if not self.console.quiet:
            turns, audio_s = self.text.turns, self.record.seconds
            said = f"{turns} turn{'s' * (turns != 1)}" if turns else "no speech"
            self.console.rich.print(f"[bold]{audio_s:.1f} s of audio, {said}[/]")

    def _blocks(self) -> Iterator[Any]:
        """The samples, until the audio or somebody ends them; text is shown while none come. What has come by
        then is heard, but not what a sender faster than speech has sent ahead."""
        ends_s = heard_s = math.inf
        for samples in self.arrival.blocks():
            now = time.monotonic()
            if self.stop.requested and ends_s == math.inf:
                ends_s, heard_s = now + GRACE_S, self.arrival.played_s + GRACE_S
            if now >= ends_s:
                self.arrival.close()
            if self.text.closed or self.record.seconds >= heard_s:
                return
            if len(samples):
                yield samples
            else:
                self._show()

    def _must_wait(self) -> bool:
        """Whether the audio comes so much faster than it is decoded that its sender has to wait."""
        return self.engine.behind_s > FED_S and not (self.stop.requested or self.text.closed)

    def _show(self) -> None:
        for event in self.engine.events():
            self._keep(event)
            with suppress(BrokenPipeError):  # `text.closed` ends the session, with its files
                self.text.show(event)

    def _keep(self, event: Event) -> None:
        if isinstance(event, Committed):
            self._spans[event.item] = (event.start_s, event.end_s)
            self._ended_s = event.end_s
        elif isinstance(event, Completed):
            self._spans.pop(event.item, None)
            if self.files:
                self.record.add(event.start_s, event.plain or event.transcript)
            for notice in event.transcript.warnings:
                if notice.code == "speakers_failed":
                    self.text.erase()
                    self.console.notice(notice.message)
        elif isinstance(event, Failed):
            self.record.fail(*self._spans.pop(event.item, (0.0, 0.0)), event.error)
