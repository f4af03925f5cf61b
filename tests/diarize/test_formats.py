"""OpenAI's diarized_json."""

from __future__ import annotations

from dataclasses import replace

from diarize.attribute import attributed
from diarize.formats import diarized_json, letters
from tests.diarize.conversations import transcript
from tests.diarize.test_assign import even, heard, said


def test_the_contracts_keys_are_all_there_and_speakers_are_letters() -> None:
    given = transcript(
        [even(5, sign="."), even(5, 2.2, sign="."), [said(" Thank you.", 60.0, 61.5)]]
    )
    turns = heard((0, 2.1, "SPEAKER_00"), (2.1, 7, "Zoë"))
    body = diarized_json(attributed(given, turns, turns))
    assert set(body) == {"task", "duration", "text", "segments", "usage"}
    assert body["usage"] == {"type": "duration", "seconds": 62}
    segments = body["segments"]
    assert isinstance(segments, list)
    assert [s["speaker"] for s in segments] == ["A", "Zoë", "unknown"]  # type: ignore
    assert [s["id"] for s in segments] == ["seg_001", "seg_002", "seg_003"]  # type: ignore
    for segment in segments:
        assert set(segment) == {"type", "id", "start", "end", "text", "speaker"}  # type: ignore
    assert body["text"] == " ".join(s["text"] for s in segments)  # type: ignore


def test_no_speech_is_an_empty_answer() -> None:
    empty = replace(transcript([]), segments=())
    assert diarized_json(empty)["segments"] == [] and diarized_json(empty)["text"] == ""


def test_letters_go_on_behind_z_and_take_nobodys_name() -> None:
    many = [f"SPEAKER_{n:02d}" for n in range(28)]
    assert list(letters([*many]).values())[1:] == [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "AA", "AB"]
    assert letters(["B", "SPEAKER_00", "SPEAKER_01"])["SPEAKER_01"] == "C"
