"""The embedded engine with its networks on the bundled samples. For figures see benchmarks/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.diarization import Case, ami, mixed, samples, telephone
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import ModelError
from forescribe.asr.formats.transcript_parts import Word
from forescribe.diarize.attribution import assign_speakers
from forescribe.diarize.diarizer import Bounds, Diarization
from forescribe.diarize.engines import embedded
from forescribe.diarize.engines.pyannote_pipeline import PyannoteDiarizer
from forescribe.diarize.engines.voice_encoder import WINDOW_SAMPLES, load
from forescribe.diarize.known_speakers import KnownSpeaker, name_known_speakers
from training.speakers.turn_errors import Errors, turn_errors, wrong_words

RATE = 16_000
ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def diarizer() -> PyannoteDiarizer:
    return embedded.build(embedded.folder())


@pytest.fixture(scope="module")
def conversation() -> np.ndarray:
    return read_audio(ROOT / "samples" / "conversation.flac")


def speakers(found: Diarization) -> int:
    return len(found.speakers)


def valid(found: Diarization, length: int) -> bool:
    exclusive = list(found.exclusive)
    return found.sample_count == length and all(
        a.end_sample <= b.start_sample for a, b in zip(exclusive, exclusive[1:], strict=False)
    )


def test_the_bundled_samples_have_the_right_speakers_on_their_words(
    diarizer: PyannoteDiarizer,
) -> None:
    errors, words, wrong = Errors(), 0, 0
    for case in samples(ROOT / "samples"):
        found = diarizer.diarize(case.samples)
        errors += turn_errors(case.turns, found.regular, len(case.samples))
        unnamed = [Word(w.text, w.start_sample, w.end_sample) for w in case.words]
        who = [a.speaker for a in assign_speakers(unnamed, found.exclusive, found.regular)]
        words, wrong = words + len(case.words), wrong + wrong_words(case.words, who)
    assert errors.right == 1.0, errors.counted
    assert wrong <= 0.03 * words


@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.2, 0.5, 1.7])
def test_turns_lie_within_recordings_of_any_length(
    diarizer: PyannoteDiarizer, conversation: np.ndarray, seconds: float
) -> None:
    part = conversation[RATE : RATE + round(seconds * RATE)]
    found = diarizer.diarize(part)
    assert valid(found, len(part)) and speakers(found) <= 1


def test_silence_and_a_chord_have_no_speaker(diarizer: PyannoteDiarizer) -> None:
    time = np.arange(8 * RATE) / RATE
    chord = sum(np.sin(2 * np.pi * f * time) for f in (262, 330, 392)).astype(np.float32) / 10
    for samples_ in (np.zeros(8 * RATE, np.float32), chord):
        found = diarizer.diarize(samples_)
        assert valid(found, len(samples_)) and speakers(found) == 0 and found.voices == ()


def test_a_quiet_recording_and_a_telephones_have_two_speakers_too(
    diarizer: PyannoteDiarizer, conversation: np.ndarray
) -> None:
    from training.speech.channels import telephone as through

    part = conversation[: 60 * RATE]
    assert speakers(diarizer.diarize(part * np.float32(0.01))) == 2
    narrow = through(part, np.random.default_rng(0))
    assert speakers(diarizer.diarize(narrow)) == 2


@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [
        (Bounds(exactly=1), 1, 1),
        (Bounds(exactly=3), 3, 3),
        (Bounds(at_least=4), 4, 100),
        (Bounds(at_most=1), 1, 1),
        (Bounds(exactly=10), 2, 10),
    ],
)
def test_bounds_are_honoured(
    diarizer: PyannoteDiarizer, conversation: np.ndarray, bounds: Bounds, least: int, most: int
) -> None:
    found = diarizer.diarize(conversation[: 40 * RATE], bounds)
    assert least <= speakers(found) <= most
    assert bool(found.warnings) == (not bounds.least <= speakers(found) <= bounds.most)


def test_the_same_recording_gives_the_same_answer_and_voices_are_its_speakers(
    diarizer: PyannoteDiarizer, conversation: np.ndarray
) -> None:
    part = conversation[: 40 * RATE]
    one, two = diarizer.diarize(part), diarizer.diarize(part)
    assert one.regular == two.regular and one.exclusive == two.exclusive
    for a, b in zip(one.voices, two.voices, strict=True):
        assert a.vector is not None and b.vector is not None and np.array_equal(a.vector, b.vector)
    assert [voice.speaker for voice in one.voices] == list(one.speakers)
    assert one.engine.to_dict()["encoder"] == diarizer.engine.encoder


def test_the_hook_sees_progress_and_cancels(
    diarizer: PyannoteDiarizer, conversation: np.ndarray
) -> None:
    seen: list[float] = []
    diarizer.diarize(conversation[: 40 * RATE], hook=lambda step, done: seen.append(done))
    assert seen == sorted(seen) and len(seen) > 3 and seen[-1] == 1.0

    def stop(step: str, done: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        diarizer.diarize(conversation[: 40 * RATE], hook=stop)
    assert speakers(diarizer.diarize(conversation[: 40 * RATE])) == 2  # it works on


def test_a_window_has_the_same_vector_whatever_is_heard_with_it(
    conversation: np.ndarray,
) -> None:
    encoder = load(embedded.folder())
    starts = np.arange(0, 20 * RATE, 4096)
    together = np.concatenate(list(encoder.windows(conversation, starts)))
    for n in (0, 7, 40):
        part = conversation[starts[n] : starts[n] + WINDOW_SAMPLES]
        (alone,) = encoder.windows(part, np.array([0]))
        assert float(alone[0] @ together[n]) > 0.98  # it may begin 5 ms off
    quiet, quieter = (
        np.concatenate(list(encoder.windows(conversation * np.float32(gain), starts)))
        for gain in (0.02, 0.005)
    )
    assert np.median(np.einsum("nd,nd->n", quiet, quieter)) > 0.99  # raised to one level


def test_speakers_are_recognised_in_another_part_and_an_unknown_one_is_not(
    diarizer: PyannoteDiarizer, conversation: np.ndarray
) -> None:
    engine = diarizer.engine
    before, after = conversation[: 60 * RATE], conversation[60 * RATE :]
    enrolled = [
        KnownSpeaker(
            f"Person {voice.speaker[-1]}", engine.encoder or "", voice.vector, voice.samples, 1, ""
        )
        for voice in diarizer.diarize(before).voices
        if voice.vector is not None
    ]
    assert len(enrolled) == 2
    found, _ = name_known_speakers(diarizer.diarize(after), enrolled)
    assert set(found.speakers) == {"Person 0", "Person 1"}
    stranger, told = name_known_speakers(
        diarizer.diarize(read_audio(ROOT / "samples" / "silence.flac")), enrolled
    )
    assert stranger.speakers == ("SPEAKER_00",) and not any(match.sure for match in told)


def test_stored_voices_are_named_by_encoder_and_space(tmp_path: Path) -> None:
    name = embedded.encoder_identity(embedded.folder())
    assert name.startswith("ge2e-") and len(name.split("-")) == 3
    for file in embedded.folder().glob("*.*z*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with np.load(tmp_path / "plda.npz") as arrays:
        changed = dict(arrays)
    changed["mu"] = changed["mu"] + 1
    np.savez(tmp_path / "plda.npz", **changed)
    (tmp_path / "encoder.safetensors").write_bytes(
        (embedded.folder() / "encoder.safetensors").read_bytes()
    )
    assert embedded.encoder_identity(tmp_path) != name


def test_a_folder_without_the_encoder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        embedded.build(tmp_path)


def scored(diarizer: PyannoteDiarizer, cases: Iterator[Case]) -> Errors:
    total = Errors()
    for case in cases:
        found = diarizer.diarize(case.samples)
        total += turn_errors(case.turns, found.regular, len(case.samples))
    return total


def test_two_women_on_the_telephone_are_told_apart(diarizer: PyannoteDiarizer) -> None:
    errors = scored(diarizer, telephone())
    assert errors.der <= 0.25 and errors.right == 1.0


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="no folder with real voices")
def test_mixtures_of_unknown_voices_are_told_apart(diarizer: PyannoteDiarizer) -> None:
    errors = scored(diarizer, mixed(DATA, "test", 12))
    assert errors.der <= 0.08 and errors.right >= 0.8


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="no folder with real voices")
def test_a_far_meeting_has_a_valid_answer(diarizer: PyannoteDiarizer) -> None:
    for case in ami(DATA):
        assert valid(diarizer.diarize(case.samples), len(case.samples))
