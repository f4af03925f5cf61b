"""`forescribe speakers`, with an engine that hears levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner, Result

from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.cli.speakers import speakers
from forescribe.cli.transcribe_options import TranscribeOptions
from forescribe.diarize.channels import ChannelTranscriber
from forescribe.diarize.diarizer import Engine
from forescribe.diarize.engines import registry
from tests.diarize.engines.fake_engines import RATE, LevelDiarizer, sound


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESCRIBE_SPEAKERS", str(tmp_path / "voices"))
    monkeypatch.setattr(registry, "load", lambda name, **options: LevelDiarizer())


def options(**given: Any) -> TranscribeOptions:
    return TranscribeOptions(audio=["a.wav"], **given)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(speakers, arguments, catch_exceptions=False)


def clip(folder: Path, name: str, level: float, seconds: float = 4) -> str:
    soundfile.write(folder / name, sound((seconds, level)), RATE)
    return str(folder / name)


def test_people_are_added_listed_and_removed(tmp_path: Path) -> None:
    loud, more = clip(tmp_path, "a.wav", 0.5), clip(tmp_path, "b.wav", 0.6)
    added = run("add", "Zoë", loud, more, "--note", "agreed")
    assert added.stdout == "Zoë: 2 clips, 8.0 s of speech (levels-1)\n"
    listed = run("list")
    assert "Zoë: 2 clips, 8.0 s, levels-1" in listed.stdout and "agreed" in listed.stdout
    assert run("remove", "Zoë").stdout == "Zoë: 1 voices removed\n"
    assert "Zoë" not in run("list").stdout


def test_what_cannot_be_enrolled_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    long, short = clip(tmp_path, "long.wav", 0.5), clip(tmp_path, "short.wav", 0.5, seconds=1)
    with pytest.raises(UsageError, match=r"1\.0 s of speech.*short\.wav.*Zoë.*3 s of speech"):
        run("add", "Zoë", long, short)
    with pytest.raises(UsageError, match=r"no speech found in the 5\.0 s of .*still\.wav"):
        run("add", "Zoë", clip(tmp_path, "still.wav", 0, seconds=5))
    with pytest.raises(UsageError, match="go together"):
        run("add", "Zoë", long, "--speaker", "Speaker A")
    assert not (tmp_path / "voices").exists()


def test_what_contradicts_itself_is_refused_before_anything_is_loaded() -> None:
    for given, said in (
        ({"diarize": True, "known": True}, "no speaker is enrolled"),
        ({"channels": "stereo"}, "stereo is neither mix nor split"),
    ):
        with pytest.raises(UsageError, match=said):
            options(**given)
    assert not options().names_speakers
    assert options(diarize=True).names_speakers and options(channels="split").names_speakers


def test_the_fingerprint_knows_the_engine_the_bounds_and_the_voices(tmp_path: Path) -> None:
    def settings(**given: Any) -> Any:
        made = options(diarize=True, diarizer="embedded", **given)
        return made.speaker_settings(network=False)

    plain = settings()
    assert plain["diarizer"] == "embedded"
    assert settings(num_speakers=2) != plain
    run("add", "Zoë", clip(tmp_path, "a.wav", 0.5))
    assert settings(known=True) != plain


def test_a_transcriber_is_left_alone_where_nobody_asked() -> None:
    transcriber: Any = object()
    assert options().add_speakers("auto", False)(transcriber) is transcriber
    split = options(channels="split").add_speakers("auto", False)(transcriber)
    assert isinstance(split, ChannelTranscriber)


def diarized(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["diarize", *arguments], catch_exceptions=False)


def test_voices_of_another_encoder_are_not_ignored_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = clip(tmp_path, "a.wav", 0.5)
    run("add", "Zoë", talk)
    assert diarized(talk, "-o", str(tmp_path / "named"), "--known").exit_code == 0
    assert "Zoë" in (tmp_path / "named" / "a.json").read_text()

    class Newer(LevelDiarizer):
        engine = Engine("level", "levels-2")

    monkeypatch.setattr(registry, "load", lambda name, **options: Newer())
    with pytest.raises(
        UsageError, match=r"no speaker was enrolled with the engine level \(levels-2\)"
    ):
        diarized(talk, "-o", str(tmp_path / "new"), "--known")


def test_a_line_says_who_was_heard_and_for_how_long_or_that_nobody_was(tmp_path: Path) -> None:
    talk = str(tmp_path / "talk.wav")
    soundfile.write(talk, sound((2, 0.5), (1, 0), (3, 0.1)), RATE)
    said = diarized(talk, clip(tmp_path, "still.wav", 0, 1), "-o", str(tmp_path)).stderr
    assert "talk.wav: 6.0 s of audio, 2 speakers: Speaker A 2.0 s, Speaker B 3.0 s -> " in said
    assert "still.wav: 1.0 s of audio, no speech -> " in said
