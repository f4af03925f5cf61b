"""`forescribe models`: the presets, what a name would load, and torch is not loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from forescribe.asr.errors import ModelError
from forescribe.asr.model.presets import PRESETS, WHISPER, resolve
from forescribe.cli.main import app
from forescribe.speculative.models.hub import HubError, would_download
from tests.asr.model import folders


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    sizes = {
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }  # four times the width, as in all of OpenAI's
    return folders.write(tmp_path_factory.mktemp("original") / "whisper", **sizes)


@pytest.fixture
def machine(original, tmp_path, monkeypatch) -> Path:
    """A user's folder with a model in the hub's cache and one of openai-whisper's."""
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


def listed(*arguments: str) -> dict:
    result = CliRunner().invoke(app, ["models", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_the_presets_are_printed_in_eighty_columns(machine, original) -> None:
    cache = machine / ".cache" / "huggingface" / "hub" / "models--me--my-whisper"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    shutil.copytree(original, cache / "snapshots" / "abc")
    presets = {preset["name"]: preset for preset in listed()["presets"]}
    assert presets["large"]["state"] is presets["large"]["size_bytes"] is None
    assert presets["tiny.en"]["state"] == "ready" and presets["tiny.en"]["licence"] == "mit"
    assert presets["tiny.en"]["size_bytes"] > 40e6
    assert [other["name"] for other in listed()["others"]] == ["me/my-whisper"]
    told = lines()
    assert max(map(len, told)) <= 80 and len(told) > 2 * len(PRESETS)
    (row,) = [line.split() for line in told if line.startswith("tiny.en ")]
    assert row == ["tiny.en", "45", "MB", "mit"]
    assert any(line.startswith("me/my-whisper") for line in told)


def test_offline_the_list_says_what_is_usable(machine, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert lines()[-1] == "offline (HF_HUB_OFFLINE): usable are tiny.en"
    assert lines("base")[1].strip() == "downloads are switched off by HF_HUB_OFFLINE"


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
    assert listed("tiny.pt")["loads"][0]["size_bytes"] == 1000
    with pytest.raises(ModelError, match=r"base.pt is neither a local folder"):
        resolve("base.pt", None)


def test_a_name_says_what_it_would_download(machine, monkeypatch) -> None:
    names = {
        "config.json": 1, "model.safetensors": 100, "pytorch_model.bin": 100, "flax_model.msgpack": 9,
    }  # fmt: skip
    info = SimpleNamespace(
        siblings=[SimpleNamespace(rfilename=n, size=s) for n, s in names.items()],
        card_data=SimpleNamespace(license="mit"),
    )
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: info)
    assert dict(would_download("a/b", WHISPER).files) == {
        "config.json": 1,
        "model.safetensors": 100,
    }
    (target, draft) = listed("base")["loads"]
    assert (target["role"], target["name"]) == ("target", "openai/whisper-base")
    assert (target["size_bytes"], target["licence"]) == (101, "mit")
    assert draft["name"] == "openai/whisper-tiny"
    names.pop("model.safetensors")
    info.siblings = info.siblings[:1] + info.siblings[2:]
    assert would_download("a/b", WHISPER).files["pytorch_model.bin"] == 100


def test_without_a_network_a_name_says_so(machine, monkeypatch) -> None:
    def offline(*arguments: object, **named: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    with pytest.raises(HubError, match=r"does not say what a/b would download \(no route\)"):
        would_download("a/b", WHISPER)
    result = CliRunner().invoke(app, ["models", "base"])
    assert "openai/whisper-base: not on this machine" in result.stdout
    assert "the hub does not say" in result.stdout and "on this machine: tiny.en" in result.stdout
    assert result.exit_code == 0
