"""Losses of distillation: towards the target's distribution first, then towards acceptance itself.

A draft token is accepted with probability `sum_x min(p(x), q(x))` in sampled rows, and in greedy ones where
both choices are equal. Plain total variation has hardly any gradient where the models disagree, so training
begins with KL divergence and cross-entropy (after Distil-Whisper, arXiv 2311.00430) and goes over to the
hybrid of the LK losses: `w KL + (1 - w) TV` with `w = exp(-3 alpha)`, alpha without gradient. Knows tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from .labels.sparse_distribution import LEAST, SparseDistribution

CHOICE_WEIGHT = 0.5
"""Of the cross-entropy on the target's choice, beside the divergence."""

SHARPNESS = 3.0
"""How fast the hybrid leaves the divergence as drafts become accepted."""

TINY = 1e-6


@dataclass(frozen=True, eq=False)
class Parts:
    """Of N positions: `divergence` KL(p || q), `choice` -log q(argmax p), `overlap` the probability [N] that
    a drawn token is accepted, with gradients; and whether the choices are `equal` [N], without."""

    divergence: Tensor
    choice: Tensor
    overlap: Tensor
    equal: Tensor


def parts_of(logits: Tensor, wanted: SparseDistribution, greedy: Tensor) -> Parts:
    """From the draft's logits [N, V]. Where `greedy` [N] is set, the target's distribution is its choice, so
    the overlap is the probability of that one token.

    All tokens that `wanted` does not list count as one in the divergence, and not at all in the overlap,
    which is therefore a lower bound.
    """
    logs = logits.float().log_softmax(-1)
    q = logs.gather(1, wanted.ids)  # [N, R]
    p, rest = wanted.probabilities, wanted.rest
    listed = torch.where(wanted.logs > LEAST, q.exp(), 0.0).sum(-1)
    lump = (1 - listed).clamp(min=TINY).log()
    divergence = (p * (wanted.logs - q)).sum(-1) + rest * (rest.clamp(min=TINY).log() - lump)
    chosen = q[:, 0]
    drawn = torch.minimum(p, q.exp()).sum(-1)
    return Parts(
        divergence,
        -chosen,
        torch.where(greedy, chosen.exp(), drawn),
        logs.argmax(-1) == wanted.choice,
    )


def distillation(wanted: Tensor, guess: Tensor) -> Tensor:
    """Divergence and cross-entropy per token from the logits [N, V] of both models, where all of them are at
    hand: a target that is trained at the same time has no labels to keep."""
    divergence = kl_div(
        guess.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean"
    )
    return divergence + CHOICE_WEIGHT * cross_entropy(guess, wanted.argmax(-1))


def warm_up(parts: Parts) -> Tensor:
    """Divergence and cross-entropy: the loss of the beginning."""
    return parts.divergence.mean() + CHOICE_WEIGHT * parts.choice.mean()


def hybrid(parts: Parts) -> Tensor:
    """The LK hybrid: the divergence fades as the mean overlap grows, see the module."""
    overlap = parts.overlap.mean()
    weight = math.exp(-SHARPNESS * float(overlap.detach()))
    return weight * warm_up(parts) + (1 - weight) * (1 - overlap)
