"""Whisper folders with random weights, written by transformers itself: what loaders must read.

Bytes are the pieces, Whisper's special tokens follow in Whisper's order, windows are 30 s as always;
everything else is as small as it gets.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AddedToken,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

CODES = ("en", "de", "fr")
SPECIALS = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in CODES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
TIMES = tuple(f"<|{step * 0.02:.2f}|>" for step in range(1501))


def tokenizer() -> WhisperTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = WhisperTokenizer(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    specials = [AddedToken(t, normalized=False, special=True) for t in SPECIALS]
    made.add_special_tokens({"extra_special_tokens": specials[1:]})
    made.add_tokens([AddedToken(t, normalized=False, special=False) for t in TIMES])
    return made


def config(tokens: WhisperTokenizer, layers: int, **changes: int) -> WhisperConfig:
    end, start = tokens.convert_tokens_to_ids(["<|endoftext|>", "<|startoftranscript|>"])
    sizes = {
        "vocab_size": len(tokens),
        "num_mel_bins": 80,
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": layers,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "max_target_positions": 40,
    }
    return WhisperConfig(
        **{**sizes, **changes},
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        init_std=0.3,
    )


def write(folder: Path, *, layers: int = 2, seed: int = 0, **changes: int) -> Path:
    """A target, or a draft with an encoder of its own."""
    tokens = tokenizer()
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config(tokens, layers, **changes))
    ids = dict(zip(SPECIALS, tokens.convert_tokens_to_ids(list(SPECIALS)), strict=True))
    options = model.generation_config
    options._from_model_config = False  # or loading would keep only the keys it knows
    options.no_timestamps_token_id = ids["<|notimestamps|>"]
    options.prev_sot_token_id = ids["<|startofprev|>"]
    options.max_initial_timestamp_index = 50
    options.suppress_tokens = [0, 1]
    options.begin_suppress_tokens = [220, ids["<|endoftext|>"]]
    options.is_multilingual = True
    options.lang_to_id = {f"<|{code}|>": ids[f"<|{code}|>"] for code in CODES}
    options.task_to_id = {"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]}
    options.max_length = model.config.max_target_positions
    options.num_beams = 1  # most tests are of drafts, which a search with beams has none of
    return _save(folder, model, tokens)


def write_decoder_only(folder: Path, *, seed: int = 1, **changes: int) -> Path:
    """A draft as `WhisperForCausalLM` saves it: it can only hear through its target's encoder."""
    tokens = tokenizer()
    torch.manual_seed(seed)
    return _save(folder, WhisperForCausalLM(config(tokens, 1, **changes)), tokens)


def write_distilled(folder: Path, target: Path, *, seed: int = 1) -> Path:
    """A draft that carries a copy of the target's encoder, as distil-whisper publishes them."""
    write(folder, layers=1, seed=seed)
    draft = WhisperForConditionalGeneration.from_pretrained(folder)
    teacher = WhisperForConditionalGeneration.from_pretrained(target)
    draft.model.encoder.load_state_dict(teacher.model.encoder.state_dict())
    draft.save_pretrained(folder)
    return folder


def write_pair(folder: Path) -> tuple[Path, Path]:
    """A target and its draft."""
    target = write(folder / "target")
    return target, write_distilled(folder / "draft", target)


def _save(folder: Path, model: torch.nn.Module, tokens: WhisperTokenizer) -> Path:
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    return folder
