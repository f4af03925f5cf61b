"""Random tiny heads in their published formats, for a tiny target of the same width."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forescribe.speculative.models.heads.formats import eagle3_head, mtp_head
from forescribe.speculative.models.heads.records import Head, TargetShape
from tests.speculative.drafters.heads import published

from ...models.causal_lms import causal_lm

LAYERS = 8
KEPT = tuple(range(1, 60, 2))  # token ids that EAGLE-3 heads propose
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def target() -> Any:
    """A model of its own: transformers hooks models that return their states."""
    return copy.deepcopy(causal_lm("llama", layers=LAYERS))


def shape(model: Any) -> TargetShape:
    config = model.config
    return TargetShape("target", config.hidden_size, config.num_hidden_layers, config.vocab_size)


@dataclass(frozen=True)
class Made:
    """A head as published, and the record that its loader makes."""

    family: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    head: Head


def wild(tensors: dict[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Large random numbers in place of a beginner's: every part of a head changes its drafts."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: value
        if not value.is_floating_point()
        else torch.rand(value.shape, generator=random) + 0.5
        if value.dim() == 1
        else 0.4 * torch.randn(value.shape, generator=random)
        for name, value in tensors.items()
    }


def eagle3(
    model: Any,
    *,
    speculators: bool = False,
    layers: int = 1,
    kept: tuple[int, ...] = KEPT,
    **flags: bool,
) -> Made:
    config, tensors = published.eagle3(
        model.config, kept, inner=24, layers=layers, speculators=speculators, flags=flags
    )
    tensors = wild(tensors)
    return Made("eagle3", config, tensors, eagle3_head(config, tensors, shape(model), "head"))


def mtp(model: Any) -> Made:
    more, tensors = published.mtp(model.config, inner=24)
    tensors = wild(tensors)
    config = {
        **model.config.to_dict(),
        "rope_theta": 10000.0,
        **more,
        "rms_norm_eps": model.config.rms_norm_eps,
    }
    config["intermediate_size"] = 24
    return Made("mtp", config, tensors, mtp_head(config, tensors, shape(model), "target"))


def made(family: str, model: Any) -> Made:
    return {"eagle3": eagle3, "mtp": mtp}[family](model)
