"""Penalties, and the bounds of sampling above temperature 0, on logits.

Tensor functions of each row's own settings, and of each position's prefix with the drafts before it, so
that target and draft are treated alike at every drafted position. Rows with default settings keep their
logits bit for bit, whatever the other rows of the batch use.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafts import Prefix
from ..rows import Rows


def penalise(rows: Rows, logits: Tensor, prefix: Prefix) -> Tensor:
    """Returns `logits [B, N, V]`, lower for tokens that the prefix contains.

    `repetition` (Keskar et al. 2019, transformers) counts prompt and text; `presence` and `frequency`
    (OpenAI) the text alone. The cost is two counts over the vocabulary per position.
    """
    first, drafts = prefix.last[:, :1], prefix.tokens.gather(1, prefix.last[:, 1:])
    slots = torch.arange(prefix.tokens.shape[1], device=logits.device)

    def counts(begin: Tensor) -> Tensor:
        """How often each token is among those from slot `begin [B, 1]` on, `[B, N, V]`."""
        there = ((slots >= begin) & (slots <= first)).to(logits.dtype)  # [B, T]
        base = torch.zeros_like(logits[:, 0]).scatter_add(1, prefix.tokens, there)
        steps = [base]
        for i in range(drafts.shape[1]):  # a position sees the drafts before it
            one = torch.ones_like(base[:, :1])
            steps.append(steps[-1].scatter_add(1, drafts[:, i : i + 1], one))
        return torch.stack(steps, dim=1)

    # In a tree every node is a row of its own.
    copies = len(logits) // rows.batch

    def each(values: Tensor) -> Tensor:
        return values.repeat_interleave(copies, output_size=len(logits))[:, None, None]

    present = counts(torch.zeros_like(prefix.begin)[:, None]) > 0
    factor = torch.where(present, each(rows.sampling.repetition), 1.0)
    logits = torch.where(logits < 0, logits * factor, logits / factor)
    text = counts(prefix.begin[:, None])
    return logits - each(rows.sampling.presence) * (text > 0) - each(rows.sampling.frequency) * text


def bound(rows: Rows, logits: Tensor) -> Tensor:
    """`logits [B, N, V]`, divided by the temperature, at -inf where top-k, top-p or min-p cut them.

    All three are thresholds in the sorted vocabulary, so tokens that tie with the last one kept are
    kept too. The cost is one sort of the vocabulary per position.
    """
    lowest, vocab = float("-inf"), logits.shape[-1]
    down = logits.sort(-1, descending=True).values
    most = torch.where(rows.sampling.top_k > 0, rows.sampling.top_k, vocab).clamp_max(vocab)
    at = (most - 1)[:, None, None].expand(-1, down.shape[1], 1)
    by_k = down.gather(-1, at)
    mass = down.masked_fill(down < by_k, lowest).softmax(-1)
    before = mass.cumsum(-1) - mass  # of the tokens that are likelier
    top_p = rows.sampling.top_p[:, None, None]
    held = (before < top_p).sum(-1, keepdim=True).clamp_min(1)
    # A top-p of 1 cuts nothing, although the running sum may reach 1 early by rounding.
    by_p = torch.where(top_p < 1, down.gather(-1, held - 1), lowest)
    by_min = down[..., :1] + rows.sampling.min_p[:, None, None].log()
    least = torch.maximum(torch.maximum(by_k, by_p), by_min)
    return logits.masked_fill(logits < least, lowest)
