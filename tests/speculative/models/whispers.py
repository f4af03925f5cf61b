"""Tiny random Whispers, unmodified transformers classes, with Whisper's special tokens in place."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForCausalLM, WhisperForConditionalGeneration

VOCAB, EOS, SOT, NO_TIMESTAMPS, FRAMES, WIDTH = 120, 50, 51, 60, 12, 16


def config(layers: int, positions: int) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=8,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=layers,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=FRAMES,
        max_target_positions=positions,
        pad_token_id=EOS,
        bos_token_id=EOS,
        eos_token_id=EOS,
        decoder_start_token_id=SOT,
        init_std=0.4,  # random weights of the default size would repeat one token
    )


@functools.cache
@torch.inference_mode(False)  # whoever asks first
def whisper(
    layers: int = 2, seed: int = 0, positions: int = 40, dtype: torch.dtype = torch.float32
) -> WhisperForConditionalGeneration:
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config(layers, positions)).eval().to(dtype)
    options = model.generation_config
    options.no_timestamps_token_id = NO_TIMESTAMPS
    options.max_initial_timestamp_index = 20
    options.suppress_tokens = [3, 4]
    options.begin_suppress_tokens = [5, EOS]
    return model


@functools.cache
@torch.inference_mode(False)  # whoever asks first
def decoder_only(layers: int = 1, seed: int = 1, positions: int = 40) -> WhisperForCausalLM:
    torch.manual_seed(seed)
    return WhisperForCausalLM(config(layers, positions)).eval()


def encoder_states(seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Encoder states `[FRAMES, WIDTH]` of an imagined window."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(FRAMES, WIDTH, generator=generator).to(dtype)


@torch.inference_mode()
def forward(model: WhisperForConditionalGeneration, states: Tensor, tokens: Tensor) -> Tensor:
    """Logits `[L, V]` of a whole prefix, without a cache."""
    out = model(encoder_outputs=(states[None],), decoder_input_ids=tokens[None], use_cache=False)
    return out.logits[0]
