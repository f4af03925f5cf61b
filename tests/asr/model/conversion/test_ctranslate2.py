"""CTranslate2 folders: the same numbers under other names, and nothing of a damaged file."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from forescribe.asr.errors import ModelError
from forescribe.asr.model.conversion import converting, ctranslate2
from forescribe.asr.model.conversion.ctranslate2 import read_variables
from forescribe.asr.model.presets import locate


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """The original as a CTranslate2 folder."""
    out = tmp_path / "faster-whisper"
    write(original, out)
    return out


def write(original: Path, out: Path, kind: str = "<f2") -> None:
    out.mkdir()
    model = WhisperForConditionalGeneration.from_pretrained(original, dtype=torch.float32)
    variables = variables_of({n: t.numpy() for n, t in model.state_dict().items()})
    pack(out / "model.bin", {name: values.astype(kind) for name, values in variables.items()})
    generation = json.loads((original / "generation_config.json").read_text())
    config = {
        "alignment_heads": [[0, 0]],
        "suppress_ids": generation.get("suppress_tokens") or [],
        "suppress_ids_begin": generation.get("begin_suppress_tokens") or [],
    }
    (out / "config.json").write_text(json.dumps(config))
    shutil.copy(original / "tokenizer.json", out)


def variables_of(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Variables as CTranslate2's converter writes them: projections that read the same are joined."""
    found: dict[str, np.ndarray] = {}

    def norm(here: str, there: str) -> None:
        found[f"{there}/gamma"], found[f"{there}/beta"] = (
            state[f"{here}.weight"],
            state[f"{here}.bias"],
        )

    def linear(there: str, *here: str) -> None:
        found[f"{there}/weight"] = np.concatenate([state[f"{name}.weight"] for name in here])
        zeros = [np.zeros(len(state[f"{name}.weight"]), np.float32) for name in here]
        biases = [state.get(f"{n}.bias", zero) for n, zero in zip(here, zeros, strict=True)]
        found[f"{there}/bias"] = np.concatenate(biases)

    for side in ("encoder", "decoder"):
        layers = len({n.split(".")[3] for n in state if n.startswith(f"model.{side}.layers.")})
        found[f"{side}/position_encodings/encodings"] = state[
            f"model.{side}.embed_positions.weight"
        ]
        norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        for i in range(layers):
            here, there = f"model.{side}.layers.{i}", f"{side}/layer_{i}"
            norm(f"{here}.self_attn_layer_norm", f"{there}/self_attention/layer_norm")
            own = [f"{here}.self_attn.{p}_proj" for p in "qkv"]
            linear(f"{there}/self_attention/linear_0", *own)
            linear(f"{there}/self_attention/linear_1", f"{here}.self_attn.out_proj")
            if side == "decoder":
                norm(f"{here}.encoder_attn_layer_norm", f"{there}/attention/layer_norm")
                linear(f"{there}/attention/linear_0", f"{here}.encoder_attn.q_proj")
                both = [f"{here}.encoder_attn.{p}_proj" for p in "kv"]
                linear(f"{there}/attention/linear_1", *both)
                linear(f"{there}/attention/linear_2", f"{here}.encoder_attn.out_proj")
            norm(f"{here}.final_layer_norm", f"{there}/ffn/layer_norm")
            linear(f"{there}/ffn/linear_0", f"{here}.fc1")
            linear(f"{there}/ffn/linear_1", f"{here}.fc2")
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            found[f"encoder/{conv}/{part}"] = state[f"model.encoder.{conv}.{part}"]
    found["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    return found


def pack(
    path: Path, variables: dict[str, np.ndarray], version: int = 6, spec: str = "WhisperSpec"
) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    numbers = {kind: number for number, kind in ctranslate2.KINDS.items()}
    parts = [struct.pack("<I", version), text(spec), struct.pack("<I", 3)]
    parts.append(struct.pack("<I", len(variables)))
    for name, values in variables.items():
        parts += [text(name), struct.pack("<B", values.ndim)]
        parts += [struct.pack("<I", size) for size in values.shape]
        kind = numbers[values.dtype.newbyteorder("<").str.replace("|", "")]
        parts += [struct.pack("<BI", kind, values.nbytes), values.tobytes()]
    alias = "decoder/projection/weight"
    parts += [struct.pack("<I", 1), text(alias), text("decoder/embeddings/weight")]
    path.write_bytes(b"".join(parts))


@pytest.mark.parametrize("kind", ["<f2", "<f4"])
def test_a_conversion_holds_the_numbers_of_the_original(original, tmp_path, kind) -> None:
    write(original, tmp_path / "made", kind)
    ours = WhisperForConditionalGeneration.from_pretrained(
        locate(tmp_path / "made"), dtype=torch.float32
    )
    theirs = WhisperForConditionalGeneration.from_pretrained(original, dtype=torch.float32)
    state = ours.state_dict()
    for name, values in theirs.state_dict().items():
        exact = values.half().float() if kind == "<f2" else values
        assert torch.equal(state[name], exact), name
    for name in ("d_model", "encoder_layers", "decoder_layers", "decoder_ffn_dim", "vocab_size"):
        assert getattr(ours.config, name) == getattr(theirs.config, name)
    assert ours.generation_config.alignment_heads == [[0, 0]]
    assert ours.config.eos_token_id == theirs.config.eos_token_id


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "preprocessor_config.json"])
def test_a_change_of_a_file_beside_the_weights_is_noticed(folder, original, name) -> None:
    first = locate(folder)
    changed = folder / name
    changed.write_text((changed if changed.exists() else original / name).read_text() + " ")
    second = locate(folder)
    assert second != first and locate(folder) == second
    if name != "config.json":  # which says other things there than in the conversion
        assert (second / name).read_bytes() == changed.read_bytes()


def test_the_tokenizer_of_another_model_is_refused(folder, monkeypatch) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    size, end = 1768, 256  # of the folder
    monkeypatch.setattr(converting, "TEXT_TOKENS", {size: end + 1})
    with pytest.raises(ModelError, match="tokenizer.json is another model's: it has 256 text"):
        locate(folder)
    monkeypatch.setattr(converting, "TEXT_TOKENS", {})
    content["added_tokens"][-1]["id"] = size
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="has 256 text tokens and the token 1768, and 1768"):
        locate(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "no json", "tokenizer.json is damaged, or none of Whisper's"),
        ("config.json", "[]", "the config.json beside it is damaged"),
    ],
)
def test_a_damaged_file_beside_the_weights_is_named(folder, name, text, message) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        locate(folder)


@pytest.mark.parametrize("share", [0.0, 0.99])
def test_a_file_that_is_cut_off_is_refused(folder, cache, share) -> None:
    weights = folder / "model.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[: round(share * len(data))])
    with pytest.raises(ModelError, match=r"model\.bin is damaged, not complete"):
        locate(folder)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: pack(path, {}, version=5), "version 5"),
        (lambda path: pack(path, {}, spec="TransformerSpec"), "TransformerSpec"),
        (
            lambda path: pack(path, {"encoder/conv1/weight": np.zeros((1, 1, 1), np.float32)}),
            "KeyError",
        ),
        (
            lambda path: path.write_bytes(
                struct.pack("<IH", 6, 12) + b"WhisperSpec\0" + b"\xff" * 40
            ),
            "it ends after",
        ),
    ],
)
def test_what_is_not_whisper_is_refused_with_the_reason(folder, change, message) -> None:
    change(folder / "model.bin")
    with pytest.raises(ModelError, match=message):
        locate(folder)


def test_integers_are_refused_by_name(folder) -> None:
    variables = {n: v.copy() for n, v in read_variables(folder / "model.bin").items()}
    variables.pop("decoder/projection/weight")
    variables["encoder/layer_0/ffn/linear_0/weight"] = variables[
        "encoder/layer_0/ffn/linear_0/weight"
    ].astype(np.int8)
    pack(folder / "model.bin", variables)
    with pytest.raises(ModelError, match=r"8-bit integers \(encoder/layer_0/ffn/linear_0/weight\)"):
        locate(folder)


def test_a_folder_without_its_tokenizer_says_so(folder) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="holds no tokenizer.json"):
        locate(folder)
