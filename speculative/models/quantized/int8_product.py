"""Products with matrices of 8-bit integers, over torch operators: the arithmetic that all engines share.

    w[n, k] = scale[n] q[n, k]       scale[n] = max |w[n]| / 127
    x[r, k] ~ s[r] i[r, k]           s[r]     = max |x[r]| / 127

An output is `(sum over k of q[n, k] i[r, k]) (s[r] scale[n])`. Sums are exact 32-bit integers, so a row's
output has the same bits at every batch size, number of tokens and number of threads. One scale for all rows,
as in torch's dynamic quantisation, would make a row depend on the rows beside it, its own drafts included.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
NOTHING = 2.0**-100
"""Rows of smaller magnitude count as zeros: 127 divided by it must be a number."""


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight [N, K]` as int8 `[N, K]` and the scale of each output, float32 `[N]`."""
    return rounded(weight.detach().float())


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[R, K]` of float32 as int8, to the nearest (even at ties), and their scales `[R]`."""
    top = rows.abs().amax(1, keepdim=True)
    zero = top < NOTHING
    factor = (LARGEST / top).masked_fill(zero, 0.0)
    scale = (top / LARGEST).masked_fill(zero, 0.0)
    return (rows * factor).round().to(torch.int8), scale[:, 0]


def int8_product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`x [..., K]` times `weight [N, K]` of int8, in the dtype of `x`: `[..., N]`. K is 2 or more: torch's
    product of integers leaves its result unwritten where it is 1."""
    integers, rows = rounded(x.reshape(-1, x.shape[-1]).float())
    sums: Tensor = torch._int_mm(integers, weight.t())
    out = sums.float() * (rows[:, None] * scale)
    if bias is not None:
        out = out + bias.float()
    return out.to(x.dtype).view(*x.shape[:-1], -1)
