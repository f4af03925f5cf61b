"""Folders become a pair; what is no pair is refused in one line that names it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperForCausalLM
from transformers.utils import logging

from asr.errors import CapacityError, ModelError
from asr.loading import Memory, Whisper, load
from asr.presets import Pair
from speculative.device import choose
from speculative.models.whisper import encoder_of
from tests.asr import folders

CPU = choose("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return folders.write(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture
def copy(target, tmp_path) -> Path:
    """A folder to spoil."""
    return shutil.copytree(target, tmp_path / "copy")


def features(windows: int) -> torch.Tensor:
    return torch.randn(windows, 80, 3000, generator=torch.Generator().manual_seed(0))


def test_a_target_alone_has_no_draft(target) -> None:
    whisper = load(Pair(target), CPU)
    assert whisper.draft is None and not whisper.shared_encoder
    assert whisper.tokens.languages.keys() == set(folders.CODES)
    assert not whisper.target.training
    (memory,) = whisper.encode(features(1))
    assert memory.target.shape == (1500, 16) and memory.draft is None


def test_a_distilled_draft_hears_through_the_targets_encoder(target, tmp_path) -> None:
    draft = folders.write_distilled(tmp_path / "draft", target)
    whisper = load(Pair(target, draft), CPU)
    assert whisper.shared_encoder
    assert encoder_of(whisper.draft) is encoder_of(whisper.target)  # one copy in memory
    memories = whisper.encode(features(2))
    assert all(m.draft is not None and m.draft.equal(m.target) for m in memories)


def test_a_draft_with_another_encoder_hears_for_itself(target, tmp_path) -> None:
    draft = folders.write(tmp_path / "draft", layers=1, seed=3)
    whisper = load(Pair(target, draft), CPU)
    assert not whisper.shared_encoder
    assert encoder_of(whisper.draft) is not encoder_of(whisper.target)
    (memory,) = whisper.encode(features(1))
    assert memory.draft is not None and not memory.draft.allclose(memory.target)


def test_what_is_heard_of_a_window_does_not_depend_on_who_is_encoded_with_it(target) -> None:
    whisper, windows = load(Pair(target), CPU), features(5)
    together = whisper.encode(windows)
    assert all(
        m.target.equal(whisper.encode(w[None])[0].target)
        for m, w in zip(together, windows, strict=True)
    )


def test_a_decoder_only_draft_hears_through_the_targets_encoder(target, tmp_path) -> None:
    draft = folders.write_decoder_only(tmp_path / "draft")
    whisper = load(Pair(target, draft), CPU)
    assert whisper.shared_encoder and isinstance(whisper.draft, WhisperForCausalLM)
    (memory,) = whisper.encode(features(1))
    assert memory.draft is not None and memory.draft.equal(memory.target)


def test_a_model_without_an_encoder_can_only_be_a_draft(tmp_path) -> None:
    folder = folders.write_decoder_only(tmp_path / "draft")
    with pytest.raises(ModelError, match="--model .*draft .*can only be a --draft"):
        load(Pair(folder), CPU)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_weights_and_memories_have_the_dtype_asked_for(target, name) -> None:
    whisper = load(Pair(target), choose("cpu", name))
    (memory,) = whisper.encode(features(1))
    assert whisper.target.dtype == memory.target.dtype == getattr(torch, name)


def test_loading_leaves_transformers_messages_as_they_were(target) -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(Pair(target), CPU)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_languages_are_heard_as_transformers_hears_them(target) -> None:
    whisper = load(Pair(target), CPU)
    heard = whisper.detect_language(whisper.encode(features(3)))
    theirs = whisper.target.detect_language(input_features=features(3))
    codes = {token: code for code, token in whisper.tokens.languages.items()}
    assert [code for code, _ in heard] == [codes[int(token)] for token in theirs]
    assert all(1 / 3 <= chance <= 1 for _, chance in heard)


def test_an_english_only_model_hears_english(target) -> None:
    whisper = load(Pair(target), CPU)
    english = Whisper(
        whisper.target,
        None,
        whisper.tokenizer,
        whisper.extractor,
        type(whisper.tokens)(256, 257, 266, 265, {}, {}, None),
        whisper.pair,
        CPU,
        False,
    )
    assert english.detect_language([Memory(torch.zeros(1500, 16))]) == [("en", 1.0)]


def refusal(pair: Pair) -> str:
    """The one line."""
    with pytest.raises(ModelError) as caught:
        load(pair, CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_draft_of_another_vocabulary_is_refused_by_name(target, tmp_path) -> None:
    draft = folders.write(tmp_path / "wide", layers=1, vocab_size=1800)
    message = refusal(Pair(target, draft))
    assert str(draft) in message and str(target) in message
    assert "1768 and 1800 tokens" in message and "--draft none" in message


def test_a_draft_with_other_pieces_is_refused_by_the_token(target, tmp_path) -> None:
    draft = folders.write(tmp_path / "draft", layers=1)
    path = draft / "tokenizer.json"
    data = json.loads(path.read_text())
    pieces = data["model"]["vocab"]
    pieces["a"], pieces["b"] = pieces["b"], pieces["a"]
    path.write_text(json.dumps(data))
    assert "for the token 'a'" in refusal(Pair(target, draft))


def spoil(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    config = json.loads((folder / "config.json").read_text())
    if how == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif how == "half the weights":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif how == "empty weights":
        weights.write_bytes(b"")
    elif how == "garbage for weights":
        weights.write_bytes(b"\xff" * 5000)
    elif how == "a layer lost":
        kept = {k: v for k, v in load_file(weights).items() if "decoder.layers.1" not in k}
        save_file(kept, weights, metadata={"format": "pt"})
    elif how == "other shapes":
        (folder / "config.json").write_text(json.dumps(config | {"d_model": 32}))
    elif how == "not a whisper":
        (folder / "config.json").write_text('{"model_type": "bert"}')
    elif how == "no model type":
        (folder / "config.json").write_text("{}")
    elif how == "broken config":
        (folder / "config.json").write_text("{")
    elif how == "wrong type in config":
        (folder / "config.json").write_text(json.dumps(config | {"d_model": "wide"}))
    elif how == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif how == "broken tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    elif how == "no features":
        (folder / "preprocessor_config.json").unlink()
    elif how == "no generation config":
        (folder / "generation_config.json").unlink()
    elif how == "no weights":
        weights.unlink()
    elif how == "no config":
        (folder / "config.json").unlink()


SPOILT = {
    "truncated weights": "cannot be loaded as a Whisper model",
    "half the weights": "cannot be loaded as a Whisper model",
    "empty weights": "cannot be loaded as a Whisper model",
    "garbage for weights": "cannot be loaded as a Whisper model",
    "a layer lost": "lack model.decoder.layers.1",  # transformers would fill it with noise
    "other shapes": "another shape than its config.json says",
    "not a whisper": "'bert'",
    "no model type": "model_type",
    "broken config": "config.json",
    "wrong type in config": "d_model",
    "no tokenizer": "lacks tokenizer.json",
    "broken tokenizer": "no usable tokenizer",
    "no features": "lacks preprocessor_config.json",
    "no generation config": "no_timestamps_token_id",
    "no weights": "holds no weights",
    "no config": "holds no config.json",
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_folder_is_refused_in_one_line(copy, how, capfd) -> None:
    spoil(copy, how)
    message = refusal(Pair(copy))
    assert str(copy) in message and SPOILT[how] in message
    assert len(message) < 400
    assert capfd.readouterr() == ("", "")  # and no report beside it


def test_a_spoilt_draft_is_named_as_the_draft(target, copy) -> None:
    spoil(copy, "truncated weights")
    assert refusal(Pair(target, copy)).startswith(f"--draft {copy}")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not enough memory: 9 GB")]
)
def test_a_device_without_room_is_said_in_one_line(target, monkeypatch, error) -> None:
    def full(*_, **__):
        raise error

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(CapacityError, match=r"cpu has no room .* --model .*target"):
        load(Pair(target), CPU)
