"""openai-whisper's files: the same numbers under other names, nothing of damaged ones, converted once."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from forescribe.asr.batch.ledger import weights_hash
from forescribe.asr.errors import ModelError
from forescribe.asr.model.conversion import converting
from forescribe.asr.model.conversion.openai_pt import ALIGNMENT_HEADS, converted
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair, locate, resolve
from forescribe.speculative.device import choose
from tests.asr.model.conversion.openai_files import dims_of, state_of, write_pt
from tests.real import model

CPU = choose("cpu")


@pytest.fixture
def file(original, tmp_path) -> Path:
    shutil.copy(original / "tokenizer.json", tmp_path)
    return write_pt(original, tmp_path / "mine.pt")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_conversion_is_the_model_that_the_file_was_made_of(original, file) -> None:
    made = locate(file)
    theirs, ours = weights(original), weights(made)
    theirs.pop("proj_out.weight", None)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], values) for name, values in theirs.items())
    before, after = load(Pair(original), CPU), load(Pair(file), CPU)
    assert replace(after.tokens, only=before.tokens.only) == before.tokens  # it names the model
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    for key in ("encoder_layers", "decoder_attention_heads", "eos_token_id"):
        assert getattr(after.target.config, key) == getattr(before.target.config, key), key


def test_a_file_is_converted_once_and_again_when_something_changes(file, cache, tmp_path) -> None:
    with ThreadPoolExecutor(3) as threads:
        (made,) = set(threads.map(converted, [file] * 3))
    stamp = (made / "model.safetensors").stat().st_mtime_ns
    assert converted(file) == made and list(cache.iterdir()) == [made]
    assert (made / "model.safetensors").stat().st_mtime_ns == stamp
    beside = tmp_path / "tokenizer.json"
    beside.write_text(beside.read_text() + " ")
    assert converted(file) != made
    other = shutil.copy(file, tmp_path / "other.pt")
    assert weights_hash(converted(other)) == weights_hash(converted(file))


def test_what_killed_conversions_have_left_is_removed(file, cache) -> None:
    left, recent = cache / ".converting-a", cache / ".converting-b"
    for folder in (left, recent):
        folder.mkdir(parents=True)
    os.utime(left, (time.time() - 2 * converting.DAY_S,) * 2)
    made = converted(file)
    assert set(cache.iterdir()) == {made, recent}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_that_is_cut_off_is_refused(file, cache, share) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: round(share * len(data))])
    with pytest.raises(ModelError, match=r"mine\.pt (is damaged, not complete|cannot be read)"):
        converted(file)
    assert list(cache.iterdir()) == []


def test_damage_within_an_archive_is_found_by_its_checksums(file) -> None:
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = bytes(4000)  # finite numbers
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"mine\.pt is damaged, .* the checksum of its part"):
        converted(file)


def test_what_is_not_whisper_is_refused_with_the_reason(original, file, tmp_path) -> None:
    def refused(message: str, **content: object) -> None:
        write_pt(original, file, **content)
        with pytest.raises(ModelError, match=message):
            load(Pair(file), CPU)

    state, dims = state_of(original), dims_of(original)
    heads = {**dims, "n_text_head": 7}
    refused("heads are not Whisper's for states of 16 numbers", dims=heads)
    name = "encoder.blocks.0.attn_ln.bias"
    refused("holds torch.int8", model_state_dict={**state, name: state[name].to(torch.int8)})
    short = "encoder.positional_embedding"
    cut = {**state, short: state[short][:750].clone()}
    refused(r"mine.pt \(converted to .*: its feature extractor makes 80", model_state_dict=cut)
    torch.save(weights(original), tmp_path / "weights.pt")
    with pytest.raises(ModelError, match="weights of transformers need the folder"):
        converted(tmp_path / "weights.pt")


class Malice:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("form", ["archive", "pickle"])
def test_nothing_of_a_pickle_is_executed(tmp_path, capsys, form) -> None:
    file = tmp_path / "mine.pt"
    if form == "archive":
        torch.save({"dims": {}, "model_state_dict": Malice()}, file)
    else:
        file.write_bytes(pickle.dumps(Malice(), protocol=2))
    with pytest.raises(ModelError, match="UnpicklingError"):
        converted(file)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("text", ["{}", "no json"])
def test_a_tokenizer_that_cannot_be_read_is_named(file, tmp_path, text) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer.json is damaged, or none of Whisper's"):
        converted(file)


def test_alignment_heads_are_those_of_openais_file_by_its_name(file, tmp_path, monkeypatch) -> None:
    def heads(path: Path) -> object:
        made = json.loads((converted(path) / "generation_config.json").read_text())
        return made.get("alignment_heads")

    assert heads(file) is None
    monkeypatch.setitem(ALIGNMENT_HEADS, "base", "0.1 1.0")
    assert heads(file.rename(tmp_path / "base.pt")) == [[0, 1], [1, 0]]
    monkeypatch.setitem(ALIGNMENT_HEADS, "tiny", "2.0")  # of another model under this name
    assert heads(shutil.copy(tmp_path / "base.pt", tmp_path / "tiny.pt")) is None


def test_a_pt_without_any_vocabulary_says_what_to_do(file, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: None)
    kept = shutil.move(tmp_path / "tokenizer.json", tmp_path / "cached.json")
    with pytest.raises(ModelError, match="run `hf download openai/whisper-tiny tokenizer.json`"):
        converted(file, network=False)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: str(kept))
    assert (converted(file, network=False) / "tokenizer.json").read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("place", ["/proc/nope", "file/below", "x" * 300])
def test_a_cache_that_cannot_be_written_is_named(file, tmp_path, monkeypatch, place) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / place  # as it is where it is absolute
    monkeypatch.setenv("FORESCRIBE_CACHE", str(folder))
    with pytest.raises(ModelError) as caught:
        converted(file)
    assert f"cannot be written to {folder}/converted: " in str(caught.value)
    assert "FORESCRIBE_CACHE" in str(caught.value) and str(file) in str(caught.value)
    assert caught.value.code == "unwritable_output"


def test_a_full_disk_is_told_as_one(file, monkeypatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(ModelError, match="No space left on device; free some space, or") as caught:
        converted(file)
    assert caught.value.code == "storage_full"


def test_what_is_no_file_of_weights_is_refused(original, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dangling.pt").symlink_to("nowhere.pt")
    Path("loop.pt").symlink_to("loop.pt")
    os.mkfifo("fifo.pt")
    Path("text.gguf").write_bytes(b"GGUF" + bytes(20))
    Path("link.pt").symlink_to(write_pt(original, tmp_path / "mine.pt"))
    for name in ("dangling.pt", "loop.pt", "fifo.pt", "text.gguf", "ggml.bin", "a\0b", "x" * 300):
        with pytest.raises(ModelError, match="--model .* is (a file|neither a local folder)"):
            resolve(name, None)
        with pytest.raises(ModelError, match="--draft .* is neither a local folder"):
            locate(name, role="draft")
    assert resolve("link.pt", None).target == Path("link.pt")


@pytest.mark.weights
def test_published_weights_are_the_same_in_every_form(tmp_path) -> None:
    original = model("whisper-base")
    plain = locate(original)
    file = write_pt(plain, tmp_path / "base.pt")
    (tmp_path / "tokenizer.json").write_bytes((original / "tokenizer.json").read_bytes())
    ours, theirs = weights(converted(file)), weights(plain)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[n].float(), values.float()) for n, values in theirs.items())
    settings = [
        json.loads((folder / "generation_config.json").read_text())
        for folder in (plain, converted(file))
    ]
    for key in ("suppress_tokens", "begin_suppress_tokens", "lang_to_id", "is_multilingual"):
        assert settings[0].get(key) == settings[1].get(key), key
