"""`forescribe speakers`, with an engine that hears levels."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
from typer.testing import CliRunner, Result

from asr.errors import UsageError
from diarize import engines
from diarize.cli import prepare, speakers
from tests.diarize.engines import RATE, LevelDiarizer, sound


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESCRIBE_SPEAKERS", str(tmp_path / "voices"))
    monkeypatch.setattr(engines, "load", lambda name, **options: LevelDiarizer())


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
    with pytest.raises(UsageError, match="too little"):
        run("add", "Zoë", clip(tmp_path, "short.wav", 0.5, seconds=1))
    with pytest.raises(UsageError, match="go together"):
        run("add", "Zoë", clip(tmp_path, "long.wav", 0.5), "--speaker", "SPEAKER_00")
    assert not (tmp_path / "voices").exists()


def asked(**options: object) -> object:
    given: dict[str, object] = {
        "num_speakers": None,
        "min_speakers": None,
        "max_speakers": None,
        "known": False,
        "device": "cpu",
        "network": False,
    }
    return prepare("auto", **{**given, **options})  # type: ignore[arg-type]


def test_bounds_are_checked_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(name: str, **options: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(engines, "load", loads)
    with pytest.raises(UsageError, match="at least 3 and at most 2"):
        asked(min_speakers=3, max_speakers=2)
    with pytest.raises(UsageError, match="nobody is"):
        asked(known=True)
