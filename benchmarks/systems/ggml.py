"""Writes a Whisper folder as a ggml file, the format of whisper.cpp, as its own converter does.

The peer of the benchmark reads these files, and the tests of forescribe's reader of the format. Knows the
format; nothing of programs.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.convert_slow_tokenizer import bytes_to_unicode

NAMES = (
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
    (".layers.", ".blocks."),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("self_attn.", "attn."),
    ("encoder_attn.", "cross_attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
)


def dims_of(folder: Path) -> dict[str, int]:
    """The sizes of a model by whisper.cpp's names."""
    config = WhisperConfig.from_pretrained(folder)
    found = {"n_vocab": config.vocab_size, "n_mels": config.num_mel_bins}
    for side, theirs, ctx in (("encoder", "audio", "source"), ("decoder", "text", "target")):
        found[f"n_{theirs}_ctx"] = getattr(config, f"max_{ctx}_positions")
        found[f"n_{theirs}_state"] = config.d_model
        found[f"n_{theirs}_head"] = getattr(config, f"{side}_attention_heads")
        found[f"n_{theirs}_layer"] = getattr(config, f"{side}_layers")
    return found


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    """Weights by OpenAI's names."""
    found = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == "proj_out.weight":
            continue
        theirs = name.removeprefix("model.")
        for ours, other in NAMES:
            theirs = theirs.replace(ours, other)
        found[theirs] = tensor
    return found


def tokens_of(folder: Path) -> list[bytes]:
    """The bytes of the text tokens in order."""
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    back = {letter: byte for byte, letter in bytes_to_unicode().items()}
    names = sorted((i, name) for name, i in vocab.items() if name != "<|endoftext|>")
    return [bytes(back[letter] for letter in name) for _, name in names]


ORDER = (
    "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer",
    "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer", "n_mels",
)  # fmt: skip


_FTYPES = {"f32": 0, "f16": 1, "Q4_0": 2002, "Q4_1": 2003, "Q8_0": 2007, "Q5_0": 2008, "Q5_1": 2009}
"""The file's own word for the format of its matrices; quantised ones have the version 2 in front."""


def write_ggml(
    folder: Path,
    path: Path,
    kind: str = "f16",
    *,
    dims: dict[str, int] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    tokens: list[bytes] | None = None,
    filters: np.ndarray | None = None,
) -> Path:
    """`kind` is f16, f32 or the name of a quantisation; the rest replaces what the folder says."""
    sizes = {**dims_of(folder), **(dims or {})}
    if filters is None:
        filters = WhisperFeatureExtractor(feature_size=sizes["n_mels"]).mel_filters.T
    tokens = tokens_of(folder) if tokens is None else tokens
    parts = [struct.pack("<I", 0x67676D6C), struct.pack("<10i", *(sizes[name] for name in ORDER))]
    parts.append(struct.pack("<i", _FTYPES.get(kind, 2000)))
    parts += [struct.pack("<2i", *filters.shape), filters.astype("<f4").tobytes()]
    parts += [struct.pack("<i", len(tokens)), *(struct.pack("<i", len(t)) + t for t in tokens)]
    arrays = {name: tensor.numpy() for name, tensor in state_of(folder).items()}
    for name, values in (arrays if tensors is None else tensors).items():
        values = values.reshape(-1, 1) if name.endswith(("conv1.bias", "conv2.bias")) else values
        small = values.ndim < 2 or values.shape[-1] == 1 or "positional" in name
        number, data = _packed(values, "f32" if small else kind)
        parts.append(struct.pack("<3i", values.ndim, len(name), number))
        parts += [struct.pack(f"<{values.ndim}i", *values.shape[::-1]), name.encode(), data]
    path.write_bytes(b"".join(parts))
    return path


def _packed(values: np.ndarray, kind: str) -> tuple[int, bytes]:
    if kind in ("f32", "f16"):
        return ("f32", "f16").index(kind), values.astype(
            "<f4" if kind == "f32" else "<f2"
        ).tobytes()
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if values.ndim > 2:  # convolutions stay in float16
        return _packed(values, "f16")
    number = GGMLQuantizationType[kind]
    if kind in K_SCALES:
        return int(number), _k_blocks(values.size, kind)
    return int(number), quantize(values.astype(np.float32), number).tobytes()


K_SCALES = {"Q4_K": (144, (0, 2)), "Q6_K": (210, (208,))}
"""Bytes of a block of 256 numbers, and where its scales in float16 are."""


def _k_blocks(count: int, kind: str) -> bytes:
    """Random blocks: gguf reads these formats, but does not write them."""
    size, scales = K_SCALES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (count // 256, size), dtype=np.uint8)
    for at in scales:
        blocks[:, at : at + 2] = np.array([0.01], "<f2").view(np.uint8)
    return blocks.tobytes()
