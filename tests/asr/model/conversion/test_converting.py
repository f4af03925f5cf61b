"""The cache of conversions: whole ones or none, and its troubles are not told as the file's."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors import SafetensorError

from benchmarks.systems.ggml import state_of, write_ggml
from forescribe.asr.batch import fingerprint
from forescribe.asr.errors import CapacityError, ModelError
from forescribe.asr.model.conversion import openai_formats
from forescribe.asr.model.conversion.converting import LOCK, RECORD, complete
from forescribe.asr.model.conversion.openai_formats import converted
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair, locate, resolve
from forescribe.speculative.device import choose
from tests.asr.model.conversion.openai_files import write_pt


@pytest.fixture
def file(original, tmp_path) -> Path:
    return write_ggml(original, tmp_path / "ggml-mine.bin")


@pytest.mark.parametrize("place", ["/proc/nope", "/sys/nope", "file/below", "x" * 300])
def test_a_cache_that_cannot_be_written_is_named(file, tmp_path, monkeypatch, place) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / place  # as it is where it is absolute
    monkeypatch.setenv("FORESCRIBE_CACHE", str(folder))
    with pytest.raises(ModelError) as caught:
        converted(file)
    assert f"cannot be written to {folder}/converted: " in str(caught.value)
    assert "FORESCRIBE_CACHE" in str(caught.value) and str(file) in str(caught.value)
    assert caught.value.code == "unwritable_output"


def test_a_limit_of_the_disk_is_not_told_as_damage(file, cache) -> None:
    """Here of the size of files, which also interrupts a write of safetensors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(ModelError, match="cannot be written to .*: File too large") as caught:
            converted(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "unwritable_output"
    assert list(cache.iterdir()) == []
    assert complete(converted(file))


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("I/O error: No space left on device (os error 28)"),
        OSError(28, "No space left on device"),
        Exception("No space left on device (os error 28)"),  # of tokenizers
    ],
)
def test_a_full_disk_is_told_as_one(file, monkeypatch, error) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(ModelError, match="No space left on device; free some space, or") as caught:
        converted(file)
    assert caught.value.code == "storage_full"


def test_a_lack_of_memory_is_told_as_one(file, monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(openai_formats, "read_tensors", full)
    with pytest.raises(CapacityError, match=r"ggml-mine\.bin: there is not enough memory"):
        converted(file)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", RECORD])
@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_a_broken_conversion_is_made_again(file, cache, name, damage) -> None:
    made = converted(file)
    before = {path.name: path.stat().st_size for path in made.iterdir()}
    if damage == "deleted":
        (made / name).unlink()
    else:
        os.truncate(made / name, 100 if name != RECORD else 0)
    assert not complete(made)
    assert converted(file) == made and complete(made)
    assert {path.name: path.stat().st_size for path in made.iterdir()} == before
    assert list(cache.iterdir()) == [made]


def test_a_conversion_gives_way_to_nothing_that_is_complete(file, cache) -> None:
    """Three at a time make one folder, each from a broken one too."""
    for _ in range(2):
        with ThreadPoolExecutor(3) as threads:
            (made,) = set(threads.map(converted, [file] * 3))
        assert complete(made) and list(cache.iterdir()) == [made]
        os.truncate(made / "model.safetensors", 10)


def test_what_killed_conversions_have_left_is_removed(file, cache) -> None:
    def left(name: str, age: float, *, lock: bool) -> Path:
        folder = cache / f".converting-{name}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
        if lock:
            (folder / LOCK).write_bytes(b"")
        os.utime(folder, (time.time() - age,) * 2)
        return folder

    dead, older = left("dead", 60, lock=True), left("older", 2 * 86400, lock=False)
    alive, recent = left("alive", 2 * 86400, lock=True), left("recent", 60, lock=False)
    beginning = left("beginning", 0, lock=True)
    with (alive / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = converted(file)
    assert not dead.exists() and not older.exists()
    assert set(cache.iterdir()) == {made, alive, recent, beginning}


def test_a_long_name_is_shortened_and_stays_its_own(original, file, tmp_path) -> None:
    names = [f"ggml-{'x' * 230}{i}.bin" for i in range(2)] + [f"{'ä' * 120}.bin"]
    files = [shutil.copy(file, tmp_path / name) for name in names]
    made = [converted(path) for path in files]
    assert len(set(made)) == 3
    assert all(len(os.fsencode(folder.name)) < 140 and complete(folder) for folder in made)


def test_a_name_that_is_no_unicode_is_converted(file, tmp_path) -> None:
    try:
        odd = shutil.copy(file, os.fsdecode(os.fsencode(tmp_path) + b"/mine-\xff.bin"))
    except OSError:
        pytest.skip("this file system has names in Unicode alone")
    assert complete(converted(Path(odd)))


def test_a_fingerprint_of_weights_does_not_depend_on_their_source(original, tmp_path) -> None:
    made = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        made.append(converted(write_ggml(original, tmp_path / folder / "ggml-mine.bin")))
    assert made[0] != made[1]
    assert fingerprint.weights(made[0]) == fingerprint.weights(made[1])
    assert json.loads((made[0] / RECORD).read_text())["source"] == str(tmp_path / "a/ggml-mine.bin")


def test_weights_that_cannot_be_loaded_are_named_by_their_file(original, tmp_path) -> None:
    state = {name: tensor.numpy() for name, tensor in state_of(original).items()}
    name = "encoder.positional_embedding"
    file = write_ggml(
        original,
        tmp_path / "ggml-mine.bin",
        dims={"n_audio_ctx": 750},
        tensors={**state, name: state[name][:750]},
    )
    with pytest.raises(ModelError) as caught:
        load(Pair(file), choose("cpu"))
    assert f"{file} (converted to {tmp_path}/cache/converted/" in str(caught.value)
    assert "its feature extractor makes 80 mel bins of 3000 frames" in str(caught.value)


def test_what_is_no_file_of_weights_is_told_as_what_it_is(original, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dangling.bin").symlink_to("nowhere.bin")
    Path("loop.pt").symlink_to("loop.pt")
    os.mkfifo("fifo.pt")
    os.mkfifo("fifo")
    Path("text.gguf").write_bytes(b"GGUF" + bytes(20))
    Path("link.pt").symlink_to(write_pt(original, tmp_path / "mine.pt"))
    for name, message in {
        "dangling.bin": "--model dangling.bin is a link to nowhere.bin, which is not there",
        "loop.pt": "--model loop.pt is a link that leads back to itself",
        "fifo.pt": "--model fifo.pt is a pipe, a socket or a device",
        "fifo": "--model fifo is a pipe, a socket or a device",
        "text.gguf": r"--model text.gguf is in the GGUF .* text models \(`forescribe generate`\)",
        "a\0b": "neither a local folder",
        "x" * 300: "neither a local folder",
    }.items():
        with pytest.raises(ModelError, match=message):
            resolve(name, None)
        with pytest.raises(ModelError, match=message.replace("--model", "--draft")):
            locate(name, role="draft")
        with pytest.raises(ModelError, match=message.replace("--model", "--draft")):
            resolve("tiny.en", name)
    assert resolve("link.pt", None).target == Path("link.pt")
