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
from .thresholds import top_k_top_p

CACHED = 1 << 18
"""Logits that `bound` treats at a time on CPUs: several arrays of them fit into a core's caches."""


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

    All three are thresholds, so tokens that tie with the last one kept are kept too. The cost is
    a third of that of a sort.
    """
    vocab, nodes = logits.shape[-1], logits.shape[1]
    flat = logits.reshape(-1, vocab)  # [R, V], R = B N

    def each(values: Tensor) -> Tensor:
        return values.repeat_interleave(nodes, output_size=len(flat))[:, None]

    most = torch.where(rows.sampling.top_k > 0, rows.sampling.top_k, vocab).clamp_max(vocab)
    top_k, top_p, min_p = each(most), each(rows.sampling.top_p), each(rows.sampling.min_p)
    # On CPUs a few positions at a time, whose numbers stay in the caches.
    size = max(1, CACHED // vocab) if logits.device.type == "cpu" else len(flat)
    parts = [
        _bound(flat[i : i + size], top_k[i : i + size], top_p[i : i + size], min_p[i : i + size])
        for i in range(0, len(flat), size)
    ]
    return torch.cat(parts).view(logits.shape)


def _bound(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`bound` of `logits [R, V]`; the settings are `[R, 1]`."""
    by_min = logits.amax(-1, keepdim=True) + min_p.log()
    least = torch.maximum(top_k_top_p(logits, top_k, top_p), by_min)
    return logits.masked_fill(logits < least, float("-inf"))
