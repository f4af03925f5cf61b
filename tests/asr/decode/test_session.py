"""The one driver: recordings share the slots and none notices the others, in a call and in a session."""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from forescribe.asr.decode import word_timer
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.results import Progress
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber
from forescribe.asr.errors import CapacityError, UsageError
from forescribe.asr.formats.transcript_parts import Segment
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import choose
from forescribe.speculative.errors import BrokenError
from tests.asr.decode.ways import SOON, WAYS, Ear, called, in_session, running
from tests.asr.decode.whole_windows import whole
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders
from tests.asr.recordings import silence, tone, wav

RATE = 16_000
GERMAN = Options(language="de")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Whisper:
    """Random weights: no words, but tokens that depend on all that was heard."""
    target = folders.write(tmp_path_factory.mktemp("pair") / "target", max_target_positions=40)
    WhisperForConditionalGeneration.from_pretrained(target).save_pretrained(target)
    return load(Pair(target), choose("cpu"))


def transcriber(whisper: Whisper, batch: int = 3) -> Transcriber:
    return Transcriber(whisper, batch=batch, gamma=2, detector=EnergyDetector())


def sound(seconds: float, seed: int = 0) -> bytes:
    return wav(tone(seconds, seed))


def written(outcome: Outcome | None) -> list[Segment]:
    """The segments without what rounds differently beside other rows."""
    assert outcome is not None and outcome.transcript is not None
    return [replace(s, avg_logprob=None, no_speech_prob=None) for s in outcome.transcript.segments]


def drained(session: Session) -> None:
    """Nothing of earlier recordings is left anywhere, once the engine's thread has dropped the windows that
    a reader had finished when its recording was cancelled."""
    assert session.idle and not session.reading.readings
    end_s = time.monotonic() + SOON
    while session.reading.ready and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not session.reading.ready and not session.driver.encoded


@pytest.fixture(scope="module")
def alone(whisper) -> Callable[..., Outcome]:
    """A recording by itself, plainly decoded in a call."""
    one = Transcriber(whisper, batch=1, gamma=0, detector=EnergyDetector())

    def decode(source: bytes, options: Options = GERMAN) -> Outcome:
        return next(one.transcribe([source], options))

    return decode


# In a call and in a session


@WAYS
@pytest.mark.parametrize("full_at", [2, None], ids=["out of memory", "decoded"])
def test_what_a_recording_has_made_is_freed_with_its_outcome(
    whisper, monkeypatch, way, full_at
) -> None:
    """Without the garbage collector: on a device, encoder states that wait for it are memory that the next
    recording lacks."""
    one, made, encode = transcriber(whisper, batch=1), [], Whisper.encode

    def kept(self, features):
        if len(made) == full_at:
            raise torch.OutOfMemoryError("planted")
        states = encode(self, features)
        made.append([weakref.ref(each.target) for each in states])
        return states

    monkeypatch.setattr(Whisper, "encode", kept)
    gc.collect()
    gc.disable()
    try:
        keeping = replace(GERMAN, keep_encoder_states=True)
        outcomes = way(one, [sound(65, 1), b"no sound"], keeping)
        assert isinstance(outcomes[0].error, CapacityError) is (full_at is not None)
        assert outcomes[1].error is not None
        del outcomes
        assert len(made) >= 2 and all(ref() is None for states in made for ref in states)
    finally:
        gc.enable()


def test_recordings_together_are_what_each_is_alone(whisper, alone) -> None:
    """Submitted from any thread."""
    sources = [sound(2, 1), sound(45, 2), wav(silence(20)), sound(7, 3), sound(33, 4)]
    ears = [Ear() for _ in sources]
    with running(Session(transcriber(whisper).context)) as session:
        with pytest.raises(UsageError):
            session.submit(sound(1), Options(language="tlh"), Ear())
        for source, ear in zip(sources, ears, strict=True):
            threading.Thread(target=session.submit, args=(source, GERMAN, ear)).start()
        outcomes = [ear.outcome() for ear in ears]
        drained(session)
    for source, ear, outcome in zip(sources, ears, outcomes, strict=True):
        expected = alone(source)
        assert written(outcome) == written(expected)
        assert outcome.transcript.coverage == expected.transcript.coverage
        assert "".join(part.text for part in ear.parts).strip() == outcome.transcript.text
        assert [d.index for d in outcome.decoded] == sorted(d.index for d in outcome.decoded)


@pytest.mark.parametrize(("way", "batches"), [(called, [2, 1]), (in_session, [1, 2])])
def test_words_of_a_call_are_timed_together_and_those_of_a_session_by_recording(
    whisper, monkeypatch, way, batches
) -> None:
    """The short recording ends between the two windows of the long one. In a call it takes the waiting window
    along; in a service no upload waits for the words of another."""
    seen, real = [], word_timer.token_times

    def counted(whisper, utterances, beside):
        seen.append(len(utterances))
        return real(whisper, utterances, beside)

    monkeypatch.setattr(word_timer, "token_times", counted)
    whole(monkeypatch)
    one = transcriber(whisper)
    monkeypatch.setattr(one.engine, "step", together(one.engine, 3))
    way(one, [sound(45, 2), sound(2, 1)], Options(language="de", words=True))
    assert seen == batches


def together(engine, count: int) -> Callable[[], list]:
    """A step that returns results only when it has `count` of them, first windows first."""
    step, held = engine.step, list()

    def stepped() -> list:
        held.extend(step())
        if len(held) < count:
            return []
        results, held[:] = sorted(held, key=lambda result: result.request.tag.window.start), []
        return results

    return stepped


@pytest.mark.failing_drafts
@WAYS
def test_a_draft_that_fails_costs_no_word(whisper, monkeypatch, way) -> None:
    one, options = transcriber(whisper), Options(language="de", guards=None)

    def fail(rows, gamma):
        raise RuntimeError("the draft")

    (expected,) = way(one, [sound(2, 18)], options)
    monkeypatch.setattr(one.engine.drafter, "propose", fail)
    (outcome,) = way(one, [sound(2, 18)], options)
    told: list[Progress] = []
    list(one.transcribe([sound(2, 18)], options, told.append))
    assert [str(progress.draft_error) for progress in told] == ["the draft"]
    assert written(outcome) == written(expected)
    notices = {notice.code: notice.message for notice in outcome.transcript.warnings}
    assert (
        "drafting failed: RuntimeError: the draft; the text is complete" in notices["draft_failed"]
    )
    assert "draft_failed" not in {notice.code for notice in expected.transcript.warnings}


# In a call


def test_sources_are_pulled_as_rows_become_free(whisper) -> None:
    """As many are open as there are rows; and where no more come, what was pulled ends."""
    pulled, ended, most = [], 0, 0

    def sources() -> Iterator[bytes]:
        nonlocal most
        for seed in range(7):
            pulled.append(seed)
            most = max(most, len(pulled) - ended)
            yield sound(2, seed)

    for _ in transcriber(whisper, batch=2).transcribe(sources(), GERMAN):
        ended += 1
    assert (len(pulled), ended) == (7, 7)
    assert most <= 3  # one more whose outcome the last step has made


# In a session


def test_what_is_said_on_the_way_is_in_order_and_has_the_tokens_of_its_text(whisper) -> None:
    ear = Ear()
    with running(Session(transcriber(whisper).context)) as session:
        session.submit(sound(100, 6), GERMAN, ear)
        outcome = ear.outcome()
    assert outcome is not None and outcome.transcript is not None
    assert len(ear.parts) > 1
    windows = [segment.window for part in ear.parts for segment in part.segments]
    assert windows == sorted(windows)
    done = [part.done_s for part in ear.parts]
    assert done == sorted(done) and done[-1] == outcome.transcript.duration
    tokens = [token for part in ear.parts for token in part.tokens]
    written = b"".join(token.data for token in tokens).decode(errors="replace")
    assert written == "".join(segment.text for segment in outcome.transcript.segments)
    assert all(token.logprob <= 0 for token in tokens)


def test_a_short_recording_passes_a_long_one_window_by_window(whisper) -> None:
    """The long one was first, and has eight windows; the short one's only window is due before all
    but those that the engine and the encoder had already taken."""
    session = Session(transcriber(whisper, batch=2).context)
    order: list[str] = []
    long_ear, short_ear = (
        Ear(at_end=lambda: order.append("long")),
        Ear(at_end=lambda: order.append("short")),
    )
    begun = threading.Event()
    progressed = long_ear.progressed
    long_ear.progressed = lambda part: (progressed(part), begun.set())  # type: ignore[method-assign]
    with running(session):
        session.submit(sound(240, 8), GERMAN, long_ear)
        assert begun.wait(SOON)
        session.submit(sound(2, 9), GERMAN, short_ear)
        short_ear.outcome()
        said = sum(len(part.segments) > 0 for part in long_ear.parts)
        long_ear.outcome()
    assert order == ["short", "long"]
    assert said < 6


def test_a_long_recording_is_due_again_after_as_long_as_it_has_run(whisper) -> None:
    """No stream of short ones can hold it up for ever: a window's due time does not move."""
    session = Session(transcriber(whisper).context, clock=lambda: 100.0)
    long = session.submit(sound(70, 10), GERMAN, Ear())
    session.clock = lambda: 125.0
    first = session.submit(sound(2, 11), GERMAN, Ear())
    session.clock = lambda: 150.0
    late = session.submit(sound(2, 12), GERMAN, Ear())
    while session.reading.readings:
        session.reading.read_window()
    turns = sorted(session.reading.ready)
    assert [ready.recording for ready in turns] == [long, first, long, late, long]
    assert [ready.due_s for ready in turns] == sorted(ready.due_s for ready in turns)


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_silence_is_not_read_on_after_the_end(whisper, how) -> None:
    """An hour of it makes no window: a reader would be held until the end of the file."""
    begun, go, blocks, ear = threading.Event(), threading.Event(), [], Ear()

    def tap(samples) -> None:
        blocks.append(len(samples))
        begun.set()
        assert go.wait(SOON)

    with running(Session(transcriber(whisper).context)) as session:
        submission = session.submit(wav(silence(3600)), GERMAN, ear, tap=tap)
        assert begun.wait(SOON)
        session.cancel(submission) if how == "cancelled" else session.close()
        end_s = time.monotonic() + SOON
        while not submission.stopped and time.monotonic() < end_s:
            time.sleep(0.01)
        go.set()
        outcome = ear.outcome()
    assert len(blocks) == 1
    if how == "cancelled":
        assert outcome is None
    else:
        assert outcome is not None and outcome.error is not None
        assert outcome.error.message == "the service is stopping"
    drained(session)


class Watched(io.BytesIO):
    """A file that notes who touches it too late."""

    told = False
    late = 0

    def read(self, size: int | None = -1) -> bytes:
        self.late += self.told
        return super().read(size)

    def readinto(self, buffer) -> int:
        self.late += self.told
        return super().readinto(buffer)

    def seek(self, place: int, whence: int = 0) -> int:
        self.late += self.told
        return super().seek(place, whence)


def test_a_source_is_left_alone_once_its_end_was_told(whisper) -> None:
    with running(Session(transcriber(whisper).context)) as session:
        for seed in range(4):
            file, ear = Watched(sound(120, seed)), Ear()
            ear.at_end = partial(setattr, file, "told", True)
            submission = session.submit(file, GERMAN, ear)
            if seed % 2:
                session.cancel(submission)
            outcome = ear.outcome()
            assert (outcome is None) == bool(seed % 2)
            assert file.late == 0
        drained(session)


def test_a_fault_of_the_model_ends_what_is_under_way_and_nothing_later(
    whisper, monkeypatch
) -> None:
    made = transcriber(whisper)
    step, faults = made.engine.step, iter([MemoryError()])

    def faulty():
        for fault in faults:
            raise fault
        return step()

    monkeypatch.setattr(made.engine, "step", faulty)
    first, second = Ear(), Ear()
    with running(Session(made.context)) as session:
        session.submit(sound(2, 18), GERMAN, first)
        failed = first.outcome()
        session.submit(sound(2, 19), GERMAN, second)
        outcome = second.outcome()
    assert failed is not None and failed.error is not None and failed.error.code == "overloaded"
    assert outcome is not None and outcome.transcript is not None


def test_a_session_ends_when_its_device_has_failed(whisper, monkeypatch) -> None:
    """A service that went on would fail every request from then on."""
    made, ear, raised = transcriber(whisper), Ear(), []

    def lost(*args: object, **options: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(made.engine.target, "score", lost)
    monkeypatch.setattr(type(made.engine.device), "synchronize", lost)
    session = Session(made.context)

    def run() -> None:
        try:
            session.run()
        except BrokenError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    session.submit(sound(2, 18), GERMAN, ear)
    outcome = ear.outcome()
    thread.join(SOON)
    assert not thread.is_alive() and "the device cpu has failed: an illegal" in raised[0]
    assert outcome is not None and outcome.error is not None
    with pytest.raises(CapacityError):
        session.submit(sound(2, 18), GERMAN, Ear())


def test_what_is_under_way_when_a_session_closes_is_told_so(whisper) -> None:
    made = transcriber(whisper)
    made.engine.step = lambda: []  # type: ignore[method-assign]  # it never gets on
    session, ears = Session(made.context), [Ear() for _ in range(3)]
    with running(session):
        for ear in ears:
            session.submit(sound(300, 20), GERMAN, ear)
    for ear in ears:
        outcome = ear.outcome()
        assert outcome is not None and outcome.error is not None
        assert outcome.error.code == "overloaded"
    drained(session)
    with pytest.raises(CapacityError):
        session.submit(sound(1), GERMAN, Ear())


def test_a_round_stands_as_long_as_it_takes_and_not_longer(whisper):
    now, seen = [0.0], []
    made = transcriber(whisper)
    session = Session(made.context, clock=lambda: now[0])
    step = made.engine.step

    def slow():
        now[0] += 7
        seen.append(session.standing_s)
        return step()

    made.engine.step = slow
    assert session.standing_s == 0
    with running(session):
        ear = Ear()
        session.submit(io.BytesIO(sound(2)), GERMAN, ear)
        assert ear.done.wait(SOON)
    assert set(seen) == {7.0} and len(seen) > 1
    assert session.standing_s == 0
