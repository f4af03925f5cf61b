"""Enrolment: from a recording to a voice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from forescribe.asr.errors import UsageError
from forescribe.diarize.diarizer import Engine
from forescribe.diarize.known_speakers import extract_voice, read_speaker_audio
from forescribe.diarize.speaker_finder import add_speakers
from tests.diarize.attribution.test_word_speakers import said
from tests.diarize.conversations import transcript
from tests.diarize.engines.fake_engines import RATE, LevelDiarizer, sound, vector

TALK = sound((1, 0.5), (1, 0), (2, 0.1), (1, 0.5))


def test_a_clip_of_one_person_is_heard_as_one() -> None:
    engine = LevelDiarizer()
    voice = extract_voice(engine, sound((4, 0.5)), "Zoë")
    assert voice.vector is not None and np.array_equal(voice.vector, vector("LOUD"))
    assert voice.samples == 4 * RATE and engine.bounds[0].exactly == 1


def test_a_silent_clip_and_an_engine_without_voices_are_refused() -> None:
    with pytest.raises(UsageError, match="no speech found in the 1.0 s of the recording.*'Zoë'"):
        extract_voice(LevelDiarizer(), sound((1, 0)), "Zoë")
    engine = LevelDiarizer()
    engine.engine = Engine("deaf")
    with pytest.raises(UsageError, match="deaf has no speaker encoder"):
        extract_voice(engine, TALK, "Zoë")


def test_a_labelled_part_of_a_transcript_is_what_this_speaker_says(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "talk.wav", TALK, RATE)
    words = [said(" one", 0, 1), said(" two", 2, 4), said(" three", 4, 5)]
    told = add_speakers(transcript([words]), LevelDiarizer().diarize(TALK))
    (tmp_path / "talk.json").write_text(json.dumps(told.to_dict()))
    found = read_speaker_audio(str(tmp_path / "talk.wav"), tmp_path / "talk.json", "Speaker A")
    assert len(found) == 2 * RATE and np.abs(found).min() > 0.4
    with pytest.raises(UsageError, match="'Bob' says nothing.*Speaker A, Speaker B"):
        read_speaker_audio(str(tmp_path / "talk.wav"), tmp_path / "talk.json", "Bob")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UsageError, match=r"other\.json.*not a transcript"):
        read_speaker_audio(str(tmp_path / "talk.wav"), tmp_path / "other.json", "Bob")
