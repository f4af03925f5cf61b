"""The sounds without speech, and that the bundled pair writes nothing for them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality import silence, sounds
from benchmarks.quality.silence import Heard
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.speculative import choose

LOUD = [(kind, level) for kind, (_, levels) in sounds.KINDS.items() for level in levels]
COUNT = 20 * sounds.RATE


@pytest.mark.parametrize(("kind", "level"), LOUD)
def test_a_sound_is_as_loud_as_it_says_and_always_the_same(kind, level):
    first, again, other = (sounds.make(kind, level, COUNT, seed) for seed in (1, 1, 2))
    assert first.dtype == np.float32 and len(first) == COUNT
    assert np.abs(first).max() <= 1
    assert np.array_equal(first, again)
    if kind == "silence":
        assert not first.any()
        return
    assert not np.array_equal(first, other)
    loud = 10 * np.log10((first.astype(np.float64) ** 2).mean())
    assert loud == pytest.approx(level, abs=1.5)  # peaks of the loudest are cut


@pytest.mark.parametrize(("kind", "pitch"), [("chords", True), ("melody", True), ("pink", False)])
def test_music_has_pitch_and_noise_has_none(kind, pitch):
    audio = sounds.make(kind, -20, COUNT, 3)
    power = np.abs(np.fft.rfft(audio * np.hanning(COUNT))) ** 2
    power = power[100 * 20 : 4000 * 20]  # 100 to 4000 Hz
    peaks = np.sort(power)[-len(power) // 100 :].sum() / power.sum()
    assert bool(peaks > 0.5) is pitch


def test_words_are_counted_per_hour_and_way():
    rows = [
        Heard("hum", -50, "default", 10, 0.0, 2, "you you"),
        Heard("hum", -50, "guards", 10, 0.0, 0, ""),
        Heard("hum", -25, "default", 10, 30.0, 0, ""),
        Heard("hum", -25, "guards", 10, 0.0, 0, ""),
    ]
    text = silence.table(rows, ["default", "guards"])
    lines = [line.split() for line in text.splitlines()]
    assert lines[2:] == [
        ["hum", "-50", "dB", "12", "0"],
        ["hum", "-25", "dB", "0", "0"],
        ["all", "6.0", "0.0"],
    ]


@pytest.fixture(scope="module")
def transcriber():
    whisper = load(resolve("tiny.en", None), choose("cpu"), network=False)
    return Transcriber(whisper, batch=8)


def test_nothing_is_written_without_speech(transcriber):
    """A short form of `python -m benchmarks.quality.silence`: half a minute of each sound."""
    heard = list(silence.listen(transcriber, list(sounds.KINDS), ["guards"], 0.5))
    assert len(heard) == len(LOUD)
    assert {(row.kind, row.level_db): row.text for row in heard if row.words} == {}
