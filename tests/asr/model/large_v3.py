"""Folders with large-v3's published configuration, special tokens and ids, and few random weights.

`data/whisper-large-v3` holds its configuration files as newer transformers save them (openai, Apache-2.0).
Its 50,257 text tokens are made up here: bytes, then names that no text is split into.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AddedToken,
    WhisperConfig,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

PUBLISHED = Path(__file__).parent / "data" / "whisper-large-v3"
TEXT = 50257
SMALL = {
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "dtype": "float32",
}


def tokenizer() -> WhisperTokenizer:
    options = json.loads((PUBLISHED / "generation_config.json").read_text())
    tasks = sorted(options["task_to_id"], key=options["task_to_id"].get)
    specials = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *sorted(options["lang_to_id"], key=options["lang_to_id"].get),
        *(f"<|{task}|>" for task in tasks),
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ]
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces += [f"piece {i}" for i in range(len(pieces), TEXT)]
    made = WhisperTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[])
    wanted = [AddedToken(token, normalized=False, special=True) for token in specials]
    made.add_special_tokens({"extra_special_tokens": wanted[1:]})
    times = [AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False) for i in range(1501)]
    made.add_tokens(times)
    return made


def config(layers: int) -> WhisperConfig:
    published = json.loads((PUBLISHED / "config.json").read_text())
    return WhisperConfig(**{**published, **SMALL, "decoder_layers": layers, "init_std": 0.3})


def write_target(folder: Path, tokens: Path, dtype: torch.dtype = torch.float32, **how) -> Path:
    """`tokens` is a folder with the tokenizer; `how` goes to `save_pretrained`."""
    torch.manual_seed(0)
    return _save(folder, WhisperForConditionalGeneration(config(2)).to(dtype), tokens, **how)


def write_own_encoder(folder: Path, target: Path, tokens: Path) -> Path:
    """A draft whose decoder is near its target's, and whose encoder is another."""
    draft = _near(target)
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in draft.model.encoder.layers.parameters():
            weight.add_(0.01 * torch.randn_like(weight))
    return _save(folder, draft, tokens)


def write_shared_encoder(folder: Path, target: Path, tokens: Path) -> Path:
    """A draft with a copy of the target's encoder, as distil-whisper publishes them."""
    return _save(folder, _near(target), tokens)


def write_no_encoder(folder: Path, target: Path, tokens: Path) -> Path:
    near = _near(target)
    draft = WhisperForCausalLM(near.config)
    draft.model.decoder.load_state_dict(near.model.decoder.state_dict())
    return _save(folder, draft, tokens)


def _near(target: Path) -> WhisperForConditionalGeneration:
    draft = WhisperForConditionalGeneration.from_pretrained(target, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in draft.model.decoder.layers.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    return draft


def _save(folder: Path, model: torch.nn.Module, tokens: Path, **how) -> Path:
    model.save_pretrained(folder, **how)
    for file in tokens.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    shutil.copy(PUBLISHED / "processor_config.json", folder)
    options = json.loads((PUBLISHED / "generation_config.json").read_text())
    # Its width is not large-v3's, whose windows are not searched.
    (folder / "generation_config.json").write_text(json.dumps(options | {"num_beams": 1}))
    return folder
