"""The records of a head: what EAGLE-3, MTP and DFlash loaders make, and what drafters and trainers run.

Letters besides those of `speculative.drafts`: H width of the head, n taps, U tokens that the head proposes,
d size of an attention head. A chain head reads, at position t, the state of token t and the embedding of
token t + 1, and predicts token t + 2. A block head predicts G tokens after the pending one in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

from ...errors import LoadError
from ..lean.projections import Linear
from .bodies import Body, LeanBody

LAST = -1
"""The tap behind the target's final norm."""


@dataclass(frozen=True)
class TargetShape:
    """The sizes of the target that a head must fit; `name` is for messages."""

    name: str
    width: int
    layers: int
    vocab: int


@dataclass(frozen=True, eq=False)
class Taps:
    """How the target's states become the feature of a position: taps `[..., n, D]` to `[..., H]`.

    The norms are one for each tap, or one for all of them together, or none. Without a projection the only
    tap is the feature.
    """

    layers: tuple[int, ...]  # states entering these layers of the target, or LAST
    eps: float
    norms: tuple[Tensor, ...] = ()  # [D] each, or one of [n D]
    project: Linear | None = None  # [H, n D]
    after: Tensor | None = None  # [H], a norm of the projected feature

    def __post_init__(self) -> None:
        if not self.layers:
            raise LoadError("the head reads no hidden states")
        if self.project is None and len(self.layers) > 1:
            raise LoadError("several taps need a projection")

    def feature(self, taps: Tensor) -> Tensor:
        """The features `[..., H]` of taps `[..., n, D]`."""
        if len(self.norms) > 1:
            width = taps.shape[-1:]
            parts = [
                rms_norm(taps[..., i, :], width, w, self.eps) for i, w in enumerate(self.norms)
            ]
            x = torch.cat(parts, -1)
        else:
            x = taps.flatten(-2)
            if self.norms:
                x = rms_norm(x, x.shape[-1:], self.norms[0], self.eps)
        if self.project is not None:
            x = linear(x, self.project.weight, self.project.bias)
        return x if self.after is None else rms_norm(x, x.shape[-1:], self.after, self.eps)


@dataclass(frozen=True, eq=False)
class Output:
    """From the last layer to logits: a norm, and an output layer of its own or the target's.

    `ids` are the token ids of the own output layer's rows; None: row i is token i.
    """

    norm: Tensor  # [H]
    eps: float
    head: Linear | None = None  # [U, H]; None: the target's
    ids: Tensor | None = None  # [U] int64

    def normed(self, states: Tensor) -> Tensor:
        return rms_norm(states, states.shape[-1:], self.norm, self.eps)


@dataclass(frozen=True, eq=False)
class Run:
    """Where the positions of a pass are, what they read and where keys and values are kept."""

    positions: Tensor  # [B, N]
    mask: Tensor  # [B, 1, N, R], additive
    cache: Any


@dataclass(frozen=True, eq=False)
class ChainHead:
    """EAGLE-3, or an MTP layer: the input of position t joins the embedding of token t + 1 with feature t.

    EAGLE-3's first layer reads both side by side, `[2 H]`, and its residual is the feature; MTP projects
    them to `[H]` by `join`, which is input and residual of an ordinary layer.
    """

    family: str  # for people
    taps: Taps
    embed_norm: Tensor  # [E], E the width of embeddings
    feature_norm: Tensor  # [H]
    body: Body
    output: Output
    join: Linear | None = None  # [H, E + H]
    residual_normed: bool = False  # norm_before_residual
    feeds_normed: bool = False  # norm_output: the next feature is the state behind the norm
    embedding: Tensor | None = None  # [V, E]; None: the target's

    def step(self, embedded: Tensor, feature: Tensor, run: Run) -> Tensor:
        """The states `[B, N, H]` of positions with these embeddings and features."""
        eps = self.output.eps
        left = rms_norm(embedded, embedded.shape[-1:], self.embed_norm, eps)
        right = rms_norm(feature, feature.shape[-1:], self.feature_norm, eps)
        x = torch.cat([left, right], -1)
        if self.join is not None:
            x = linear(x, self.join.weight, self.join.bias)
            return self.body(x, x, run.positions, run.mask, run.cache)
        residual = right if self.residual_normed else feature
        return self.body(x, residual, run.positions, run.mask, run.cache)

    def next_feature(self, states: Tensor) -> Tensor:
        """What a draft step reads in place of a target's state, from the states before it."""
        return self.output.normed(states) if self.feeds_normed else states


@dataclass(frozen=True, eq=False)
class BlockHead:
    """DFlash: the target's states of committed tokens are keys and values of every layer; queries are the
    pending token and `block - 1` masks."""

    family: str
    taps: Taps
    body: LeanBody
    output: Output
    mask_token: int
    block: int
    embedding: Tensor | None = None

    def __post_init__(self) -> None:
        if self.block < 2:
            raise LoadError(f"a block of {self.block} drafts nothing")


Head = ChainHead | BlockHead
