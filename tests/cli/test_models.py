"""`forescribe models`: what other programs have left is listed by --model's names, torch is not loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks.systems.ggml import dims_of, write_ggml
from forescribe.asr.errors import ModelError
from forescribe.asr.model.presets import WHISPER, locate, resolve
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
    """A user's folder with models of three programs."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "FORESCRIBE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    hub = tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    for folder in ("whisper", "whisper.cpp", "forescribe"):
        (tmp_path / ".cache" / folder).mkdir(parents=True)
    write_ggml(original, tmp_path / ".cache" / "whisper.cpp" / "ggml-mine.bin")
    (tmp_path / ".cache" / "whisper.cpp" / "ggml-cut.bin").write_bytes(b"lmgg")
    (tmp_path / ".cache" / "whisper" / "tiny.pt").write_bytes(b"PK" + bytes(998))
    snapshot = hub / "models--someone--whisper-mine" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(original)
    other = hub / "models--someone--bert" / "snapshots" / "abc"
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"model_type": "bert"}')
    (other / "model.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(*arguments: str) -> dict:
    result = CliRunner().invoke(app, ["models", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_models_of_other_programs_are_listed(machine, original) -> None:
    found = {model["name"]: model for model in listed()["machine"]}
    assert found.keys() == {"ggml-mine.bin", "ggml-cut.bin", "tiny.pt", "someone/whisper-mine"}
    ggml, hub = found["ggml-mine.bin"], found["someone/whisper-mine"]
    assert ggml["program"] == "whisper.cpp" and hub["program"] == "Hugging Face"
    assert ggml["parameters"] == hub["parameters"] > dims_of(original)["n_vocab"] * 16
    assert ggml["memory_bytes"] == 4 * ggml["parameters"]
    assert found["ggml-cut.bin"]["parameters"] is None
    assert (found["tiny.pt"]["licence"], found["tiny.pt"]["size_bytes"]) == ("MIT", 1000)


def test_the_lists_are_printed(machine) -> None:
    text = CliRunner().invoke(app, ["models"]).stdout
    assert "large-v3" in text and "ON THIS MACHINE" in text and "ggml-mine.bin" in text


def test_files_are_found_by_name_only_if_asked_for_by_it(machine) -> None:
    cache = machine / ".cache"
    assert resolve("ggml-mine.bin", None).target == cache / "whisper.cpp" / "ggml-mine.bin"
    assert resolve("tiny.pt", "none").target == cache / "whisper" / "tiny.pt"
    assert resolve("tiny", None).target == "openai/whisper-tiny"
    assert resolve("large", "tiny.pt").draft == cache / "whisper" / "tiny.pt"
    with pytest.raises(
        ModelError, match=r"base.pt is no file here, and in none of .*whisper: give"
    ):
        resolve("base.pt", None)
    with pytest.raises(ModelError, match="on this machine as --model tiny.pt"):
        locate("openai/whisper-tiny", network=False)


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
    assert "openai/whisper-base: not on this machine; the hub does not say" in result.stdout
    assert result.exit_code == 0
