"""Random native decoders of many kinds: Whispers by their shape, text models by their family."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from transformers import WhisperConfig, WhisperForCausalLM

from forescribe.speculative import Engine, Fixed, Request, Result
from forescribe.speculative.models.modules import CausalDecoder, WhisperDecoder
from forescribe.speculative.models.quantized import quantize_causal, quantize_whisper
from forescribe.speculative.native.adapters import NativeCausalDecoder, NativeWhisperDecoder
from forescribe.speculative.native.library import load
from forescribe.speculative.requests import Sampling
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft
from tests.speculative.models.causal_lms import causal_lm

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


shapes = st.builds(
    Shape,
    heads=st.sampled_from([1, 2, 3]),
    size=st.sampled_from([8, 16, 24, 32, 64, 80, 128]),  # whole and half panels
    layers=st.sampled_from([1, 2]),
    inner=st.sampled_from([8, 40, 64]),
    sources=st.sampled_from([1, 2, 15, 16, 17, 50]),
    activation=st.sampled_from(["gelu", "relu", "silu"]),
)

Kind = Shape | str
"""A Whisper, or a family of text models."""


@functools.cache
@torch.inference_mode(False)  # whoever asks first
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


@functools.cache
@torch.inference_mode(False)  # whoever asks first
def integers(kind: Kind) -> Any:
    """The model with matrices of 8-bit integers."""
    if isinstance(kind, Shape):
        made = copy.deepcopy(model(kind))
        quantize_whisper(made)
    else:
        made = copy.deepcopy(causal_lm(kind))
        quantize_causal(made)
    return made


def decoder(
    kind: Kind, *, quantized: bool = False, stored: torch.dtype | None = None
) -> NativeWhisperDecoder | NativeCausalDecoder:
    if isinstance(kind, Shape):
        return NativeWhisperDecoder(integers(kind) if quantized else model(kind), stored=stored)
    return NativeCausalDecoder(integers(kind) if quantized else causal_lm(kind), stored=stored)


def oracle(kind: Kind) -> WhisperDecoder | CausalDecoder:
    return (
        WhisperDecoder(model(kind)) if isinstance(kind, Shape) else CausalDecoder(causal_lm(kind))
    )


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


def states_of(kind: Kind, count: int) -> list[Any]:
    return states(kind, count) if isinstance(kind, Shape) else [None] * count


def tokens(batch: int, length: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, length), generator=generator)


def prefill(adapter: Any, shape: Shape, batch: int, length: int, seed: int = 2) -> Tensor:
    logits: Tensor = adapter.prefill(
        torch.arange(batch), tokens(batch, length, seed), states(shape, batch)
    ).logits
    return logits


@dataclass
class Seen:
    """A drafter that notes what it drafts."""

    inner: Any
    drafts: list[Draft] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        draft: Draft = self.inner.propose(rows, gamma)
        self.drafts.append(draft)
        return draft


def decoded(
    target: Any,
    drafter: Any,
    gamma: int,
    *,
    batch: int = 3,
    temperature: float = 0.0,
    sampling: Sampling | None = None,
) -> tuple[dict[Any, Result], Engine]:
    """The results of six ragged requests, more than fit, so that rows end and are taken again. Every other
    one is sampled above temperature 0."""
    engine = Engine(target, drafter, batch=batch, eos=(1,), schedule=Fixed(gamma))
    work = [
        Request(
            tuple(2 + (3 * i + j) % 40 for j in range(1 + i % 4)),
            encoder_states=state,
            tag=i,
            max_new_tokens=22 - 3 * i,
            temperature=temperature if i % 2 else 0.0,
            sampling=sampling or Sampling(),
            seed=i,
        )
        for i, state in enumerate(states(Shape(), 6))
    ]
    results = {r.request.tag: r for r in engine.run(work)}
    assert not engine.faults
    return dict(sorted(results.items())), engine
