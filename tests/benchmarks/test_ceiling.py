"""What audio costs apart from the model, in counts: the same on every machine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from benchmarks import replayed_service as service
from benchmarks.ceiling import called, measured, served, texts
from benchmarks.replay import Replay, Stages
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.model.whisper import Whisper
from forescribe.asr.segment import vad
from tests.docs.pages import ROOT

MEMO = str(ROOT / "samples" / "memo.flac")
OPTIONS = Options(language="en", guards=Guards())

CALLS = {False: (90, 0.9), True: (135, 3.3)}
"""Functions of Python and operators of torch for a token, without and with word times: most of a recording of
30 s are for reading it. 76 and 0.73, 113 and 2.7 were counted."""


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Calls in this thread: of functions of Python, and of operators of torch."""
    counts: Counter[str] = Counter()

    def count(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            counts["python"] += 1
        elif event == "c_call" and str(getattr(called, "__module__", "")).startswith("torch"):
            counts["torch"] += 1

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def loaded() -> Transcriber:
    return Transcriber.load("tiny.en", "none", batch=8, gamma=0, beam_size=1)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Samples that voice activity judges, windows that get features, and calls in the engine's thread."""
    counts: Counter[str] = Counter()
    judge, features, run = vad._SileroStream.probabilities, Whisper.features, Session.run

    def judged(stream: Any, samples: Any) -> Any:
        counts["judged"] += len(samples)
        return judge(stream, samples)

    def featured(whisper: Any, windows: Any, searched: Any = ()) -> Any:
        counts["windows"] += len(windows)
        return features(whisper, windows, searched)

    def counted(session: Session) -> None:
        with counting() as calls:
            run(session)
        counts.update(calls)

    monkeypatch.setattr(vad._SileroStream, "probabilities", judged)
    monkeypatch.setattr(Whisper, "features", featured)
    monkeypatch.setattr(Session, "run", counted)
    return counts


@contextmanager
def in_threads(stages: Stages) -> Iterator[Executor]:
    """Clients that need no process to be loaded."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def pieces(tmp_path: Path, seconds: int, count: int, source: str = MEMO) -> list[str]:
    """Consecutive parts of a sample, as files."""
    samples, rate = soundfile.read(source, dtype="int16", stop=seconds * count * 16_000)
    paths = []
    for number, part in enumerate(np.split(samples, count)):
        paths.append(str(tmp_path / f"{number}.flac"))
        soundfile.write(paths[-1], part, rate)
    return paths


def test_python_calls_for_a_token(loaded: Transcriber) -> None:
    for words, (python, torch) in CALLS.items():
        options = Options(language="en", words=words, guards=Guards())
        with Replay(loaded.context) as replay:
            expected = texts(called(loaded, [MEMO], options))
            replay.free = True
            tokens = sum(len(result.tokens) for result in replay.answers.values())
            with counting() as counts:
                outcomes = called(loaded, [MEMO], options)
            assert tokens > 100
            assert 0 < counts["python"] / tokens < python and 0 < counts["torch"] / tokens < torch
            assert texts(outcomes) == texts(served(loaded, [MEMO], options)) == expected
            assert not replay.asked


def test_an_upload_costs_the_engines_thread_so_many_calls_and_is_judged_once(
    loaded: Transcriber, tmp_path: Path, work: Counter[str]
) -> None:
    with Replay(loaded.context) as replay:
        outcomes = called(loaded, pieces(tmp_path, 10, 3), OPTIONS)
        clips = service.clips_of(outcomes)
        replay.free = True
        work.clear()

        def upload(stages: Stages) -> dict[str, Any]:
            return service.uploaded(loaded, clips, OPTIONS, 2, stages, in_threads)

        expected = {o.name: o.transcript and o.transcript.text for o in outcomes}
        row = measured("uploads", replay, 30.0, expected, upload)
    sent = 4  # the first one twice: what is loaded with it does not count
    assert row.equal and not row.asked
    assert {"engine", "event loop"} <= row.stages.keys() and row.engine_thread_s > 0
    assert work["windows"] == sent
    assert 1 <= work["judged"] / (sent * 10 * 16_000) < 1.1
    assert 0 < work["python"] / sent < 3100 and 0 < work["torch"] / sent < 26  # 2580 and 21


def test_live_streams_cost_so_many_calls_and_passes_for_a_second(
    loaded: Transcriber, tmp_path: Path, work: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, feeding = LiveStream.feed, Counter[str]()

    def counted(stream: LiveStream, samples: Any) -> None:
        with counting() as calls:
            feed(stream, samples)
        feeding.update(calls)

    with Replay(loaded.context) as replay:
        samples = service.samples_of(pieces(tmp_path, 6, 1)) * 2
        told = service.spoken(loaded, samples[:1], OPTIONS, 1)
        replay.free = True
        work.clear()
        monkeypatch.setattr(LiveStream, "feed", counted)
        perform = partial(service.fed, loaded, samples, OPTIONS, 2)
        row = measured("streams", replay, 12.0, {"0": told["0"], "1": told["0"]}, perform)
    assert row.equal and not row.asked and all(told.values())
    assert {"engine", "feeding"} <= row.stages.keys()
    # For a second of audio 1.2 windows are decoded, 4.5 seconds judged, 1650 functions and 25 operators
    # called in the engine's thread, 775 and 64 in that which feeds.
    assert 1 <= work["windows"] / 12 < 1.4
    assert 1 <= work["judged"] / (12 * 16_000) < 5.4
    assert 0 < work["python"] / 12 < 2000 and 0 < work["torch"] / 12 < 30
    assert 0 < feeding["python"] / 12 < 930 and 0 < feeding["torch"] / 12 < 77


def test_what_was_not_kept_is_asked_of_the_model_and_told(
    loaded: Transcriber, tmp_path: Path
) -> None:
    paths = pieces(tmp_path, 5, 1)
    options = replace(OPTIONS, words=True)
    expected = texts(called(loaded, paths, options))
    with Replay(loaded.context) as replay:
        replay.free = True
        row = measured(
            "new", replay, 5.0, expected, lambda _: texts(called(loaded, paths, options))
        )
        again = measured("kept", replay, 5.0, {}, lambda _: texts(called(loaded, paths, options)))
    assert row.equal and row.asked == 2  # the text, and the attention for its words
    assert not again.equal and again.asked == 0
    assert "2 ANSWERS WERE NOT KEPT" in row.lines()[0] and "DIFFERS" in again.lines()[0]
