"""A live stream: its items have the transcripts of uploads, whatever was guessed while they were spoken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import WhisperForConditionalGeneration

from forescribe.asr.audio.reading import read_audio
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.options import Guards, Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import AudioError, CapacityError, UsageError
from forescribe.asr.live import item as live_item
from forescribe.asr.live.events import (
    Committed,
    Completed,
    Delta,
    Event,
    Failed,
    Hypothesis,
    LiveOptions,
    SpeechStarted,
    SpeechStopped,
    TurnDetection,
)
from forescribe.asr.live.stream import LiveStream
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative.device import choose
from forescribe.speculative.requests import Beams, Request
from tests.asr.decode.ways import SOON, Ear, running
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders
from tests.asr.recordings import cut

pytestmark = pytest.mark.usefixtures("encoded_once")

RATE = 16_000
ALL = Guards(compression_ratio=None, logprob=None, no_speech=None, temperatures=(0.0,))
OPTIONS = Options(language="de", guards=ALL)
"""Random weights write what the thresholds would reject."""


@dataclass
class Heard:
    """What a stream tells."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, item: int) -> str:
        return "".join(delta.text for delta in self.of(Delta) if delta.item == item)


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory) -> Transcriber:
    """Random weights: no words, but tokens that depend on all that was heard."""
    target = folders.write(tmp_path_factory.mktemp("pair") / "target", max_target_positions=40)
    WhisperForConditionalGeneration.from_pretrained(target).save_pretrained(target)
    whisper = load(Pair(target), choose("cpu"))
    return Transcriber(whisper, batch=3, gamma=0, detector=EnergyDetector())


@pytest.fixture
def session(transcriber: Transcriber) -> Iterator[Session]:
    with running(Session(transcriber.context)) as one:
        yield one


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    rng, t = np.random.default_rng(seed), np.arange(round(RATE * seconds))
    tone = np.sin(t * rng.uniform(0.02, 0.3)) * rng.uniform(0.1, 0.5)
    return (tone + 0.1 * rng.standard_normal(len(t))).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(RATE * seconds), np.float32)


def fed(stream: LiveStream, samples: np.ndarray, chunk: int, *, wait: bool = True) -> None:
    for at in range(0, len(samples), chunk):
        stream.feed(samples[at : at + chunk])
        if wait:
            assert stream.wait(SOON, idle=True)


def ended(stream: LiveStream) -> None:
    stream.finish()
    assert stream.wait(SOON)


def plain(transcript: Any) -> dict[str, Any]:
    """A transcript without what rounds count and round differently."""
    found = transcript.to_dict()
    for segment in found["segments"]:
        for name in ("avg_logprob", "no_speech_prob"):
            segment[name] = None
    return {name: value for name, value in found.items() if name not in ("stats", "settings")}


def uploaded(session: Session, samples: np.ndarray, options: Options) -> dict[str, Any]:
    ear = Ear()
    session.submit((samples, RATE), options, ear)
    outcome = ear.outcome()
    assert outcome is not None and outcome.transcript is not None
    return plain(outcome.transcript)


@pytest.mark.parametrize(
    ("step_s", "chunk", "words"), [(0.3, 160, False), (1.0, 4_001, True), (2.0, 80_000, False)]
)
def test_an_item_has_the_transcript_of_an_upload(
    session: Session, step_s: float, chunk: int, words: bool
):
    samples = np.concatenate([silence(3), sound(33, 1), silence(4), sound(6.01, 2)])
    options, heard = replace(OPTIONS, words=words), Heard()
    stream = LiveStream(session, LiveOptions(options, step_s=step_s), heard)
    fed(stream, samples, chunk, wait=chunk > 1_000)
    ended(stream)
    (completed,) = heard.of(Completed)
    assert plain(completed.transcript) == uploaded(session, samples, options)
    if chunk > 1_000:  # else the samples come faster than they are decoded
        assert len(heard.of(Hypothesis)) == stream.stats.tentative_passes >= 8


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.tuples(st.booleans(), st.floats(0.05, 4)), min_size=1, max_size=3),
    chunk=st.integers(100, 60_000),
    cut=st.floats(0, 1),
)
def test_items_are_together_all_samples(
    session: Session, parts: list[tuple[bool, float]], chunk: int, cut: float
):
    samples = np.concatenate(
        [sound(length, n) if loud else silence(length) for n, (loud, length) in enumerate(parts)]
    )
    heard, middle = Heard(), round(cut * len(samples))
    stream = LiveStream(session, LiveOptions(OPTIONS), heard)
    fed(stream, samples[:middle], chunk, wait=False)
    committed = stream.commit()
    assert (committed is None) == (middle < RATE // 10)
    fed(stream, samples[middle:], chunk, wait=False)
    ended(stream)
    starts = [e.start_s for e in heard.of(Committed)] + [len(samples) / RATE]
    ends = [0.0] + [e.end_s for e in heard.of(Committed)]
    assert starts == pytest.approx(ends)
    assert sorted(e.item for e in heard.of(Completed)) == list(range(1, len(starts)))
    for event, end in zip(heard.of(Committed), heard.of(Committed), strict=True):
        own = samples[round(RATE * event.start_s) : round(RATE * end.end_s)]
        (completed,) = (c for c in heard.of(Completed) if c.item == event.item)
        assert plain(completed.transcript) == uploaded(session, own, OPTIONS)
        if completed.contradicted == 0:
            assert heard.text(event.item).split() == completed.transcript.text.split()


def spoken(seconds: float) -> np.ndarray:
    """A person dictates."""
    return read_audio(Path("samples/memo.flac"))[: round(RATE * seconds)]


@pytest.fixture(scope="module")
def words() -> Iterator[Session]:
    """A model that writes words."""
    with running(
        Session(Transcriber.load("tiny.en", batch=2, gamma=0, beam_size=1).context)
    ) as one:
        yield one


def hypotheses(session: Session) -> tuple[list[tuple[str, str]], LiveStream]:
    heard = Heard()
    stream = LiveStream(session, LiveOptions(step_s=0.9), heard)
    fed(stream, spoken(5), 4_096)
    ended(stream)
    assert len(heard.of(Completed)) == 1
    return [(e.committed, e.tail) for e in heard.of(Hypothesis)], stream


def test_a_guess_changes_nothing_but_the_rounds(words: Session, monkeypatch: pytest.MonkeyPatch):
    expected, stream = hypotheses(words)
    assert len(expected) >= 4 and all(committed or tail for committed, tail in expected[1:])
    right, tokens, rounds = live_item.guess_from, words.context.whisper.tokens, {}
    bad = (tokens.end, tokens.timestamp_begin + 5, *(1000,) * 300)
    for name, poisoned in (
        ("none", lambda whisper, decoded: ()),
        ("right words, then others", lambda whisper, decoded: (*right(whisper, decoded), *bad)),
    ):
        monkeypatch.setattr(live_item, "guess_from", poisoned)
        found, other = hypotheses(words)
        assert found == expected, name
        rounds[name] = other.stats.tentative_rounds
    assert stream.stats.tentative_rounds < 0.7 * rounds["none"]
    assert rounds["right words, then others"] < 0.7 * rounds["none"]


def test_an_ended_item_does_not_wait_for_its_tentative_windows(words: Session):
    """The pass is given up, and what was written before is still the guess of the last one."""
    rounds = []
    for wait, guesses in ((True, True), (False, True), (False, False)):
        heard = Heard()
        stream = LiveStream(words, LiveOptions(step_s=0.9, guesses=guesses), heard)
        fed(stream, spoken(4), 4_096)
        passes = stream.stats.tentative_passes
        stream.feed(spoken(5)[round(RATE * 4) :])
        assert stream._item.current is not None
        if wait:
            assert stream.wait(SOON, idle=True)
        ended(stream)
        (completed,) = heard.of(Completed)
        assert plain(completed.transcript) == uploaded(words, spoken(5), LiveOptions().options)
        assert stream.stats.tentative_passes == passes + wait
        rounds.append(stream.stats.rounds - stream.stats.tentative_rounds)
    assert rounds[0] < rounds[1] < rounds[2]


def test_only_the_last_pass_of_an_item_is_searched_with_beams(
    words: Session, monkeypatch: pytest.MonkeyPatch
):
    """By the default of the bundled model; what is shown before is the most probable text."""
    one = Transcriber(words.context.whisper, batch=2, gamma=0)
    submit, asked, heard = one.engine.submit, list[Request](), Heard()
    monkeypatch.setattr(
        one.engine, "submit", lambda request: (asked.append(request), submit(request))
    )
    samples, _ = cut("memo.flac", (20, 25))
    with running(Session(one.context)) as session:
        stream = LiveStream(session, LiveOptions(step_s=1.5), heard)
        fed(stream, samples, 4_096)
        tentative = len(asked)
        ended(stream)
        last = len(asked)
        expected = uploaded(session, samples, LiveOptions().options)
    (completed,) = heard.of(Completed)
    assert plain(completed.transcript) == expected
    assert completed.transcript.settings["beam_size"] == 5
    assert "are worn" in completed.transcript.text
    assert tentative >= stream.stats.tentative_passes == 3
    assert {request.beams for request in asked[:tentative]} == {None}
    assert last > tentative and {request.beams for request in asked[tentative:]} == {Beams(5)}
    assert heard.of(Hypothesis)[-1].committed or heard.of(Hypothesis)[-1].tail


def test_words_are_told_while_they_are_spoken(words: Session):
    heard = Heard()
    stream = LiveStream(words, LiveOptions(step_s=0.5, delay="low"), heard)
    fed(stream, spoken(6), 4_096)
    early = heard.text(1)
    ended(stream)
    (completed,) = heard.of(Completed)
    assert len(early.split()) >= 8 and completed.contradicted <= 1
    assert heard.text(1).startswith(early)
    if not completed.contradicted:
        assert heard.text(1).split()[: len(early.split())] == early.split()


def test_turns_begin_before_a_voice_and_end_in_silence(session: Session):
    heard = Heard()
    stream = LiveStream(session, LiveOptions(OPTIONS, turns=TurnDetection(silence_s=0.6)), heard)
    samples = np.concatenate(
        [silence(2), sound(2.2, 1), silence(0.4), sound(1, 2), silence(3), sound(1.5, 3)]
    )
    fed(stream, samples, 1_000)
    ended(stream)
    started, stopped = heard.of(SpeechStarted), heard.of(SpeechStopped)
    assert [e.item for e in started] == [1, 2] and [e.item for e in stopped] == [1]
    assert started[0].at_s == pytest.approx(1.7, abs=0.1)
    assert stopped[0].at_s == pytest.approx(6.2, abs=0.3)
    assert started[1].at_s == pytest.approx(8.3, abs=0.1)
    committed = heard.of(Committed)
    assert [(e.start_s, e.end_s) for e in committed] == [
        (started[0].at_s, stopped[0].at_s),
        (started[1].at_s, len(samples) / RATE),
    ]
    for event, completed in zip(committed, heard.of(Completed), strict=True):
        own = samples[round(RATE * event.start_s) : round(RATE * event.end_s)]
        assert plain(completed.transcript) == uploaded(session, own, OPTIONS)


def test_a_turn_waits_for_the_end_of_a_sentence(session: Session):
    """The words of random weights end no sentence."""
    samples = np.concatenate([sound(1.5, 1), silence(1.5), sound(1.5, 2), silence(3)])
    for eagerness, items in ((None, 2), ("high", 1)):
        heard = Heard()
        turns = TurnDetection(eagerness=eagerness)
        stream = LiveStream(session, LiveOptions(OPTIONS, turns=turns), heard)
        fed(stream, samples, 4_000)
        ended(stream)
        assert len(heard.of(Completed)) == items


def test_many_streams_share_the_rows_with_uploads(session: Session):
    heard = [Heard() for _ in range(4)]
    streams = [LiveStream(session, LiveOptions(OPTIONS), one) for one in heard]
    ear = Ear()
    session.submit((sound(20, 9), RATE), OPTIONS, ear)

    def speak(number: int) -> None:
        fed(streams[number], sound(5, number), 3_200, wait=False)
        ended(streams[number])

    threads = [threading.Thread(target=speak, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    for number, one in enumerate(heard):
        (completed,) = one.of(Completed)
        expected = uploaded(session, sound(5, number), OPTIONS)
        assert plain(completed.transcript) == expected
    assert ear.outcome().transcript is not None


def test_nobody_waits_for_a_chunk_of_minutes(session: Session):
    """It is stopped in the middle: the engine goes on, and the next step finds what it has answered."""
    heard, middle, go_on, told, calls = Heard(), threading.Event(), threading.Event(), [], count()

    def clock() -> float:
        if threading.current_thread() is feeder:
            if (call := next(calls)) == 4:
                middle.set()
                assert go_on.wait(SOON)
            elif call > 4:
                told.append(len(heard.of(Hypothesis)))
        return time.monotonic()

    stream = LiveStream(session, LiveOptions(OPTIONS, step_s=0.3), heard, clock=clock)
    feeder = threading.Thread(target=stream.feed, args=(sound(60),))
    feeder.start()
    assert middle.wait(SOON)
    try:
        for seed in range(3):  # the pass that the chunk has begun ends meanwhile
            uploaded(session, sound(1, seed), OPTIONS)
        assert stream.behind_s < 60
    finally:
        go_on.set()
        feeder.join(SOON)
    assert told[1] == 1 and len(told) > 200
    stream.cancel()


def test_what_is_cleared_or_cancelled_is_not_told(session: Session):
    heard = Heard()
    stream = LiveStream(session, LiveOptions(OPTIONS), heard)
    fed(stream, sound(2), 4_096)
    stream.clear()
    told = len(heard.events)
    fed(stream, sound(2, 1), 4_096)
    ended(stream)
    (completed,) = heard.of(Completed)
    assert completed.item == 2 and told
    assert plain(completed.transcript) == uploaded(session, sound(2, 1), OPTIONS)

    other = Heard()
    stream = LiveStream(session, LiveOptions(OPTIONS), other)
    fed(stream, sound(2), 4_096, wait=False)
    stream.cancel()
    stream.feed(sound(1))
    stream.finish()
    assert stream.wait(SOON) and not other.of(Completed)


def test_a_closed_session_fails_the_item(transcriber: Transcriber):
    heard = Heard()
    with running(Session(transcriber.context)) as session:
        stream = LiveStream(session, LiveOptions(OPTIONS), heard)
    fed(stream, sound(3), 4_096)
    (failed,) = heard.of(Failed)
    assert isinstance(failed.error, CapacityError) and not heard.of(Completed)
    ended(stream)


def test_an_engine_that_fails_costs_the_item_and_no_other(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    from forescribe.asr.decode import driver as module

    def broken(context: Any, windows: Any, detect: Any, searched: Any) -> Any:
        return [ArithmeticError("the encoder is broken")] * len(windows)

    heard = Heard()
    stream = LiveStream(session, LiveOptions(OPTIONS), heard)
    with monkeypatch.context() as patched:
        patched.setattr(module, "encode_windows", broken)
        fed(stream, sound(3), 4_096)
        assert stream.commit() == 1
        assert stream.wait(SOON)
    (failed,) = heard.of(Failed)
    assert isinstance(failed.error, AudioError) and "broken" in str(failed.error)
    fed(stream, sound(2, 1), 4_096)
    ended(stream)
    assert [e.item for e in heard.of(Completed)] == [2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: LiveOptions(step_s=0.0),
        lambda: LiveOptions(step_s=float("nan")),
        lambda: TurnDetection(silence_s=-1),
        lambda: TurnDetection(silence_s=float("inf")),
    ],
)
def test_impossible_options_are_refused(make: Any):
    with pytest.raises(UsageError):
        make()
