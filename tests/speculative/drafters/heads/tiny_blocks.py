"""Tiny random block heads for the tiny Whispers, and a naive reading of their tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from forescribe.speculative.models.heads.whisper_block import BlockShape, WhisperBlock
from tests.speculative.models.whispers import VOCAB, WIDTH

SHAPE = BlockShape(
    width=WIDTH,
    heads=2,
    inner=24,
    layers=2,
    positions=40,
    block=4,
    taps=(0, 1, -1),
    target_layers=2,
    vocab=VOCAB,
)


def block_head(seed: int = 0, **changes: object) -> WhisperBlock:
    shape = replace(SHAPE, **changes)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: 0.4 * torch.randn(sizes, generator=generator)
        for name, sizes in shape.tensors().items()
    }
    return WhisperBlock(shape, tensors)


def naive_drafts(
    head: WhisperBlock, table: Tensor, taps: Tensor, states: Tensor, text: Sequence[int], count: int
) -> list[int]:
    """The drafts behind a text, query by query: `taps [L - 1, n, D]` of all tokens but the last."""
    t, shape = head.tensors, head.shape

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"])

    def lin(name: str, x: Tensor) -> Tensor:
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def attend(name: str, query: Tensor, source: Tensor) -> Tensor:
        size, parts = shape.width // shape.heads, []
        q, both = lin(f"{name}_query", query), lin(f"{name}_key_value", source)
        for h in range(shape.heads):
            cut = slice(h * size, (h + 1) * size)
            keys, values = both[:, : shape.width][:, cut], both[:, shape.width :][:, cut]
            weights = (keys @ q[cut] / math.sqrt(size)).softmax(0)
            parts.append(weights @ values)
        return lin(f"{name}_out", torch.cat(parts))

    at = len(text) - 1
    xs = [lin("input", table[text[-1]]) + t["masks"][0], *t["masks"][1:count]]
    xs = [x + t["positions"][min(at + i, shape.positions - 1)] for i, x in enumerate(xs)]
    for layer in range(shape.layers):
        name = f"layers.{layer}"
        plain = layer_norm(taps, taps.shape[-1:]).flatten(1)
        read = torch.cat([lin(f"{name}.taps", plain), torch.stack(xs)])
        read = norm(f"{name}.self_norm", read)
        out = []
        for x in xs:
            x = x + attend(f"{name}.self", norm(f"{name}.self_norm", x), read)
            x = x + attend(f"{name}.cross", norm(f"{name}.cross_norm", x), states)
            x = x + lin(f"{name}.down", gelu(lin(f"{name}.up", norm(f"{name}.inner_norm", x))))
            out.append(x)
        xs = out
    return [int((table @ lin("output", norm("norm", x))).argmax()) for x in xs]
