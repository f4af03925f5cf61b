"""Transcription with speakers: they are found while the words are decoded, by a bundled pair."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import soundfile

from forescribe.asr.decode.options import Options
from forescribe.asr.decode.transcriber import Transcriber
from forescribe.asr.errors import CapacityError
from forescribe.asr.formats.files import rttm
from forescribe.diarize import speaker_finder
from forescribe.diarize.diarizer import Bounds
from forescribe.diarize.known_speakers import KnownSpeaker
from forescribe.diarize.speaker_finder import SpeakerFinder, SpeakerOnlyTranscriber
from tests import full_disk
from tests.diarize.engines.fake_engines import RATE, LevelDiarizer, sound, vector

TALK = sound((1, 0.5), (1, 0), (2, 0.1))
MEMO = Path(__file__).parents[3] / "samples" / "memo.flac"


class Full(LevelDiarizer):
    def diarize(self, *given: object, **others: object) -> None:  # type: ignore[override]
        raise CapacityError("full")


class Broken(LevelDiarizer):
    def diarize(self, *given: object, **others: object) -> None:  # type: ignore[override]
        raise RuntimeError("broken")


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    return Transcriber.load("tiny.en", device="cpu", network=False, batch=2, beam_size=1)


@pytest.fixture
def talk(tmp_path: Path) -> str:
    soundfile.write(tmp_path / "my talk.wav", TALK, RATE)
    return str(tmp_path / "my talk.wav")


@pytest.fixture
def spoken(tmp_path: Path) -> str:
    """Words, of which the second half is quiet."""
    samples, rate = soundfile.read(MEMO, stop=12 * RATE)
    samples[6 * RATE :] *= 0.1
    soundfile.write(tmp_path / "memo.wav", samples, rate)
    return str(tmp_path / "memo.wav")


def test_the_words_are_the_transcribers_and_the_speakers_the_diarizers(
    transcriber: Transcriber, spoken: str
) -> None:
    (plain,) = transcriber.transcribe([spoken], Options(words=True))
    (outcome,) = transcriber.with_speakers(SpeakerFinder(LevelDiarizer())).transcribe([spoken])
    found = outcome.transcript
    assert found is not None and plain.transcript is not None
    assert found.text == plain.transcript.text
    assert all(word.speaker is not None for s in found.segments for word in s.words or ())
    assert found.settings["diarization"]["name"] == "level"  # type: ignore[index, call-overload]
    assert rttm(found).startswith("SPEAKER memo 1 ")


def test_a_broken_recording_fails_alone_and_the_others_have_their_own_speakers(
    transcriber: Transcriber, talk: str, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "quiet.wav", sound((2, 0.1)), RATE)
    (tmp_path / "text.wav").write_text("no sound" * 100)
    names = [talk, str(tmp_path / "text.wav"), str(tmp_path / "quiet.wav")]
    finder = SpeakerFinder(LevelDiarizer())
    found = {o.name: o for o in transcriber.with_speakers(finder).transcribe(names)}
    assert found[names[1]].error is not None and found[names[1]].transcript is None
    one, other = found[names[0]].transcript, found[names[2]].transcript
    assert one is not None and other is not None
    assert (len(one.turns), len(other.turns)) == (2, 1)


def test_a_recording_whose_speakers_cannot_be_found_fails_with_the_reason(
    transcriber: Transcriber, talk: str
) -> None:
    (full,) = transcriber.with_speakers(SpeakerFinder(Full())).transcribe([talk])
    assert isinstance(full.error, CapacityError) and full.transcript is None
    ways = transcriber.with_speakers(SpeakerFinder(Broken())), SpeakerOnlyTranscriber(Broken())
    for way in ways:
        (broken,) = way.transcribe([talk])
        assert broken.error is not None and broken.error.code == "internal_error"
        assert "finding its speakers: RuntimeError: broken" in str(broken.error)


def test_a_full_temporary_disk_costs_the_recording_that_meets_it_and_no_other(
    transcriber: Transcriber, talk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "quiet.wav", sound((2, 0.1)), RATE)
    files = iter([full_disk.TemporaryFile, tempfile.TemporaryFile])
    opened = SimpleNamespace(TemporaryFile=lambda **named: next(files)(**named))
    monkeypatch.setattr(speaker_finder, "tempfile", opened)
    names = [talk, str(tmp_path / "quiet.wav")]
    found = transcriber.with_speakers(SpeakerFinder(LevelDiarizer())).transcribe(names)
    outcomes = {outcome.name: outcome for outcome in found}
    failed, other = outcomes[names[0]], outcomes[names[1]].transcript
    assert failed.error is not None and failed.error.code == "storage_full"
    assert failed.transcript is None and other is not None and len(other.turns) == 1


def test_leaving_early_ends_the_thread(transcriber: Transcriber, talk: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "quiet.wav", sound((2, 0.1)), RATE)
    names = [talk, str(tmp_path / "quiet.wav")]
    outcomes = transcriber.with_speakers(SpeakerFinder(LevelDiarizer())).transcribe(names)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("diarize")]


def test_a_known_voice_is_called_by_its_name(talk: str) -> None:
    people = [
        KnownSpeaker("Zoë", "levels-1", vector("LOUD"), RATE, 1, ""),
        KnownSpeaker("Ada", "other", vector("QUIET"), RATE, 1, ""),
    ]
    (outcome,) = SpeakerOnlyTranscriber(LevelDiarizer(), known=people).transcribe([talk])
    assert outcome.transcript is not None
    assert [turn.speaker for turn in outcome.transcript.turns] == ["Zoë", "Speaker B"]


def test_turns_without_words(talk: str) -> None:
    engine = LevelDiarizer()
    (outcome,) = SpeakerOnlyTranscriber(engine, Bounds(at_most=5)).transcribe([talk])
    found = outcome.transcript
    assert found is not None and found.segments == () and len(found.turns) == 2
    assert found.diarized and found.coverage.decoded_samples == len(TALK)
    assert engine.bounds == [Bounds(at_most=5)]
