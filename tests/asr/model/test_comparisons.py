"""A model that has passed its comparison on this machine is not compared again until something changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forescribe.asr.model import comparisons, loading
from forescribe.asr.model.comparisons import ENCODER, MOST, Comparisons
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.tokenizer import same_tokenizer
from forescribe.speculative.device import choose
from forescribe.speculative.models import engines

from . import folders

CPU = choose("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORESCRIBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compared"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return folders.write(tmp_path / "target")


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compared: decoders and encoders, in order."""
    seen: list[str] = []
    for name, kind in (("decoder_difference", "decoder"), ("encoder_difference", "encoder")):
        real = getattr(engines, name)

        def counted(*args, real=real, kind=kind):
            seen.append(kind)
            return real(*args)

        monkeypatch.setattr(engines, name, counted)
    return seen


def test_the_second_start_compares_nothing(cache, target, compared) -> None:
    first = load(Pair(target), CPU)
    assert compared[0] == "decoder"
    native = bool(first.native_encoders)
    assert json.loads(next(cache.iterdir()).read_text()) == sorted(
        [first.engine, *[ENCODER] * native]
    )
    compared.clear()
    again = load(Pair(target), CPU)
    assert compared == [] and again.engine == first.engine
    assert bool(again.native_encoders) is native


@pytest.mark.parametrize("change", ["weights", "device", "versions", "kernels", "draft's target"])
def test_what_changes_is_compared_again(cache, target, compared, monkeypatch, change) -> None:
    load(Pair(target, target), CPU)
    place = CPU
    if change == "weights":
        file = target / "model.safetensors"
        file.write_bytes(file.read_bytes())
    elif change == "device":
        place = choose("cpu", "bfloat16")
    elif change == "versions":
        monkeypatch.setattr(comparisons, "version", lambda name: "another version")
    elif change == "kernels":
        monkeypatch.setattr(comparisons, "missing", lambda: "not compiled")
    else:
        other = folders.write(target.parent / "other")
        compared.clear()
        load(Pair(other, target), CPU)
        assert compared.count("decoder") == 2
        return
    compared.clear()
    load(Pair(target), place)
    assert "decoder" in compared


def test_what_failed_is_not_kept(cache, target, monkeypatch, caplog) -> None:
    monkeypatch.setattr(engines, "decoder_difference", lambda model, adapter: "planted")
    for _ in range(2):
        caplog.clear()
        with pytest.raises(loading.ModelError, match="planted"):
            load(Pair(target), CPU)
    assert not cache.exists()


@pytest.mark.parametrize("spoilt", ["", "{", "7", "null"])
def test_a_damaged_entry_is_compared_again(cache, target, compared, spoilt) -> None:
    load(Pair(target), CPU)
    for entry in cache.iterdir():
        entry.write_text(spoilt)
    compared.clear()
    load(Pair(target), CPU)
    assert "decoder" in compared


def test_a_cache_that_cannot_be_written_costs_time_only(target, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORESCRIBE_CACHE", str(tmp_path / "file"))
    load(Pair(target), CPU)


def test_old_entries_go(cache, target) -> None:
    cache.mkdir(parents=True)
    for number in range(MOST + 5):
        (cache / f"{number:03d}").write_text("[]")
    Comparisons(target, CPU).add("native")
    assert len(list(cache.iterdir())) == MOST
    assert Comparisons(target, CPU).passed == {"native"}


def test_what_else_lies_in_the_folder_does_no_harm(cache, target) -> None:
    cache.mkdir(parents=True)
    (cache / "dangling").symlink_to("nowhere")
    for number in range(MOST + 5):
        (cache / f"{number:03d}").mkdir()
    Comparisons(target, CPU).add("native")
    assert Comparisons(target, CPU).passed == {"native"}
    entry = next(path for path in cache.iterdir() if path.is_file())
    entry.unlink()
    entry.mkdir()
    Comparisons(target, CPU).add("native")
    assert not [path for path in cache.iterdir() if path.is_file()]


def test_a_tokenizer_is_the_same_in_all_its_files(tmp_path) -> None:
    one, other = folders.write(tmp_path / "one"), folders.write(tmp_path / "other")
    assert same_tokenizer(one, other)
    (other / "added_tokens.json").write_text("{}")
    assert not same_tokenizer(one, other) and not same_tokenizer(other, one)
    (other / "added_tokens.json").unlink()
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text + " ")
    assert not same_tokenizer(one, other)
