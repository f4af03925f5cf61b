"""Attention of a few queries over many keys as two matrix products, for CPUs.

A round of speculation asks G + 1 queries of 1,500 encoder positions. PyTorch's fused CPU
kernel is made for many queries: on two cores, with four heads of 64, six queries took 1.7 ms in
it (eight layers) and 1.0 ms as products; one query took the same in both. So scoring a draft
costs less relative to a plain step, on which the gain of speculation depends. GPUs keep their own kernels.

transformers looks such a function up by name, so the models stay unmodified.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "products"
FEW, MANY = 16, 512  # queries at most, keys at least
EXACT = frozenset({torch.float32, torch.float64})  # below, the fused kernel sums in float32 itself


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """query `[B, heads, N, D]`, key and value `[B, heads, T, D]` -> `[B, N, heads, D]`.

    Everything but few queries over many keys goes to the fused kernel.
    """
    few = query.shape[2] <= FEW and key.shape[2] >= MANY and key.shape[1] == query.shape[1]
    causal = attention_mask is None and query.shape[2] > 1 and getattr(module, "is_causal", True)
    if not few or causal or query.dtype not in EXACT or dropout:
        result: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query if scale == 1 else query * scale, key.transpose(2, 3))
    if attention_mask is not None:
        scores += attention_mask
    return torch.matmul(scores.softmax(-1), value).transpose(1, 2).contiguous(), None


def use_products(model: Any) -> None:
    """Makes a transformers model compute all attention with `attend`."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
