"""The embedded engine over broadband noise: four synthetic voices, three of flite (the samples'), one
of espeak-ng (`data/espeak.ogg`). The larger table is `python -m benchmarks.quality.diarization_noise`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pyannote.audio")

from benchmarks.quality.diarization import Case
from benchmarks.quality.diarization_noise import CLEAN, Condition, over
from forescribe.asr.audio.reading import read_audio
from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.pyannote_pipeline import PyannoteDiarizer
from forescribe.diarize.engines.voice_encoder import speech_over_noise_db, subtract_noise
from forescribe.diarize.turns import read_rttm
from training.speakers.mixtures import mix
from training.speakers.turn_errors import turn_errors

ROOT = Path(__file__).parents[3]
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
    made = mix("talk", {one: voices[one] for one in who}, np.random.default_rng(4), seconds=60)
    return Case(made.name, made.samples, made.turns)


def holds(diarizer: PyannoteDiarizer, case: Case, condition: Condition) -> None:
    """The right number of speakers, and hardly any speech with the wrong one."""
    noisy = over(case, condition, seed=1)
    found = diarizer.diarize(noisy.samples)
    errors = turn_errors(case.turns, found.regular, len(case.samples))
    assert errors.counted == [0], f"{condition.name}: {len(found.speakers)} speakers"
    assert errors.confusion <= 0.05 and errors.der <= 0.15, f"{condition.name}: {errors}"


@pytest.mark.parametrize("condition", [Condition(CLEAN), Condition("white", 20)], ids=str)
def test_four_voices_are_told_apart_with_and_without_noise(
    diarizer: PyannoteDiarizer, voices: dict[str, np.ndarray], condition: Condition
) -> None:
    holds(diarizer, conversation(voices, "rms", "slt", "awb", "gb"), condition)


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition",
    [
        *(Condition("white", level) for level in (30, 25, 20)),
        *(Condition("pink", level) for level in (30, 25, 20, 15)),
    ],
    ids=str,
)
@pytest.mark.parametrize("who", ["rms slt", "rms slt awb", "rms slt awb gb"])
def test_voices_are_told_apart_over_noise(
    diarizer: PyannoteDiarizer, voices: dict[str, np.ndarray], condition: Condition, who: str
) -> None:
    """Over white noise of 15 dB rms and awb merge."""
    holds(diarizer, conversation(voices, *who.split()), condition)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["rms", "slt", "awb", "gb"])
def test_one_voice_over_noise_stays_one(
    diarizer: PyannoteDiarizer, voices: dict[str, np.ndarray], who: str
) -> None:
    alone = conversation(voices, who)
    for condition in (Condition(CLEAN), Condition("white", 20), Condition("pink", 10)):
        holds(diarizer, alone, condition)


@pytest.mark.parametrize(
    ("condition", "noisy"),
    [(Condition(CLEAN), False), (Condition("white", 20), True), (Condition("pink", 20), True)],
    ids=str,
)
def test_noise_is_removed_from_noisy_recordings_only(
    diarizer: PyannoteDiarizer,
    voices: dict[str, np.ndarray],
    condition: Condition,
    noisy: bool,
) -> None:
    case = over(conversation(voices, "rms", "slt"), condition, seed=1)
    samples = case.samples[: 12 * 16_000]
    file = {"waveform": torch.from_numpy(samples)[None], "sample_rate": 16_000}
    pipeline = diarizer.pipeline
    speech = pipeline.get_segmentations(file)
    speech.data = (speech.data >= 0.5).astype(np.float32)
    spoken = np.flatnonzero(speech.data.any(axis=(1, 2)))
    starts = spoken * embedded.STEP_FRAMES * embedded.FRAME
    encoder = pipeline._embedding.model_.encoder
    heard = pipeline.get_embeddings(file, speech)[spoken, 0]
    plain, without = (
        np.concatenate(list(encoder.windows(samples, starts, noisy=n))) for n in (False, True)
    )
    assert np.array_equal(heard, without if noisy else plain) and not np.allclose(plain, without)


def power(seconds: float, speech_db: float, noise_db: float, share: float) -> tuple[Any, Any]:
    """Mel power [F, 40], a share of its frames speech in which each band pauses half the time."""
    rng = np.random.default_rng(0)
    frames = round(100 * seconds)
    speech = np.arange(frames) < share * frames
    syllables = np.repeat(rng.random((frames // 20 + 1, 40)) < 0.5, 20, axis=0)[:frames]
    noise = 10 ** (noise_db / 10) * rng.exponential(size=(frames, 40))
    mels = noise + 2 * 10 ** (speech_db / 10) * syllables * speech[:, None]
    return mels.astype(np.float32), speech


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("apart", [10.0, 20.0, 40.0])
def test_the_level_above_noise_does_not_depend_on_the_number_of_pauses(
    apart: float, share: float
) -> None:
    for loudness in (0.0, -40.0):
        measured = speech_over_noise_db(*power(30, loudness, loudness - apart, share))
        assert apart <= measured <= apart + 4  # the quiet tenth of noise is below its mean


def test_digital_zeros_and_missing_speech_are_ignored() -> None:
    mels, speech = power(20, 0, -15, 0.8)
    zeros = np.zeros((3000, 40), np.float32)
    padded = speech_over_noise_db(
        np.concatenate([mels, zeros]), np.append(speech, np.zeros(3000, bool))
    )
    assert padded == pytest.approx(speech_over_noise_db(mels, speech), abs=0.5)
    assert speech_over_noise_db(mels, np.zeros(len(mels), bool)) == np.inf
    assert speech_over_noise_db(zeros, np.ones(3000, bool)) == np.inf


def test_noise_is_subtracted_from_speech() -> None:
    speech, _ = power(1.6, 0, -90, 1.0)
    noise, _ = power(1.6, -200, -20, 1.0)
    got = subtract_noise(torch.from_numpy(np.stack([speech, speech + noise, noise]))).numpy()
    assert np.abs(got[0] - speech).max() < 1e-6 and (got >= 0).all()
    assert got[1:2].mean() == pytest.approx(speech.mean(), rel=0.01)
    assert got[2].mean() < 0.5 * noise.mean()
