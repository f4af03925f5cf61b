"""The reference word times are true: silence between words, sound where a word begins and ends."""

from __future__ import annotations

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from training.sentences import meeting
from training.sentences.held_out import read_lines
from training.speech.timed_speech import (
    TimedSpeech,
    TimedWord,
    lay,
    speak_timed,
    spoken_spans,
    windows,
)
from training.speech.voices import RATE, Voice, held_out_voices

TEXT = "Good morning, Anna, we paid $1,250 at 10:30. Nine books, maybe."
FRAME = RATE // 100
QUIET_DB, LOUD_DB = -30.0, -25.0  # below the loudest frame


@pytest.fixture(scope="module", params=held_out_voices(), ids=lambda voice: voice.name)
def speech(request) -> TimedSpeech:
    return synthesised(TEXT, request.param)


@functools.cache
def fresh() -> ProcessPoolExecutor:
    """A process that has done nothing else. At the end of a whole test run, but never alone, flite's
    diphone voices hummed at -25 dB in their pauses, as if they read memory that they never wrote."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def synthesised(text: str, voice: Voice) -> TimedSpeech:
    try:
        return fresh().submit(speak_timed, text, voice).result()
    except OSError as error:
        pytest.skip(str(error))


def decibels(samples: np.ndarray) -> np.ndarray:
    """Of frames of 10 ms, below the loudest of them."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    energy = (frames.astype(np.float64) ** 2).mean(1)
    return 10 * np.log10(np.maximum(energy / energy.max(), 1e-9))


def known(speech: TimedSpeech) -> list[tuple[str, int]]:
    """All times that are known, in order, with their side."""
    times = [(s, t) for w in speech.words for s, t in (("start", w.start), ("end", w.end))]
    return [(side, time) for side, time in times if time is not None]


def test_every_written_word_is_there_in_order_inside_the_audio(speech):
    assert [w.text for w in speech.words] == TEXT.split()
    times = [time for _, time in known(speech)]
    assert times == sorted(times)
    assert 0 <= times[0] and times[-1] <= len(speech.samples)
    assert all(w.end - w.start >= 0.05 * RATE for w in speech.words if w.start and w.end)


def test_it_is_quiet_where_no_word_is_and_loud_beside(speech):
    level = decibels(speech.samples)
    gaps = [
        (end, start)
        for (side, end), (other, start) in pairwise(known(speech))
        if (side, other) == ("end", "start") and start - end >= 0.08 * RATE
    ]
    assert len(gaps) >= 2  # behind commas and the full stop; not every voice pauses at each
    for end, start in gaps:
        inside = level[end // FRAME + 3 : start // FRAME - 3]
        assert np.quantile(inside, 0.75) < QUIET_DB  # the diphone voices breathe in a pause
        assert level[end // FRAME - 12 : end // FRAME].max() > LOUD_DB
        assert level[start // FRAME : start // FRAME + 12].max() > LOUD_DB


def test_the_first_word_starts_and_the_last_ends_with_the_sound(speech):
    level = decibels(speech.samples)
    first, last = speech.words[0].start, speech.words[-1].end
    loud = np.flatnonzero(level > QUIET_DB)
    assert abs(loud[0] * FRAME - first) <= 0.06 * RATE
    assert abs((loud[-1] + 1) * FRAME - last) <= 0.08 * RATE


@pytest.mark.parametrize("voice", held_out_voices(), ids=lambda voice: voice.name)
def test_a_longer_word_takes_the_time_that_the_sentence_grows_by(voice):
    short = synthesised("We saw the cat again today.", voice)
    long = synthesised("We saw the caterpillar again today.", voice)
    grown = len(long.samples) - len(short.samples)
    assert grown > 0.15 * RATE
    behind = [a.start - b.start for a, b in zip(long.words[4:], short.words[4:], strict=True)]
    assert behind == pytest.approx([grown, grown], abs=0.08 * RATE)
    assert long.words[1].start == pytest.approx(short.words[1].start, abs=0.02 * RATE)


def test_a_number_is_as_long_as_what_it_is_read_as():
    assert spoken_spans("We paid $1,250 at 10:30") == [(0, 1), (1, 2), (2, 8), (8, 9), (9, 11)]
    assert spoken_spans("about $3 million -") == [(0, 1), (1, 2), (2, 4)]
    with pytest.raises(ValueError, match="is read as"):
        spoken_spans("5 $3 million")


def test_written_words_share_all_spoken_ones():
    refused = 0
    texts = [*meeting.sentences(300, seed=5), *read_lines("ordinary.txt")[:300]]
    for text in texts:
        try:
            spans = spoken_spans(text)
        except ValueError:
            refused += 1
            continue
        assert spans[0][0] == 0
        assert all(a[1] == b[0] and a[0] < a[1] for a, b in pairwise(spans))
    assert refused <= 0.02 * len(texts)


def part(seed: int) -> TimedSpeech:
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, 3 * RATE).astype(np.float32)
    return TimedSpeech(samples, (TimedWord("one", 320, 20_000), TimedWord("two", None, 47_000)))


def test_words_of_concatenated_parts_are_at_their_sound():
    parts = [part(1), part(2)]
    laid = lay(parts, np.random.default_rng(0))
    for number, each in enumerate(parts):
        word = laid.words[2 * number]
        heard, spoken = laid.samples[word.start : word.end], each.samples[320:20_000]
        assert np.abs(heard - spoken).max() < 1e-3
        assert laid.words[2 * number + 1].start is None
    assert len(laid.samples) - 2 * 3 * RATE == pytest.approx(3 * 0.575 * RATE, abs=3 * 0.325 * RATE)


def test_windows_hold_every_part_once_and_are_never_too_long():
    found = list(windows((part(n) for n in range(9)), np.random.default_rng(0), most=10 * RATE))
    assert [len(window.words) for window in found] == [4, 4, 4, 4, 2]
    assert all(len(window.samples) <= 10 * RATE for window in found)
