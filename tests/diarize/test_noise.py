"""The engine that ships over broadband noise: four synthetic voices, three of flite (the samples'), one
of espeak-ng (`data/espeak.ogg`). The larger table is `python -m benchmarks.noise`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyannote.audio")

from asr.audio import read_audio
from benchmarks.diarize import Case
from benchmarks.mixtures import mix
from benchmarks.noise import CLEAN, Condition, over
from benchmarks.turn_errors import turn_errors
from diarize import embedded
from diarize.pipeline import PyannoteDiarizer
from diarize.turns import read_rttm

ROOT = Path(__file__).parent.parent.parent
OWN = Path(__file__).parent / "data" / "espeak.ogg"


@pytest.fixture(scope="module")
def diarizer() -> PyannoteDiarizer:
    return embedded.build(embedded.folder())


@pytest.fixture(scope="module")
def voices() -> dict[str, np.ndarray]:
    """One clip of each, at one level."""
    clips = {
        "rms": of_sample("conversation", "A"),
        "slt": of_sample("conversation", "B"),
        "awb": of_sample("silence", "A"),
        "gb": read_audio(OWN),
    }
    return {who: clip / (10 * clip.std()) for who, clip in clips.items()}


def of_sample(name: str, speaker: str) -> np.ndarray:
    """What one speaker says in a bundled sample, up to 25 s."""
    path = ROOT / "samples" / f"{name}.flac"
    samples, turns = read_audio(path), read_rttm(path.with_suffix(".rttm").read_text())[name]
    own = [samples[t.start_sample : t.end_sample] for t in turns if t.speaker == speaker]
    pause = samples[: 16_000 // 3]
    return np.concatenate([part for said in own for part in (pause, said)])[: 25 * 16_000]


def conversation(voices: dict[str, np.ndarray], *who: str) -> Case:
    made = mix("talk", {one: voices[one] for one in who}, np.random.default_rng(4), seconds=45)
    return Case(made.name, made.samples, made.turns)


def holds(diarizer: PyannoteDiarizer, case: Case, condition: Condition) -> None:
    """The right number of speakers, and hardly any speech with the wrong one."""
    noisy = over(case, condition, seed=1)
    found = diarizer.diarize(noisy.samples)
    errors = turn_errors(case.turns, found.regular, len(case.samples))
    assert errors.counted == [0], f"{condition.name}: {len(found.speakers)} speakers"
    assert errors.confusion <= 0.05 and errors.der <= 0.15, f"{condition.name}: {errors}"


@pytest.mark.parametrize("condition", [Condition(CLEAN), Condition("pink", 20)], ids=str)
def test_four_voices_are_told_apart_with_and_without_noise(
    diarizer: PyannoteDiarizer, voices: dict[str, np.ndarray], condition: Condition
) -> None:
    holds(diarizer, conversation(voices, "rms", "slt", "awb", "gb"), condition)


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition",
    [Condition("white", 30), Condition("pink", 30), Condition("pink", 20), Condition("pink", 15)],
    ids=str,
)
@pytest.mark.parametrize("who", ["rms slt", "rms slt awb", "rms slt awb gb"])
def test_voices_are_told_apart_over_noise(
    diarizer: PyannoteDiarizer, voices: dict[str, np.ndarray], condition: Condition, who: str
) -> None:
    """White noise of 20 dB is not among them: there rms and awb merge (docs/diarize.md)."""
    holds(diarizer, conversation(voices, *who.split()), condition)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["rms", "slt", "awb", "gb"])
def test_one_voice_over_noise_stays_one(
    diarizer: PyannoteDiarizer, voices: dict[str, np.ndarray], who: str
) -> None:
    alone = conversation(voices, who)
    for condition in (Condition(CLEAN), Condition("white", 20), Condition("pink", 10)):
        holds(diarizer, alone, condition)
