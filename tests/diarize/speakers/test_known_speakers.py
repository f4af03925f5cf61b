"""Known speakers: storage and recognition."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from forescribe.asr.errors import OutputError, UsageError
from forescribe.diarize.diarizer import Diarization, Engine, SimilarityThresholds, Voice
from forescribe.diarize.known_speakers import (
    KnownSpeaker,
    KnownSpeakers,
    default_folder,
    match_voices,
    name_known_speakers,
)
from forescribe.diarize.turns import Turns

THRESHOLDS = SimilarityThresholds(same=0.8, possible=0.6)
RATE = 16_000


def voice(angle: float, speaker: str = "Speaker A", seconds: float = 10) -> Voice:
    radians = np.radians(angle)
    vector = np.array([np.cos(radians), np.sin(radians)], np.float32)
    return Voice(speaker, vector, round(seconds * RATE))


def known(name: str, angle: float, encoder: str = "e") -> KnownSpeaker:
    vector = voice(angle).vector
    assert vector is not None
    return KnownSpeaker(name, encoder, vector, RATE, 1, "2026-01-01")


def test_added_speakers_are_listed_and_removed_ones_are_not(tmp_path: Path) -> None:
    store = KnownSpeakers(tmp_path / "new")
    assert store.list() == []
    store.add(" Zoë  Smith ", "e", voice(10), note="agreed by mail")
    store.add("Al/ex..", "e", voice(90))
    assert [(k.name, k.encoder, k.clips, k.note) for k in store.list()] == [
        ("Al/ex..", "e", 1, ""),
        ("Zoë Smith", "e", 1, "agreed by mail"),
    ]
    assert store.remove("Zoë Smith") == 1
    assert [k.name for k in store.list()] == ["Al/ex.."]
    with pytest.raises(UsageError, match="'Zoë Smith' is known; known: Al/ex"):
        store.remove("Zoë Smith")


def test_files_are_for_their_owner_only_and_hold_no_sound(tmp_path: Path) -> None:
    store = KnownSpeakers(tmp_path / "new")
    store.add("Zoë", "e", voice(10))
    (file,) = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.stat().st_size < 1000


def test_another_clip_moves_the_voice_in_proportion_to_its_speech(tmp_path: Path) -> None:
    store = KnownSpeakers(tmp_path)
    store.add("Zoë", "e", voice(0, seconds=30), note="first")
    both = store.add("Zoë", "e", voice(40, seconds=10))
    angle = np.degrees(np.arctan2(both.vector[1], both.vector[0]))
    assert 5 < angle < 15 and both.clips == 2 and both.note == "first"
    assert both.seconds == 40 and len(store.list()) == 1


def test_too_little_speech_and_no_name_are_refused(tmp_path: Path) -> None:
    store = KnownSpeakers(tmp_path)
    with pytest.raises(UsageError, match=r"1\.0 s of speech found .* too little .*at least 3 s"):
        store.add("Zoë", "e", voice(0, seconds=1))
    with pytest.raises(UsageError, match="too little"):
        store.add("Zoë", "e", Voice("x", None, 100 * RATE))
    with pytest.raises(UsageError, match="needs a name"):
        store.add(" ", "e", voice(0))
    for label in ("Speaker A", "speaker  b", "Speaker_C1", "unknown", "Unknown speaker"):
        with pytest.raises(UsageError, match="cannot be a name: results call speakers so"):
            store.add(label, "e", voice(0))
    assert store.list() == []


def test_errors_name_a_damaged_file_and_a_folder_without_access(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match=r"x\.json"):
        KnownSpeakers(tmp_path).list()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="FORESCRIBE_SPEAKERS"):
        KnownSpeakers(tmp_path / "file" / "below").add("Zoë", "e", voice(0))


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESCRIBE_SPEAKERS", "/x/y")
    assert default_folder() == Path("/x/y")
    monkeypatch.delenv("FORESCRIBE_SPEAKERS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/forescribe/speakers")


def test_similar_voices_are_named_uncertain_ones_suggested_others_ignored() -> None:
    people = [known("Zoë", 0)]
    assert match_voices([voice(20)], people, "e", THRESHOLDS)[0].sure
    (doubtful,) = match_voices([voice(45)], people, "e", THRESHOLDS)
    assert doubtful.name == "Zoë" and not doubtful.sure
    assert match_voices([voice(70)], people, "e", THRESHOLDS) == []


def test_two_speakers_are_never_the_same_known_person() -> None:
    found = match_voices([voice(10, "A"), voice(5, "B")], [known("Zoë", 0)], "e", THRESHOLDS)
    assert [(m.speaker, m.name) for m in found] == [("B", "Zoë")]


def test_between_two_similar_speakers_no_name_is_sure() -> None:
    (found,) = match_voices([voice(10)], [known("Zoë", 0), known("Ada", 18)], "e", THRESHOLDS)
    assert not found.sure


def test_vectors_of_another_encoder_are_never_compared() -> None:
    assert match_voices([voice(0)], [known("Zoë", 0, encoder="other")], "e", THRESHOLDS) == []
    assert match_voices([Voice("x", None, 0)], [known("Zoë", 0)], "e", THRESHOLDS) == []


def test_only_sure_matches_name_the_speakers_of_a_diarization() -> None:
    turns = Turns.of([(0, 5, "x"), (5, 9, "y"), (9, 12, "z")])
    voices = (voice(0, "x"), voice(88, "y"), voice(45, "z"))
    given = Diarization.of(turns, turns, voices, 12, Engine("test", "e", THRESHOLDS))
    found, told = name_known_speakers(given, [known("Zoë", 2), known("Ada", 300), known("Eve", 95)])
    assert found.speakers == ("Zoë", "Eve", "Speaker C")
    assert {match.name for match in told if match.sure} == {"Zoë", "Eve"}
    assert [v.speaker for v in found.voices] == ["Zoë", "Eve", "Speaker C"]
