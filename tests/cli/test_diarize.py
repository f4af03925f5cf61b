"""The command with speakers, from a recording to files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from benchmarks.quality.diarization import read_rttm, turn_errors
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript_parts import Word
from forescribe.cli.main import app
from forescribe.diarize.attribution import attribute_speakers
from forescribe.diarize.engines import registry
from forescribe.diarize.turns import Turns
from tests.diarize.conversations import transcript
from tests.diarize.engines.fake_engines import LevelDiarizer, sound

ROOT = Path(__file__).parent.parent.parent
CONVERSATION = ROOT / "samples" / "conversation.flac"


def run(*arguments: str) -> None:
    CliRunner().invoke(app, [*arguments, "-q"], catch_exceptions=False)


@pytest.mark.slow
def test_diarize_writes_turns_that_fit_the_reference_and_does_nothing_twice(tmp_path: Path) -> None:
    command = ("diarize", str(CONVERSATION), "-o", str(tmp_path), "--diarizer", "embedded")
    run(*command)
    found = read_rttm((tmp_path / "conversation.rttm").read_text())["conversation"]
    truth = read_rttm(CONVERSATION.with_suffix(".rttm").read_text())["conversation"]
    errors = turn_errors(truth, found, len(read_audio(CONVERSATION)))
    assert errors.right == 1 and errors.confusion < 0.02
    data = json.loads((tmp_path / "conversation.json").read_text())
    assert data["diarized"] and data["settings"]["diarization"]["name"] == "embedded"
    written = (tmp_path / "conversation.rttm").stat().st_mtime_ns
    run(*command)
    assert (tmp_path / "conversation.rttm").stat().st_mtime_ns == written


@pytest.mark.slow
def test_transcribe_puts_a_speaker_on_every_word_and_changes_none(tmp_path: Path) -> None:
    half = read_audio(CONVERSATION)[: 30 * 16_000]
    soundfile.write(tmp_path / "talk.wav", half, 16_000)
    common = ("transcribe", str(tmp_path / "talk.wav"), "--model", "tiny.en", "--word-timestamps")
    run(*common, "-o", str(tmp_path / "plain"), "-f", "json")
    speakers = ("--diarize", "--diarizer", "embedded")
    run(*common, *speakers, "-o", str(tmp_path / "spoken"), "-f", "all")
    plain = json.loads((tmp_path / "plain" / "talk.json").read_text())
    spoken = json.loads((tmp_path / "spoken" / "talk.json").read_text())
    assert spoken["text"] == plain["text"]
    words = [word for segment in spoken["segments"] for word in segment["words"]]
    assert [word["word"] for word in words] == [
        word["word"] for segment in plain["segments"] for word in segment["words"]
    ]
    assert {word["speaker"] for word in words} >= {"Speaker A", "Speaker B"}
    assert "<v Speaker B>" in (tmp_path / "spoken" / "talk.vtt").read_text()
    assert "SPEAKER talk 1 " in (tmp_path / "spoken" / "talk.rttm").read_text()
    assert not (tmp_path / "plain" / "talk.rttm").exists()


@pytest.mark.slow
def test_the_sides_of_a_call_are_its_speakers(tmp_path: Path) -> None:
    samples = read_audio(CONVERSATION)[: 11 * 16_000]
    left, right = samples.copy(), samples.copy()
    left[round(5.0 * 16_000) :], right[: round(5.0 * 16_000)] = 0, 0
    soundfile.write(tmp_path / "call.wav", np.stack([left, right], 1), 16_000)
    run(
        *("transcribe", str(tmp_path / "call.wav"), "--model", "tiny.en", "--channels", "split"),
        *("-o", str(tmp_path), "-f", "json"),
    )
    data = json.loads((tmp_path / "call.json").read_text())
    assert [segment["speaker"] for segment in data["segments"]][0] == "Speaker A"
    assert {segment["speaker"] for segment in data["segments"]} == {"Speaker A", "Speaker B"}


def test_a_transcript_gets_new_speakers_with_one_name_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "load", lambda name, **options: LevelDiarizer())
    soundfile.write("talk.wav", sound((1, 0.5), (1, 0.1)), 16_000)
    soundfile.write("long.wav", sound((3, 0.5)), 16_000)
    words = [Word(f" {n}.", 8000 * n, 8000 * (n + 1)) for n in range(4)]
    turns = Turns.of([(0, 24_000, "Anna"), (24_000, 32_000, "Bob")])
    old = attribute_speakers(transcript([words]), turns, turns)
    Path("old.json").write_text(json.dumps(old.to_dict()))

    def again(audio: str, *more: str) -> int:
        command = ["diarize", "--transcript", "old.json", audio, "--diarizer", "embedded", *more]
        return CliRunner().invoke(app, command, catch_exceptions=False).exit_code

    assert again("talk.wav", "-f", "all") == 0
    data = json.loads(Path("talk.json").read_text())
    found = [(s["speaker"], s["text"]) for s in data["segments"]]
    assert found == [("Speaker A", " 0. 1."), ("Speaker B", " 2. 3.")]
    assert {w["speaker"] for s in data["segments"] for w in s["words"]} == {w for w, _ in found}
    assert "[Speaker B]: 2. 3." in Path("talk.srt").read_text()
    listed = read_rttm(Path("talk.rttm").read_text())["talk"].speakers
    assert list(listed) == ["Speaker_A", "Speaker_B"], "names in RTTM have no spaces"
    assert again("long.wav") == 1 and not Path("long.json").exists()
    with pytest.raises(UsageError, match="one recording, and there are 2"):
        again("talk.wav", "long.wav")
    Path("talk.wav").rename("old.wav")
    with pytest.raises(UsageError, match="would be replaced"):
        again("old.wav")
    assert again("old.wav", "--overwrite") == 0
    Path("old.json").write_text(json.dumps(transcript([words], words=False).to_dict()))
    with pytest.raises(UsageError, match="--word-timestamps -f json"):
        again("talk.wav")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("transcribe", "-f", "rttm"), "add --diarize"),
        (("transcribe", "--num-speakers", "2"), "need --diarize"),
        (("transcribe", "--diarize", "--channels", "split"), "already"),
        (("transcribe", "--diarize", "--no-word-timestamps"), "speakers need the words' times"),
        (("diarize", "-f", "srt"), "no words to write"),
        (("diarize", "--transcript", str(ROOT / "README.md")), "README.md' is not a transcript"),
        (("diarize", "--min-speakers", "3", "--max-speakers", "2"), "at least 3 and at most 2"),
        (("diarize", "--diarizer", "nobody"), "neither an engine nor a folder"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(*arguments, str(CONVERSATION), "-o", str(tmp_path / "out"))
