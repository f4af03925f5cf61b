"""`forescribe models`, and what a name for --model means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forescribe.asr.errors import ModelError
from forescribe.asr.model.presets import PRESETS, resolve
from forescribe.cli.main import app
from forescribe.speculative.models import hub


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """A user's folder with a model of openai-whisper's."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "FORESCRIBE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    hub = tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    (tmp_path / ".cache" / "whisper").mkdir(parents=True)
    (tmp_path / ".cache" / "whisper" / "tiny.pt").write_bytes(b"PK" + bytes(998))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_presets_are_printed_in_eighty_columns(machine) -> None:
    presets = {preset["name"]: preset for preset in json.loads(listed("--json"))["presets"]}
    assert presets["large"]["state"] is presets["large"]["size_bytes"] is None
    assert presets["tiny.en"]["state"] == "ready" and presets["tiny.en"]["licence"] == "mit"
    files = [file for file in hub.path("tiny.en").rglob("*") if file.is_file()]
    # Without its draft, which a search with beams does not load.
    assert presets["tiny.en"]["size_bytes"] == sum(file.stat().st_size for file in files) > 38e6
    told = listed().splitlines()
    assert max(map(len, told)) <= 80 and len(told) > 2 * len(PRESETS)
    (row,) = [line.split() for line in told if line.startswith("tiny.en ")]
    assert row == ["tiny.en", "39.0", "MB", "mit"]


@pytest.mark.parametrize(
    ("typed", "target"),
    [
        ("largev3", "openai/whisper-large-v3"),
        ("Large_V3", "openai/whisper-large-v3"),
        ("whisper-small", "openai/whisper-small"),
        ("whisper-large", "openai/whisper-large"),  # as on the hub
        ("openai/whisper-base", "openai/whisper-base"),
        ("large-v3-turbo", "openai/whisper-large-v3-turbo"),
        ("turbo", "openai/whisper-large-v3-turbo"),
    ],
)
def test_a_preset_is_found_as_people_write_it(machine, typed, target) -> None:
    assert resolve(typed, None).target == resolve(None, typed).draft == target
    assert resolve(typed, None).draft == resolve(target, None).draft
    (machine / typed).mkdir(parents=True)
    if typed not in PRESETS:
        assert resolve(typed, None).target == Path(typed)


@pytest.mark.parametrize(("typed", "near"), [("largv3", "large-v3"), ("smal", "small")])
def test_a_name_that_is_none_gets_the_nearest(typed, near) -> None:
    with pytest.raises(ModelError, match=f"nor a preset; did you mean {near}\\?$"):
        resolve(typed, None)


def test_files_of_openai_whisper_are_found_by_their_name(machine) -> None:
    cache = machine / ".cache"
    assert resolve("tiny.pt", "none").target == cache / "whisper" / "tiny.pt"
    assert resolve("tiny", None).target == "openai/whisper-tiny"
    assert resolve("large", "tiny.pt").draft == cache / "whisper" / "tiny.pt"
    with pytest.raises(ModelError, match=r"base.pt is neither a local folder"):
        resolve("base.pt", None)
