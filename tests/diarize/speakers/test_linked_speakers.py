"""Labels that mean one speaker in all recordings, and their storage."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.errors import OutputError
from forescribe.diarize.diarizer import Diarization, Engine, SimilarityThresholds, Voice
from forescribe.diarize.known_speakers import KnownSpeaker
from forescribe.diarize.linked_speakers import NAME, LinkedSpeakers
from forescribe.diarize.transcribers import add_speakers
from forescribe.diarize.turns import Turns
from tests.diarize.conversations import transcript

ENGINE = Engine("test", "e", SimilarityThresholds(same=0.9, possible=0.7))
RATE = 16_000


def heard(*angles: float | None, seconds: float = 10, engine: Engine = ENGINE) -> Diarization:
    """A recording with one turn for each voice, given as the direction of its vector in degrees."""
    length = round(seconds * RATE)
    turns = Turns.of((n * length, (n + 1) * length, f"{n}") for n in range(len(angles)))
    voices = tuple(Voice(f"{n}", _direction(angle), length) for n, angle in enumerate(angles))
    return Diarization.of(turns, turns, voices, length * len(angles), engine)


def _direction(angle: float | None) -> np.ndarray | None:
    if angle is None:
        return None
    return np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))], np.float32)


def labels(people: LinkedSpeakers, recording: str, diarization: Diarization) -> list[str]:
    found, _ = people.relabel(recording, diarization)
    assert [t.start for t in found.regular] == [t.start for t in diarization.regular]
    return [name.removeprefix("SPEAKER_") for name in found.speakers]


def test_a_speaker_keeps_the_label_in_later_recordings_and_others_get_new_ones() -> None:
    people = LinkedSpeakers()
    assert labels(people, "a", heard(0, 90)) == ["00", "01"]
    assert labels(people, "b", heard(180, 92, 3)) == ["02", "01", "00"]


def test_two_speakers_of_one_recording_are_never_one_person() -> None:
    people = LinkedSpeakers()
    labels(people, "a", heard(0))
    assert labels(people, "b", heard(8, 2)) == ["01", "00"]


def test_an_uncertain_match_is_reported_and_not_linked() -> None:
    people = LinkedSpeakers()
    labels(people, "a", heard(0))
    found, (match,) = people.relabel("b", heard(35))
    assert found.speakers == ("SPEAKER_01",)
    assert (match.speaker, match.name, match.sure) == ("SPEAKER_01", "SPEAKER_00", False)


def test_a_suggestion_names_the_label_that_the_transcript_has() -> None:
    people = LinkedSpeakers()
    labels(people, "a", heard(90))
    anna = KnownSpeaker("Anna", "e", np.array([1, 0], np.float32), 160_000, 1, "2026-01-01")
    told = add_speakers(transcript([]), heard(35, 180), [anna], people, source="b")
    (match,) = told.settings["diarization"]["matches"]
    assert (match["speaker"], match["name"], match["sure"]) == ("SPEAKER_01", "Anna", False)
    assert any(notice.message.startswith("SPEAKER_01 may be Anna") for notice in told.warnings)


def test_names_stay_and_seconds_of_speech_are_needed() -> None:
    people = LinkedSpeakers()
    zoe = heard(0, 90).renamed({"SPEAKER_00": "Zoë"})
    found, _ = people.relabel("a", zoe)
    assert found.speakers == ("Zoë", "SPEAKER_00")
    assert labels(people, "b", heard(90, seconds=2)) == ["01"]
    assert labels(people, "c", heard(None, 90)) == ["02", "00"]


def test_voices_of_another_encoder_get_new_labels() -> None:
    people = LinkedSpeakers()
    labels(people, "a", heard(0))
    assert labels(people, "b", heard(0, engine=Engine("other", "f"))) == ["01"]
    assert labels(people, "c", heard(0, engine=Engine("none", None))) == ["02"]


def test_a_later_run_knows_earlier_speakers_and_a_repeated_recording_replaces_itself(
    tmp_path: Path,
) -> None:
    labels(LinkedSpeakers(tmp_path), str(tmp_path / "a.wav"), heard(0, 90))
    later = LinkedSpeakers(tmp_path)
    assert labels(later, str(tmp_path / "b.wav"), heard(90)) == ["01"]
    # 45 degrees match no voice, as earlier entries of the same recording are ignored.
    assert labels(later, str(tmp_path / "a.wav"), heard(45)) == ["02"]
    assert labels(LinkedSpeakers(tmp_path), str(tmp_path / "c.wav"), heard(45, 0)) == ["02", "03"]
    lines = (tmp_path / NAME).read_text().splitlines()
    assert [json.loads(line)["recording"] for line in lines] == ["a.wav", "b.wav", "a.wav", "c.wav"]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_two_processes_in_one_folder_see_each_other(tmp_path: Path) -> None:
    one, other = LinkedSpeakers(tmp_path), LinkedSpeakers(tmp_path)
    assert labels(one, "a", heard(0)) == ["00"]
    assert labels(other, "b", heard(90, 0)) == ["01", "00"]
    assert labels(one, "c", heard(90)) == ["01"]


def test_an_incomplete_line_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    labels(LinkedSpeakers(tmp_path), "a", heard(0))
    with (tmp_path / NAME).open("a") as file:
        file.write('{"recording": "b", "enc')
    assert labels(LinkedSpeakers(tmp_path), "c", heard(90, 0)) == ["01", "00"]
    assert labels(LinkedSpeakers(tmp_path), "d", heard(90)) == ["01"]


def test_an_error_names_the_option_if_the_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="leave out --link-speakers"):
        LinkedSpeakers(tmp_path / "missing").relabel("a", heard(0))


@given(st.lists(st.lists(st.floats(0, 360), max_size=3), max_size=5))
def test_no_label_is_given_twice_in_a_recording_and_none_is_left_out(
    recordings: list[list[float]],
) -> None:
    people, seen = LinkedSpeakers(), set[str]()
    for number, angles in enumerate(recordings):
        found = labels(people, str(number), heard(*angles))
        assert len(set(found)) == len(angles)
        seen |= set(found)
    assert seen == {f"{n:02d}" for n in range(len(seen))}
