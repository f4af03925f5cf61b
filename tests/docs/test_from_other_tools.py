"""docs/from-other-tools.md: what it shows is run, with published weights where other programs keep theirs.

Blocks of faster-whisper are run too, and write the same words; openai-whisper and whisperX are not installed,
nor are the other programs' commands.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import soundfile

from forescribe.asr.model.presets import locate
from tests import real
from tests.asr.model.conversion.openai_files import write_pt
from tests.docs.commands import commands
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.test_commands import run_command

PAGE = "docs/from-other-tools.md"
THEIRS = re.compile(r"# (openai-whisper|faster-whisper|whisperX)\n")
RUN = ("faster-whisper",)
"""Of the group `real`."""

SAID = "ask not what your country can do for you"


def of_page(*languages: str) -> list[Block]:
    return [block for block in blocks(*languages) if block.page == PAGE]


def program(block: Block) -> str | None:
    found = THEIRS.match(block.text)
    return None if found is None else found[1]


def names() -> set[str]:
    """What the page passes to --model and to our functions."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    typed = re.findall(r"^forescribe [^#\n]*--model (\S+)", text, re.M)
    given = [b.text for b in of_page("python") if program(b) is None]
    return {*typed, *re.findall(r'(?:load\(|"talk\.mp3", )"([^"]+)"', "".join(given))}


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """A user's folder with `base` of the other programs, and a talk."""
    folder = real.model(real.BASE)
    plain = locate(folder)  # converted before the cache is another one
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FORESCRIBE_CACHE", str(tmp_path / "converted"))
    hub = tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / ".cache" / "whisper").mkdir(parents=True)
    write_pt(plain, tmp_path / ".cache" / "whisper" / "base.pt")
    repository = hub / "models--Systran--faster-whisper-base"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copy(real.voice("jfk"), tmp_path / "talk.mp3")
    soundfile.write(tmp_path / "talk.wav", *soundfile.read(tmp_path / "talk.mp3"), "PCM_16")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly  # faster-whisper is of the group `real`, which CI does not install
@pytest.mark.weights
def test_every_block_runs_and_hears_the_same_words(machine, monkeypatch, capsys) -> None:
    heard = []
    for block in of_page("python"):
        theirs = program(block)
        if theirs not in (None, *RUN):
            continue
        text = block.text
        scope: dict[str, object] = {}
        exec(compile(text, block.name, "exec"), scope)
        out = capsys.readouterr().out
        heard.append((theirs, out))
        if "diarize=True" in text:
            assert "Speaker A" in out
        else:
            assert SAID in " ".join(re.sub(r"[\d.,:]+", " ", out).lower().split()), block.name
    assert [theirs for theirs, _ in heard].count(None) == 3


@pytest.mark.slow
@pytest.mark.weights
def test_every_command_of_ours_writes_its_result(machine, monkeypatch, capfd) -> None:
    typed = [c for b in of_page("sh") for c in commands(b) if c.program == "forescribe"]
    assert len(typed) == 3
    for command in typed:
        for old in (*machine.glob("talk.srt"), *machine.glob("talk.json")):
            old.unlink()
        assert run_command(command.words[1:], monkeypatch) == 0, capfd.readouterr().err
        made = machine / ("talk.json" if "json" in command.words else "talk.srt")
        assert SAID in made.read_text(encoding="utf-8").lower()
        if made.suffix == ".json":
            segments = json.loads(made.read_text())["segments"]
            assert all(w["speaker"] == "Speaker A" for s in segments for w in s["words"])


def test_its_names_are_those_that_are_looked_for() -> None:
    assert names() == {"base.pt", "Systran/faster-whisper-base"}
