"""Weights that kernels have packed are not kept by the modules, and come back where something needs them."""

from __future__ import annotations

import gc
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative import choose
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.engines import ModelEngine, whisper_decoder
from tests.asr.model import folders

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write(tmp_path_factory.mktemp("resting") / "target")


def loaded(folder: Path, quantize: str | None = None, draft: Path | None = None) -> Whisper:
    pair = Pair(folder) if draft is None else Pair(folder, draft)
    return load(pair, choose("cpu", None, quantize), engine=ModelEngine.NATIVE, network=False)


def held(whisper: Whisper) -> int:
    """Bytes of the modules' weights."""
    storages = {
        p.untyped_storage().data_ptr(): p.untyped_storage() for p in whisper.target.parameters()
    }
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_modules_keep_no_weights_beside_packed_ones(folder: Path, quantize: str | None) -> None:
    whisper = loaded(folder, quantize)
    assert set(whisper.target.resting) == {"encoder", "decoder"}
    assert held(whisper) < 1000
    before = whisper.target.resting["decoder"]
    whisper.target.wake("decoder")
    assert held(whisper) > 10_000 and set(whisper.target.resting) == {"encoder"}
    whisper.target.rest("decoder")
    assert whisper.target.resting["decoder"] == before, "the same bits"


@torch.inference_mode()
def test_a_part_is_read_again_before_it_computes(folder: Path) -> None:
    whisper = loaded(folder)
    plain = load(Pair(folder), choose("cpu"), network=False, modules=True).target
    config = plain.config
    features = torch.randn((1, config.num_mel_bins, 2 * config.max_source_positions))
    states = whisper.target.model.encoder(features).last_hidden_state
    assert states.equal(plain.model.encoder(features).last_hidden_state)
    text = torch.tensor([[1, 2, 3]])
    hidden = [
        m.model.decoder(input_ids=text, encoder_hidden_states=states)[0]
        for m in (whisper.target, plain)
    ]
    assert hidden[0].equal(hidden[1])
    assert not whisper.target.resting


@torch.inference_mode()
def test_other_engines_and_heads_read_them_too(folder: Path) -> None:
    whisper = loaded(folder)
    plain = load(Pair(folder), choose("cpu"), network=False, modules=True).target
    native = whisper.decoder()
    assert set(whisper.target.resting) == {"encoder", "decoder"}, "packed before"
    ids = torch.tensor([[5, 6]])
    assert native.embed(ids).equal(plain.model.decoder.embed_tokens(ids))
    assert native.head(native.embed(ids)).isfinite().all()
    again = loaded(folder)
    lean = whisper_decoder(again.target, engine=ModelEngine.LEAN)
    assert lean.embed(ids).equal(native.embed(ids))
    narrow = whisper_decoder(again.target, engine=ModelEngine.NATIVE, listed=(4, 5, 6))
    assert narrow.listed.tolist() == [4, 5, 6]


@pytest.mark.parametrize("damage", ["other numbers", "gone"])
def test_files_that_have_changed_since_are_refused(
    folder: Path, tmp_path: Path, damage: str
) -> None:
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    whisper = loaded(place)
    weights = place / "model.safetensors"
    if damage == "gone":
        weights.unlink()
    else:
        content = bytearray(weights.read_bytes())
        content[-3000] ^= 1
        weights.write_bytes(content)
    with pytest.raises(LoadError, match="changed"):
        for part in ("encoder", "decoder"):  # the byte belongs to one of them
            whisper.target.wake(part)

    assert held(whisper) < 1000, "nothing of the other weights is kept"


def test_engines_that_do_not_pack_read_everything_at_once(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    whisper = load(Pair(place), choose("cpu"), engine=ModelEngine.LEAN, network=False)
    shutil.rmtree(place)
    assert not whisper.target.resting
    config = whisper.target.config
    features = torch.randn((1, config.num_mel_bins, 2 * config.max_source_positions))
    assert whisper.encode(features)[0].target.isfinite().all()


def test_a_relative_folder_is_found_from_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    whisper = loaded(Path(folder.name))
    monkeypatch.chdir(tmp_path)
    whisper.target.wake("decoder")
    assert set(whisper.target.resting) == {"encoder"}


def test_threads_that_need_a_part_at_the_same_time_get_it(folder: Path) -> None:
    target = loaded(folder).target
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(target.wake, ["encoder", "decoder"] * 4))
    assert not target.resting and target.state_dict()


def test_what_is_packed_is_freed_with_the_model(folder: Path) -> None:
    whisper = loaded(folder)
    owner = weakref.ref(whisper.target)
    gc.disable()
    try:
        del whisper
        assert owner() is None, "no cycle keeps it"
    finally:
        gc.enable()
