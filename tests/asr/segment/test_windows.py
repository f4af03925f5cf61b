"""Windows: a partition whatever the recording, cut where there is no speech; and the detector behind
it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forescribe.asr.segment.cut_plan import span_of
from forescribe.asr.segment.cutter import BATCH_FRAMES, Cutter, cut
from forescribe.asr.segment.vad import FRAME, LEVEL_FRAMES, SileroDetector, Stream, audible
from forescribe.asr.segment.windows import MAX_SAMPLES, Window, WindowOptions

Samples = NDArray[np.float32]
RATE = 16_000


@dataclass
class Track:
    """A detector that knows the answer: one probability per frame, whatever it hears."""

    values: NDArray[np.float32]
    batches: list[int] = field(default_factory=list)

    def stream(self) -> Stream:
        return Track(self.values, self.batches)

    def probabilities(self, samples: Samples) -> NDArray[np.float32]:
        frames = len(samples) // FRAME
        answer, self.values = self.values[:frames], self.values[frames:]
        assert len(answer) == frames
        self.batches.append(frames)
        return answer


@st.composite
def tracks(draw: st.DrawFn) -> tuple[NDArray[np.float32], int]:
    """Probabilities of up to five minutes, in stretches of speech, silence and doubt; and how many
    samples there are."""
    parts = []
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(0, 12))):
        low, high = draw(st.sampled_from([(0.9, 1.0), (0.0, 0.1), (0.0, 1.0), (0.3, 0.6)]))
        parts.append(rng.uniform(low, high, draw(st.integers(1, 1300))))
    values = np.concatenate([np.zeros(0), *parts]).astype(np.float32)
    missing = draw(st.integers(0, FRAME - 1)) if len(values) else 0
    return values, len(values) * FRAME - missing


@settings(deadline=None, max_examples=30)
@given(track=tracks(), sizes=st.tuples(st.integers(900, 700_000), st.integers(900, 700_000)))
def test_the_size_of_the_blocks_changes_no_window(
    track: tuple[NDArray[np.float32], int], sizes: tuple[int, int]
) -> None:
    values, count = track
    detectors = Track(values), Track(values)
    first, second = (
        [outline(w) for w in cut(blocks(counting(count), size), detector)]
        for size, detector in zip(sizes, detectors, strict=True)
    )
    assert first == second
    assert detectors[0].batches == detectors[1].batches  # the network sees the same shapes


@st.composite
def any_options(draw: st.DrawFn) -> WindowOptions:
    """All that the record lets through, the narrowest included."""
    low, high = sorted(draw(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0))))
    pause, silence = sorted(draw(st.tuples(st.floats(0.001, 3.0), st.floats(0.001, 3.0))))
    pad = draw(st.floats(0.0, 0.6)) * silence
    try:
        return WindowOptions(
            onset=high,
            offset=low,
            min_speech_s=draw(st.sampled_from([0.0, 0.05, 0.1, 1.0, 5.0])),
            min_pause_s=pause,
            max_silence_s=silence,
            pad_s=pad,
            search_s=draw(st.floats(1.0, 15.0)),
        )
    except ValueError:
        reject()


def speech_of(values: NDArray[np.float32], options: WindowOptions) -> NDArray[np.bool_]:
    """Frames of speech by the definition in `WindowOptions`, found without the code under test."""
    speech, begun, active = np.zeros(len(values), np.bool_), 0, False
    shortest = max(1, round(options.min_speech_s * RATE / FRAME))
    for at, value in enumerate([*values, -1.0]):
        now = value >= (options.offset if active else options.onset)
        if now and not active:
            begun = at
        if active and not now and at - begun >= shortest:
            speech[begun:at] = True
        active = now
    return speech


@settings(deadline=None, max_examples=150)
@given(track=tracks(), options=any_options(), size=st.integers(2000, 700_000))
def test_windows_partition_the_samples_and_detected_speech_is_never_reported_as_silence(
    track: tuple[NDArray[np.float32], int], options: WindowOptions, size: int
) -> None:
    values, count = track
    samples, at, heard = counting(count), 0, np.zeros(len(values) * FRAME, np.bool_)
    for index, window in enumerate(cut(blocks(samples, size), Track(values), options)):
        assert (window.index, window.start) == (index, at)
        if window.speech:
            assert window.length <= MAX_SAMPLES
            assert np.array_equal(window.samples, samples[window.start : window.end])
        at, heard[window.start : window.end] = window.end, window.speech
    assert at == count
    assert heard[:count][np.repeat(speech_of(values, options), FRAME)[:count]].all()


def test_a_long_pause_is_a_silent_window_with_a_pad_left_on_both_sides() -> None:
    windows = windows_of((10, 1.0), (6, 0.0), (10, 1.0))
    assert [window.speech for window in windows] == [True, False, True]
    assert near(windows[1].start, 10.3) and near(windows[1].end, 15.7)
    assert windows[1].samples.size == 0


@pytest.mark.parametrize(
    ("stretches", "joined"),
    [
        ([(2, 1.0), (4, 0.0), (10, 1.0)], True),
        ([(2, 1.0), (4, 0.0), (10, 1.0), (9, 0.0), (3, 1.0)], True),
        ([(2, 1.0), (7, 0.0), (10, 1.0)], False),  # too far away
        ([(2, 1.0), (4, 0.0), (2, 1.0)], False),  # two turns, not a text
        ([(5, 1.0), (4, 0.0), (10, 1.0)], False),  # a sentence of its own
        ([(2, 1.0), (4, 0.0), (28, 1.0)], False),  # more than a window
    ],
)
def test_a_heading_shares_the_window_of_its_text(
    stretches: list[tuple[float, float]], joined: bool
) -> None:
    first = windows_of(*stretches)[0]
    text = round(sum(time for time, _ in stretches[:2]) * RATE)
    assert first.start == 0 and (first.end > text + 9 * RATE) == joined
    assert joined or near(first.end, stretches[0][0] + 0.3)


def test_a_full_window_ends_in_the_middle_of_its_longest_late_pause() -> None:
    first, second = windows_of(
        (12, 1.0), (1.8, 0.0), (10, 1.0), (0.8, 0.0), (3, 1.0), (0.3, 0.0), (10, 1.0)
    )
    assert near(first.end, 12 + 1.8 + 10 + 0.4) and second.speech


def test_speech_without_a_pause_is_cut_where_it_is_least_probable() -> None:
    windows = windows_of((26, 0.95), (0.064, 0.6), (20, 0.95))
    assert near(windows[0].end, 26.03) and all(window.speech for window in windows)


def test_speech_goes_on_through_doubt_and_does_not_begin_in_it() -> None:
    doubt = 0.3  # between offset and onset
    assert [w.speech for w in windows_of((3, 0.9), (6, doubt), (6, 0.0))] == [True, False]
    assert near(windows_of((3, 0.9), (6, doubt), (6, 0.0))[0].end, 9.3)
    assert [w.speech for w in windows_of((6, doubt))] == [False]


def test_what_is_loud_without_voice_activity_is_a_window_of_its_own() -> None:
    """Loud against its recording's noise and speech; noise and clicks, however loud, stay silence."""
    rng, quiet = np.random.default_rng(0), 0.001
    samples = rng.standard_normal(120 * RATE).astype(np.float32)
    gains = np.full(120, quiet, np.float32)
    gains[:5] = 0.1  # speech
    gains[30:37] = 0.03
    gains[60:67] = 2 * quiet  # 6 dB above the noise
    gains[90:97] = 0.005  # 26 dB below the speech
    samples *= np.repeat(gains, RATE)
    samples[110 * RATE : 110 * RATE + 600] = 0.5  # a click
    seconds = np.arange(120 * RATE // FRAME) * FRAME / RATE
    values = np.where(seconds < 5, 0.9, 0.0) + 0.05 * ((32 < seconds) & (seconds < 33.1))
    windows = list(cut([samples], Track(values.astype(np.float32))))
    spoken = [window for window in windows if window.speech]
    assert [window.unheard for window in spoken] == [False, True]
    level = 20 * np.log10(0.03) + 10 * np.log10(7 / 7.6)
    assert abs(spoken[1].level_db - level) < 0.3 and spoken[0].level_db is None
    # Without a hint of a voice it is left out, and told.
    left = list(cut([samples], Track(np.where(seconds < 5, 0.9, 0.04).astype(np.float32))))
    assert [(w.start, w.end, w.level_db) for w in left if w.level_db is not None] == [
        (spoken[1].start, spoken[1].end, spoken[1].level_db)
    ]
    assert [w.speech for w in left] == [True, False, False, False] and not len(left[2].samples)
    assert [span_of(json.loads(json.dumps(w.span))) for w in left] == [w.span for w in left]
    assert near(spoken[1].start, 29.7) and near(spoken[1].end, 37.3) and spoken[1].voiced == ()
    assert np.array_equal(spoken[1].samples, samples[spoken[1].start : spoken[1].end])
    assert span_of(json.loads(json.dumps(spoken[1].span))) == spoken[1].span
    assert [window.speech for window in cut([samples * 0 + 0.1], Track(values * 0))] == [False]


def test_hours_of_silence_are_one_window_without_samples() -> None:
    count = 3 * 3600 * RATE // FRAME
    minute = np.zeros(60 * RATE, np.float32)
    silence = Track(np.zeros(count, np.float32))
    (window,) = cut((minute for _ in range(180)), silence)
    assert (window.start, window.end, window.speech) == (0, 3 * 3600 * RATE, False)


def test_memory_stays_bounded_over_an_endless_recording() -> None:
    """What is read but not yet given out: 33 s of look-ahead, one batch of the detector, one
    block."""
    read = 0

    def endless() -> Iterator[Samples]:
        nonlocal read
        while True:
            read += RATE
            yield np.zeros(RATE, np.float32)

    values = np.tile(np.array([0.9] * 400 + [0.1] * 10, np.float32), 200)
    behind = []
    for window in cut(endless(), Track(values)):
        behind.append(read - window.end)
        if window.end > 1200 * RATE:
            break
    assert max(behind) <= 45 * RATE


def test_without_skipping_silence_every_sample_is_in_a_window_with_speech() -> None:
    values = np.repeat(
        np.array([0.0, 0.9, 0.1, 0.9, 0.0, 0.9], np.float32), [90, 700, 40, 700, 2000, 50]
    )
    samples = counting(len(values) * FRAME + 3)
    values = np.append(values, np.float32(0))
    windows = list(cut(blocks(samples, 12_345), Track(values), skip_silence=False))
    assert all(w.speech and w.length <= MAX_SAMPLES for w in windows)
    assert np.array_equal(np.concatenate([w.samples for w in windows]), samples)
    assert windows[0].end == (90 + 700 + 20) * FRAME  # in the pause, not in a word
    assert list(cut([], Track(values), skip_silence=False)) == []


def test_windows_say_where_a_voice_was_heard() -> None:
    """By silero's own threshold, which is above the one that windows are cut by."""
    silent, first, second = windows_of((5, 0.0), (3, 0.9), (1, 0.45), (2, 0.6), (3, 0.1))[:3]
    assert silent.voiced == ()
    runs = [(a, b) for w in (first, second) for a, b in w.voiced]
    frames = [round(s * RATE / FRAME) for s in (5, 3, 1, 2)]  # each stretch is rounded for itself
    edges = [FRAME * sum(frames[:n]) for n in range(1, 5)]
    assert runs == [(edges[0], edges[1]), (edges[2], edges[3])]


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 0.9},
        {"pad_s": 1.0},
        {"min_pause_s": 3.0},
        {"search_s": 60.0},
        {"min_pause_s": 0.0},
        {"min_speech_s": -0.1},
        {"min_speech_s": 40.0},
        {"pad_s": -0.1},
        {"max_silence_s": 0.11, "pad_s": 0.05},  # 3 frames, and 2 on both sides
        {"max_silence_s": 0.01, "min_pause_s": 0.01, "pad_s": 0.0},  # no frame at all
        *({name: math.nan} for name in asdict(WindowOptions())),
        *({name: math.inf} for name in asdict(WindowOptions())),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WindowOptions(**wrong)


# silero-vad with its packaged weights


@pytest.fixture(scope="module")
def silero() -> SileroDetector:
    return SileroDetector()


@pytest.fixture(scope="module")
def voice() -> Samples:
    """Not speech, but what moves the network's answer up and down: a buzz with formants, syllables
    and pauses."""
    rng = np.random.default_rng(1)
    time = np.arange(20 * RATE // FRAME * FRAME) / RATE
    pitch = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 0.7 * time)) / RATE
    buzz = sum(
        np.sin(k * pitch) * np.exp(-(((k * 120 - f) / 150) ** 2))
        for k in range(1, 30)
        for f in (600, 1200, 2500)
    )
    syllables = np.clip(np.sin(2 * np.pi * 4 * time), 0, 1) * (np.sin(2 * np.pi * time / 7) > 0)
    return np.asarray(0.1 * buzz * syllables + 0.003 * rng.normal(size=len(time)), np.float32)


def test_all_frames_at_once_give_what_the_published_module_gives_one_by_one(
    silero: SileroDetector, voice: Samples
) -> None:
    import torch

    # Loud enough throughout to be heard as it is.
    noise = np.random.default_rng(2).normal(size=len(voice)).astype(np.float32)
    voice = voice + np.float32(0.03) * noise
    assert np.array_equal(audible(voice), voice)
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = import_module("silero_vad").load_silero_vad()
        frames = torch.from_numpy(voice.reshape(-1, FRAME))
        expected = [module(frame, RATE).item() for frame in frames]
    finally:
        torch.set_num_threads(threads)
    stream = silero.stream()
    batches = [stream.probabilities(part) for part in blocks(voice, 3 * LEVEL_FRAMES * FRAME)]
    assert np.ptp(expected) > 0.3, "the signal must move the answer"
    np.testing.assert_allclose(np.concatenate(batches), expected, atol=1e-4)


def test_streams_of_one_detector_do_not_disturb_each_other(
    silero: SileroDetector, voice: Samples
) -> None:
    alone = silero.stream().probabilities(voice)
    one, two = silero.stream(), silero.stream()
    half = 10 * LEVEL_FRAMES * FRAME
    first = one.probabilities(voice[:half])
    two.probabilities(voice[::-1].copy())
    np.testing.assert_allclose(
        np.concatenate([first, one.probabilities(voice[half:])]), alone, atol=1e-5
    )


def test_windows_so_far_are_those_of_a_recording_that_ends_there_and_judge_whole_seconds_once(
    silero: SileroDetector, voice: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = np.concatenate([voice, voice * np.float32(0.01), voice[: 3 * RATE + 77]])
    ends = [*range(8 * FRAME, len(quiet), 8 * FRAME), len(quiet)]
    expected = {end: list(cut([quiet[:end]], silero)) for end in ends[::7]}
    judged, real = [0], type(silero.stream()).probabilities

    def counted(stream: Stream, samples: Samples) -> NDArray[np.float32]:
        judged[0] += len(samples) // FRAME
        return real(stream, samples)  # type: ignore[arg-type]

    monkeypatch.setattr(type(silero.stream()), "probabilities", counted)
    cutter, certain = Cutter(silero, WindowOptions()), list[Window]()
    for begin, end in pairwise([0, *ends]):
        certain += cutter.push(quiet[begin:end])
        found = [*certain, *cutter.so_far()]
        if end in expected:
            assert [w.span for w in found] == [w.span for w in expected[end]]
    # Each frame twice, and of a second that is not over some again; all from the last batch on were 16 times.
    assert judged[0] < 4.5 * len(quiet) / FRAME


def test_a_quiet_voice_is_heard_like_a_loud_one(
    silero: SileroDetector, voice: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = voice * np.float32(0.002)
    loud = silero.stream().probabilities(voice) > 0.5

    def part_heard() -> float:
        heard = np.zeros(len(voice), np.bool_)
        for window in cut([quiet], silero):
            heard[window.start : window.end] = window.speech and not window.unheard
        return float(heard[::FRAME][loud].mean())

    assert part_heard() > 0.75
    monkeypatch.setattr("forescribe.asr.segment.vad.audible", lambda samples: samples)
    assert part_heard() < 0.5, "the network alone does not hear it"


def test_silence_and_noise_are_silent(silero: SileroDetector) -> None:
    noise = np.random.default_rng(0).normal(size=60 * RATE).astype(np.float32)
    for level in (0.3, 0.05, 0.001, 0.0):
        samples = noise * np.float32(level)
        assert [w.speech for w in cut([samples], silero)] == [False]


def counting(count: int) -> Samples:
    """Samples of which no two stretches are alike."""
    return np.arange(count, dtype=np.float32)


def blocks(samples: Samples, size: int) -> Iterator[Samples]:
    return (samples[at : at + size] for at in range(0, len(samples), size))


def windows_of(*stretches: tuple[float, float]) -> list[Window]:
    """Windows of a recording given as (seconds, probability of speech)."""
    parts = [np.full(round(time * RATE / FRAME), p, np.float32) for time, p in stretches]
    values = np.concatenate(parts)
    return list(cut([counting(len(values) * FRAME)], Track(values)))


def outline(window: Window) -> tuple[int, int, bool]:
    return window.start, window.end, window.speech


def near(sample: int, time_s: float) -> bool:
    return abs(sample - time_s * RATE) <= 2.5 * FRAME


assert BATCH_FRAMES * FRAME < 10 * RATE, "test_memory_stays_bounded counts on it"
