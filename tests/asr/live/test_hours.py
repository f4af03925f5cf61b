"""Hours of live audio by a clock of the test: what does not grow, drift or get lost.

Passes are scripted: they take time and write nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forescribe.asr.decode.sources import Kept
from forescribe.asr.live import stream as live_stream
from forescribe.asr.live.events import (
    Committed,
    Completed,
    Event,
    Hypothesis,
    LiveOptions,
    TurnDetection,
)
from forescribe.asr.live.item import Pass
from forescribe.asr.live.stream import STEP, LiveStream
from forescribe.asr.segment.vad import FRAME
from forescribe.asr.segment.windows import MAX_SAMPLES

RATE = 16_000
SUBMISSION = {"language": "en", "language_probability": 1.0, "kept": lambda _: Kept()}


class Loud:
    """A detector: what is not silence is a voice."""

    def stream(self) -> Loud:
        return self

    def probabilities(self, samples: np.ndarray) -> np.ndarray:
        return samples[::FRAME].astype(np.float32)  # levels are 0 and 1


@dataclass
class Engine:
    """One engine for all streams, as their session. A pass takes `decode_s`; one follows the other."""

    decode_s: float = 0.1
    now_s: float = 0.0
    free_s: float = 0.0
    began_s: list[float] = field(default_factory=list)
    decoded: int = 0  # samples of final windows
    _under_way: list[tuple[float, int, Pass]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)
    context: Any = field(default_factory=lambda: SimpleNamespace(voice_detector=Loud, whisper=None))

    def begin(self, one: Pass) -> None:
        one.submission = SimpleNamespace(**SUBMISSION, of=one)  # type: ignore[assignment]
        self.began_s.append(self.now_s)
        self.free_s = max(self.free_s, self.now_s) + self.decode_s
        heapq.heappush(self._under_way, (self.free_s, next(self._numbers), one))

    def cancel(self, submission: Any) -> None:
        self._under_way = [item for item in self._under_way if item[2] is not submission.of]
        heapq.heapify(self._under_way)

    def until(self, now_s: float) -> None:
        """End the passes that have had their time."""
        while self._under_way and self._under_way[0][0] <= now_s:
            self.now_s, _, one = heapq.heappop(self._under_way)
            if one.kind != "tentative":
                self.decoded += sum(window.length for window in one.windows)
            said: Any = SimpleNamespace(decoded=(), error=None, transcript="")
            one.ended(said)
        self.now_s = now_s


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    def bound(options: Any, context: Any) -> Any:
        return SimpleNamespace(context=context, tentative=None, final=None)

    monkeypatch.setattr(live_stream.Bindings, "of", bound)
    monkeypatch.setattr(Pass, "start", lambda one, session, *_: session.begin(one))
    return Engine()


def talk(engine: Engine, told: list[Event], options: LiveOptions) -> LiveStream:
    return LiveStream(engine, options, told.append, clock=lambda: engine.now_s)  # type: ignore[arg-type]


def fed(engine: Engine, *streams: LiveStream, samples: np.ndarray, chunk_s: float = 0.5) -> None:
    """At the pace of the clock."""
    size = round(chunk_s * RATE)
    for at in range(0, len(samples), size):
        engine.until(engine.now_s + chunk_s)
        for stream in streams:
            stream.feed(samples[at : at + size])


def speech(seconds: float, *, every_s: float = 0.0, lasting_s: float = 0.0) -> np.ndarray:
    """Speech throughout or, with `every_s`, for `lasting_s` at the end of each such time."""
    found = np.ones(round(seconds * RATE), np.float32)
    if every_s:
        found[(np.arange(len(found)) / RATE) % every_s < every_s - lasting_s] = 0
    return found


def lags(told: list[Event]) -> list[float]:
    return [event.lag_s for event in told if isinstance(event, Hypothesis)]


def test_under_load_steps_grow_by_themselves_and_return(engine: Engine) -> None:
    """Four streams at an engine that takes 0.8 s for a decode, three times as long as it may: each is decoded
    every 3.2 s instead of 1 s, with the newest samples. Lag does not grow, and once there is time for it,
    steps are as asked for."""
    told: list[list[Event]] = [[] for _ in range(4)]
    streams = [talk(engine, one, LiveOptions()) for one in told]
    engine.decode_s = 0.8
    fed(engine, *streams, samples=speech(120))
    for one in told:
        found = lags(one)
        assert len(found) >= 25 and max(found) <= 4 * (0.8 + 0.8) + 0.5
        assert np.mean(found[-10:]) <= np.mean(found[5:15]) + 0.1, "it does not grow"
        assert np.diff(found[5:]).mean() == pytest.approx(0, abs=0.1)
    engine.decode_s = 0.1
    fed(engine, *streams, samples=speech(10))
    before = [len(lags(one)) for one in told]
    fed(engine, *streams, samples=speech(20))
    for stream, one, earlier in zip(streams, told, before, strict=True):
        assert len(lags(one)) - earlier in (18, 19, 20, 21) and lags(one)[-1] <= 0.5
        stream.finish()
    engine.until(engine.now_s + 60)
    assert engine.decoded == 4 * 150 * RATE, "every sample has its final window"
    assert all(isinstance(one[-1], Completed) for one in told)


MINUTES = pytest.mark.parametrize("minutes", [5, pytest.param(60, marks=pytest.mark.nightly)])


@MINUTES
def test_turns_have_the_times_of_the_audio_to_the_end(engine: Engine, minutes: int) -> None:
    told: list[Event] = []
    stream = talk(engine, told, LiveOptions(turns=TurnDetection(silence_s=0.5)))
    for _ in range(minutes):
        fed(engine, stream, samples=speech(60, every_s=6, lasting_s=2.5))
        assert len(stream._waiting) < STEP and len(stream._before) <= 0.3 * RATE
        assert stream._item is None or stream._item.length < 4 * RATE
        assert len(stream._ending) <= 1
    stream.finish()
    engine.until(engine.now_s + 10)
    items = [event for event in told if isinstance(event, Committed)]
    assert len(items) == 10 * minutes == len([e for e in told if isinstance(e, Completed)])
    early = [item.start_s - (6 * n + 3.5) for n, item in enumerate(items)]
    assert max(early) - min(early) <= FRAME / RATE and early[-1] == pytest.approx(-0.3, abs=0.04)
    late = [item.end_s - (6 * n + 6) for n, item in enumerate(items)]
    assert min(late) >= 0 and max(late[1:-1]) <= 0.5 + STEP / RATE
    assert 0 < max(lags(told)) < 0.21


@MINUTES
def test_one_long_item_keeps_its_last_minute(engine: Engine, minutes: int) -> None:
    told: list[Event] = []
    stream = talk(engine, told, LiveOptions())
    for _ in range(minutes):
        fed(engine, stream, samples=speech(60, every_s=20, lasting_s=18))
        item = stream._item
        assert item is not None and item._cutter.held <= 3 * MAX_SAMPLES
        assert not item._certain and len(item._tentative) <= 3 and len(item._spans) <= 3
    assert len(item._silent) <= 3 * minutes, "silence is remembered, not kept"
    assert max(lags(told)) < 0.21 and len(engine.began_s) <= minutes * 60
    assert stream.behind_s <= 1
    stream.finish()
    engine.until(engine.now_s + 10)
    (done,) = (event for event in told if isinstance(event, Completed))
    assert done.start_s == 0 and engine.decoded == 60 * minutes * RATE
