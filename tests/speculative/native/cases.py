"""Random Whisper decoders of many shapes, and one reading of ragged rows by two adapters."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForCausalLM

from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.native.decoder import NativeWhisperDecoder
from forescribe.speculative.native.library import load

VOCAB, POSITIONS, SLOTS = 53, 40, 64
BFLOAT16_PRODUCTS = "avx512bf16"
"""The instruction set that multiplies bfloat16 matrices in bfloat16."""


@contextmanager
def float32_arithmetic() -> Iterator[None]:
    """Kernels that compute in float32 whatever the storage."""
    library = load()
    library.choose(next(n for n in library.instruction_sets() if n != BFLOAT16_PRODUCTS))
    try:
        yield
    finally:
        library.choose(None)


@dataclass(frozen=True)
class Shape:
    heads: int = 2
    size: int = 16  # columns of a head
    layers: int = 2
    inner: int = 24
    sources: int = 9
    activation: str = "gelu"


@functools.cache
def model(shape: Shape) -> WhisperForCausalLM:
    torch.manual_seed(0)
    return WhisperForCausalLM(
        WhisperConfig(
            vocab_size=VOCAB,
            d_model=shape.heads * shape.size,
            decoder_layers=shape.layers,
            decoder_attention_heads=shape.heads,
            decoder_ffn_dim=shape.inner,
            max_source_positions=shape.sources,
            max_target_positions=POSITIONS,
            activation_function=shape.activation,
            decoder_start_token_id=0,
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=0,
            init_std=0.8 / (shape.heads * shape.size) ** 0.5,
        )
    ).eval()


def adapters(shape: Shape, batch: int) -> tuple[WhisperDecoder, NativeWhisperDecoder]:
    """The oracle and the native decoder, allocated."""
    both = WhisperDecoder(model(shape)), NativeWhisperDecoder(model(shape))
    for adapter in both:
        adapter.allocate(batch, SLOTS)
    return both


def states(shape: Shape, count: int, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = shape.heads * shape.size
    return [torch.randn((shape.sources, width), generator=generator) for _ in range(count)]


def tokens(batch: int, length: int, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, length), generator=generator)


def prefill(adapter: Any, shape: Shape, batch: int, length: int, seed: int = 2) -> Tensor:
    logits: Tensor = adapter.prefill(
        torch.arange(batch), tokens(batch, length, seed), states(shape, batch)
    ).logits
    return logits
