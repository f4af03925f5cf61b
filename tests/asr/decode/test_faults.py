"""A fault stays where it happened: injected at every stage, in calls and in sessions.

The victim has two windows of speech; the fault is in the second. Whatever the stage, the recordings
beside it are transcribed as if nothing had been, and nothing is left behind.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
import pytest

import forescribe.asr.audio.reading
from forescribe.asr.decode import outcome, recording, word_timer
from forescribe.asr.decode.driver import Session
from forescribe.asr.decode.guards import Guards, Judgement
from forescribe.asr.decode.results import Outcome
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import AudioError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import choose
from tests.asr.decode.ways import WAYS, Ear, called, in_session, running
from tests.asr.decode.whole_windows import judged, whole
from tests.asr.detectors import EnergyDetector
from tests.asr.model import folders
from tests.asr.recordings import wav

RATE = 16_000
MARK = np.float32(0.4375)
"""A sample that only the victim's second window has."""

SECOND = 2
"""The index of that window: the first is speech, then there is silence."""

# Random weights fail every guard: all windows are tried at both temperatures.
GUARDED = Options(words=True, guards=Guards(None, -0.01, None, (0.0, 0.4)))


def tone(seconds: float, seed: int) -> np.ndarray:
    rng, t = np.random.default_rng(seed), np.arange(round(RATE * seconds))
    return (0.3 * np.sin(t * rng.uniform(0.02, 0.3)) + 0.05 * rng.standard_normal(len(t))).astype(
        np.float32
    )


def victim_samples() -> np.ndarray:
    marked = tone(2.5, 3)
    marked[RATE] = MARK
    return np.concatenate([tone(1.5, 2), np.zeros(4 * RATE, np.float32), marked])


BEFORE, VICTIM, AFTER = wav(tone(2, 1)), wav(victim_samples()), wav(tone(3, 4))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Whisper:
    target = folders.write(tmp_path_factory.mktemp("pair") / "target", max_target_positions=24)
    return load(Pair(target), choose("cpu"), network=False)


@pytest.fixture(scope="module")
def shared(whisper) -> Transcriber:
    return Transcriber(whisper, batch=3, gamma=0, detector=EnergyDetector())


def essence(outcome: Outcome) -> tuple:
    made = outcome.transcript
    assert made is not None, outcome.error
    spans = [
        (s.start_sample, s.end_sample, s.tokens, s.text, [(w.text, w.start) for w in s.words or ()])
        for s in made.segments
    ]
    states = [(span.start_sample, span.end_sample, span.state) for span in made.coverage.spans]
    return made.text, spans, states, made.language, [n.code for n in made.warnings]


@pytest.fixture(scope="module", autouse=True)
def whole_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        whole(patch)
        yield


@pytest.fixture(scope="module")
def undisturbed(shared) -> list[Outcome]:
    outcomes = called(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    states = [span.state for span in outcomes[1].transcript.coverage.spans]
    assert states == ["decoded", "silent", "decoded"]
    assert all(outcome.transcript.segments for outcome in outcomes)
    return outcomes


@pytest.fixture
def clean(shared, monkeypatch) -> Iterator[None]:
    """Nothing is in the engine or in memory afterwards."""
    encoded: list[weakref.ref[EncoderStates]] = []
    encode = type(shared.whisper).encode

    def watched(self, features):
        made = encode(self, features)
        encoded.extend(map(weakref.ref, made))
        return made

    monkeypatch.setattr(type(shared.whisper), "encode", watched)
    yield
    monkeypatch.undo()
    (outcome,) = called(shared, [AFTER], Options(language="de"))
    assert outcome.transcript is not None
    assert shared.engine.idle and shared.context.idle
    assert not shared.engine.rows.active.any()
    gc.collect()
    assert encoded and not any(encoder_states() for encoder_states in encoded)


class Planted(RuntimeError):
    """The fault."""


def marked(samples: np.ndarray) -> bool:
    return bool((np.asarray(samples) == MARK).any())


def raises(wrong: Callable[..., bool], real: Callable, error: Exception | None = None) -> Callable:
    """`real`, but a fault where `wrong` says so of its arguments."""

    def planted(*arguments, **named):
        if wrong(*arguments, **named):
            raise error or Planted("planted")
        return real(*arguments, **named)

    return planted


# Each plants its fault: at the victim's second window, or in what is made of the whole.


def in_decoding_audio(one, patch, error=None):
    real = forescribe.asr.audio.reading.Recording._mono
    patch.setattr(
        forescribe.asr.audio.reading.Recording,
        "_mono",
        raises(lambda self, samples: marked(samples), real, error),
    )


class Mel:
    """Features that remember which are the marked window's."""

    def __init__(self, real):
        self.real, self.sums = real, set()

    def __call__(self, windows):
        features = self.real(windows)
        self.sums |= {
            float(row.sum()) for row, w in zip(features, windows, strict=True) if marked(w)
        }
        return features

    def __getattr__(self, name):
        return getattr(self.real, name)

    def heard(self, features) -> bool:
        return any(float(row.sum()) in self.sums for row in features)


def in_the_encoder(one, patch, error=None):
    mel, real = Mel(one.whisper.mel), type(one.whisper).encode
    patch.setitem(vars(one.whisper), "mels", (mel,))
    patch.setattr(
        type(one.whisper), "encode", raises(lambda self, features: mel.heard(features), real, error)
    )


def nan_from_the_encoder(one, patch):
    mel, real = Mel(one.whisper.mel), type(one.whisper).encode

    def encode(self, features):
        return [
            EncoderStates(encoder_states.target * math.nan)
            if mel.heard(row[None])
            else encoder_states
            for row, encoder_states in zip(features, real(self, features), strict=True)
        ]

    patch.setitem(vars(one.whisper), "mels", (mel,))
    patch.setattr(type(one.whisper), "encode", encode)


def memories_of(one, patch) -> Callable[[object], bool]:
    """Whether encoder states are those of the marked window."""
    mel, real = Mel(one.whisper.mel), type(one.whisper).encode
    ids: weakref.WeakSet = weakref.WeakSet()

    def encode(self, features):
        found = real(self, features)
        for row, encoder_states in zip(features, found, strict=True):
            if mel.heard(row[None]):
                ids.add(encoder_states.target)
        return found

    patch.setitem(vars(one.whisper), "mels", (mel,))
    patch.setattr(type(one.whisper), "encode", encode)
    return lambda encoder_states: any(encoder_states.target is own for own in ids)


def in_detecting_the_language(one, patch):
    is_victims, real = memories_of(one, patch), Whisper.detect_language
    patch.setattr(
        Whisper,
        "detect_language",
        raises(lambda self, encoded, among=None: any(map(is_victims, encoded)), real),
    )


def in_prefill(one, patch):
    is_victims, real = memories_of(one, patch), one.engine.target.prefill
    patch.setattr(
        one.engine.target,
        "prefill",
        raises(lambda rows, tokens, states, nodes=None: any(map(is_victims, states)), real),
    )


def in_building_the_request(one, patch):
    real = recording.window_request
    wrong = raises(lambda context, bound, pending, *_, **__: pending.window.index == SECOND, real)
    patch.setattr(recording, "window_request", wrong)


def in_submitting(one, patch):
    real = one.engine.submit
    patch.setattr(
        one.engine, "submit", raises(lambda request: request.tag.window.index == SECOND, real)
    )


def in_guards(one, patch):
    real = recording.answer_of
    wrong = raises(
        lambda whisper, guards, result, *_: result.request.tag.window.index == SECOND, real
    )
    patch.setattr(recording, "answer_of", wrong)


def in_a_retry(one, patch):
    real = one.engine.submit
    hot = raises(lambda r: r.tag.window.index == SECOND and r.temperature > 0, real)
    patch.setattr(one.engine, "submit", hot)


def in_alignment(one, patch):
    wrong = raises(
        lambda _, all_, beside: any(u.length == length() for u in all_), word_timer.token_times
    )
    patch.setattr(word_timer, "token_times", wrong)


def length() -> int:
    """Of the marked window: what no other has."""
    count = len(victim_samples())
    return count - SECOND_START[0]


SECOND_START: list[int] = []


def in_words(one, patch):
    real = word_timer.assemble_words
    wrong = raises(
        lambda tokenizer, language, texts, times, quiet, offset, *rest, **more: offset > 0, real
    )
    patch.setattr(word_timer, "assemble_words", wrong)


def in_figures(one, patch):
    wrong = raises(lambda done, wall: len(done) == 2, outcome.stats)
    patch.setattr(outcome, "stats", wrong)


RECORDING = [in_decoding_audio, in_figures]
WINDOW = [
    in_the_encoder,
    nan_from_the_encoder,
    in_detecting_the_language,
    in_building_the_request,
    in_submitting,
    in_prefill,
    in_guards,
    in_a_retry,
]


def in_turn(plants: list[Callable]) -> pytest.MarkDecorator:
    """Each fault, in a call and in a session in turn: one driver runs both."""
    ways = cycle((called, in_session))
    return pytest.mark.parametrize(
        ("plant", "way"), [*zip(plants, ways, strict=False)], ids=lambda each: each.__name__
    )


@in_turn(RECORDING)
def test_a_fault_in_the_whole_ends_that_recording_only(
    shared, undisturbed, clean, monkeypatch, way, plant
) -> None:
    plant(shared, monkeypatch)
    before, victim, after = way(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    assert victim.transcript is None and victim.error.code == "internal_error"
    assert "Planted: planted" in str(victim.error)
    assert [essence(o) for o in (before, after)] == [essence(undisturbed[i]) for i in (0, 2)]


@in_turn(WINDOW)
def test_a_fault_in_a_window_costs_that_window_only(
    shared, undisturbed, clean, monkeypatch, way, plant
) -> None:
    plant(shared, monkeypatch)
    before, victim, after = way(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    assert [essence(o) for o in (before, after)] == [essence(undisturbed[i]) for i in (0, 2)]
    made, whole = victim.transcript, undisturbed[1].transcript
    assert victim.error is None
    assert [span.state for span in made.coverage.spans] == ["decoded", "silent", "failed"]
    assert "planted" in made.coverage.spans[2].reason or "finite" in made.coverage.spans[2].reason
    assert [n.code for n in made.warnings] == ["failed_windows", "doubtful_text"]
    assert "5.2 to 8.0 s" in made.warnings[0].message
    kept = [segment for segment in whole.segments if segment.window == 0]
    assert [s.tokens for s in made.segments] == [s.tokens for s in kept] != []
    assert made.language == whole.language and made.sample_count == whole.sample_count
    # What is lost adds nothing to the figures: without drafts, every token that is kept takes one round.
    assert made.stats["windows"] == 2 and made.stats["rounds"] == made.stats["tokens"] > 0
    assert (made.stats["drafted"], made.stats["accepted"]) == (0, 0)


@WAYS
@pytest.mark.parametrize("plant", [in_alignment, in_words], ids=lambda plant: plant.__name__)
def test_a_fault_in_word_times_costs_the_times_only(
    shared, undisturbed, clean, monkeypatch, way, plant
) -> None:
    SECOND_START[:] = [undisturbed[1].transcript.coverage.spans[2].start_sample]
    plant(shared, monkeypatch)
    before, victim, after = way(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    assert [essence(o) for o in (before, after)] == [essence(undisturbed[i]) for i in (0, 2)]
    made, whole = victim.transcript, undisturbed[1].transcript
    assert made.text == whole.text
    for segment, other in zip(made.segments, whole.segments, strict=True):
        expected = None if segment.window == SECOND else [w.text for w in other.words]
        assert (segment.words and [w.text for w in segment.words]) == expected
    assert [n.code for n in made.warnings] == ["doubtful_text", "words_untimed"]


@WAYS
def test_a_recording_none_of_whose_windows_was_decoded_has_failed(
    shared, undisturbed, clean, monkeypatch, way
) -> None:
    real = shared.engine.submit
    one = raises(lambda request: request.tag.recording.source is BEFORE, real)
    monkeypatch.setattr(shared.engine, "submit", one)
    failed, victim = way(shared, [BEFORE, VICTIM], GUARDED)
    assert failed.transcript is None and failed.error.code == "internal_error"
    assert essence(victim) == essence(undisturbed[1])


@WAYS
def test_want_of_memory_is_no_transcript(shared, undisturbed, clean, monkeypatch, way) -> None:
    """The same recording may pass with a smaller batch: the command tries that."""
    in_the_encoder(shared, monkeypatch, MemoryError())
    before, victim, after = way(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    assert victim.error.code == "overloaded" and isinstance(victim.error.__cause__, MemoryError)
    assert [essence(o) for o in (before, after)] == [essence(undisturbed[i]) for i in (0, 2)]


@WAYS
def test_an_error_that_was_expected_keeps_its_words(
    shared, undisturbed, clean, monkeypatch, way
) -> None:
    in_decoding_audio(shared, monkeypatch, AudioError("v.wav: cut off"))
    _, victim, after = way(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    assert (victim.error.code, victim.error.message) == ("invalid_audio", "v.wav: cut off")
    assert essence(after) == essence(undisturbed[2])


# Those who listen, those who leave


def test_a_listener_that_fails_harms_its_own_recording_only(
    shared, undisturbed, clean, caplog
) -> None:
    def broken() -> None:
        raise Planted("planted")

    ears = [Ear(), Ear(at_part=broken), Ear(at_end=broken)]
    before, victim, after = in_session(shared, [BEFORE, VICTIM, AFTER], GUARDED, ears)
    assert victim.error.code == "internal_error"
    assert [essence(o) for o in (before, after)] == [essence(undisturbed[i]) for i in (0, 2)]
    assert "a listener failed at the end" in caplog.text
    caplog.clear()  # a record holds the frames that the exception has passed


def test_a_tap_that_fails_harms_its_own_recording_only(shared, undisturbed, clean) -> None:
    session, ears = Session(shared.context), [Ear(), Ear()]

    def tap(samples) -> None:
        raise Planted("planted")

    session.submit(VICTIM, GUARDED, ears[0], tap=tap, name="upload.wav")
    session.submit(AFTER, GUARDED, ears[1])
    with running(session):
        failed, other = (ear.outcome() for ear in ears)
    assert str(failed.error) == "upload.wav: Planted: planted"
    assert essence(other) == essence(undisturbed[2])


def test_a_call_that_is_left_releases_what_it_held(shared, clean, monkeypatch) -> None:
    """By `close`, and when its generator is no longer referenced."""

    def harsh(whisper, guards, result, pending):
        if result.request.tag.window.index == SECOND:
            return judged(result, Judgement.RETRY, "planted")
        return judged(result, Judgement.KEEP)

    monkeypatch.setattr(recording, "answer_of", harsh)
    running = shared.transcribe([VICTIM, BEFORE, AFTER], GUARDED)
    next(running)
    assert not shared.engine.idle
    running.close()
    assert shared.engine.idle and shared.context.idle
    for _ in shared.transcribe([BEFORE, VICTIM, AFTER], GUARDED):
        break
    gc.collect()
    assert shared.engine.idle and shared.context.idle


def test_what_settles_takes_no_result_of_others(shared, undisturbed, clean) -> None:
    """A generator that is forgotten may be closed while the next call is under way."""
    forgotten = shared.transcribe([BEFORE, VICTIM], GUARDED)
    next(forgotten)
    running = shared.transcribe([AFTER, VICTIM], GUARDED)
    outcomes = [next(running)]
    forgotten.close()
    outcomes += running
    found = {id(outcome.source): essence(outcome) for outcome in outcomes}
    assert found == {id(AFTER): essence(undisturbed[2]), id(VICTIM): essence(undisturbed[1])}


def test_a_cancelled_recording_releases_what_it_held(shared, undisturbed, clean) -> None:
    session, ears = Session(shared.context), [Ear(), Ear()]
    victim = session.submit(VICTIM, GUARDED, ears[0])
    session.submit(AFTER, GUARDED, ears[1])
    ended = shared.context.ended

    def cancelling(results):
        del shared.context.ended
        session.cancel(victim)
        return ended(results)

    shared.context.ended = cancelling
    with running(session):
        cancelled, other = (ear.outcome() for ear in ears)
    assert cancelled is None and essence(other) == essence(undisturbed[2])


@WAYS
def test_a_fault_in_closing_changes_nothing(shared, undisturbed, clean, monkeypatch, way) -> None:
    """All has been read by then."""
    real = forescribe.asr.audio.reading.Recording.__exit__

    def leave(self, *rest):
        real(self, *rest)
        raise Planted("planted")

    monkeypatch.setattr(forescribe.asr.audio.reading.Recording, "__exit__", leave)
    outcomes = way(shared, [BEFORE, VICTIM, AFTER], GUARDED)
    assert list(map(essence, outcomes)) == list(map(essence, undisturbed))
