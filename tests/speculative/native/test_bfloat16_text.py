"""Text models whose weights and caches are stored in bfloat16.

The oracle of float32 arithmetic is the lean decoder over the rounded weights in float32, whose keys and
values are rounded where the kernels round them: when they are written to the cache.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forescribe.speculative.device import Device
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.hub import path
from forescribe.speculative.models.lean import LeanCausalDecoder
from forescribe.speculative.native.adapters import NativeCausalDecoder
from forescribe.text import TextGenerator
from forescribe.text.language_model import load
from forescribe.text.streaming import Options
from tests.speculative.models.causal_lms import causal_lm
from tests.speculative.models.lean.pairs import Pair

from .cases import float32_arithmetic

pytestmark = pytest.mark.native

FAMILIES = ("llama", "qwen2", "qwen3", "mistral with a window")
SLOTS, HALF = 40, torch.bfloat16

FLIP = 0.02
"""Share of the logits' spread. Two float32 sums may lie on two sides of a rounding border: then a key or
value differs by 2 ** -8 of itself, and logits of the tiny models by up to this."""


class RoundedCaches(LeanCausalDecoder):
    """The oracle: see the module."""

    def prepare(self, stored: torch.dtype) -> None:
        super().prepare(stored)
        self.rounded = HALF

    def _heads(self, *args: Any) -> Tensor:
        heads = super()._heads(*args)
        own = heads[:, :, self.weights.heads :]
        own.copy_(own.to(HALF))
        return heads


def rounded(family: str) -> Any:
    """A float32 model with weights that bfloat16 can hold."""
    model = copy.deepcopy(causal_lm(family))
    for weight in model.parameters():  # not the frequencies of the positions
        weight.data = weight.data.to(HALF).float()
    return model


def shares(pair: tuple[Tensor, Tensor]) -> Tensor:
    theirs, ours = pair
    return (theirs - ours).square().mean(-1).sqrt() / theirs.std(-1).clamp_min(
        1e-6
    )  # token 0 has no embedding


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.sampled_from([1, 2, 6]), st.integers(0, 3))
def test_logits_are_those_of_rounded_weights_and_caches(family, batch, length, count, kept):
    model = rounded(family)
    with float32_arithmetic():
        ours = NativeCausalDecoder(model, stored=HALF)
        pair = Pair(RoundedCaches(model), ours, batch=batch, slots=SLOTS)
        assert ours.stored is HALF and ours.cache.kv.dtype is HALF
        pair.prefill(list(range(batch)), length, [None] * batch)
        found = [shares(pair.score(count))]
        pair.starts += torch.arange(batch).clamp_max(min(kept, count))
        found += [shares(pair.score(count))]
    every = torch.cat([one.flatten() for one in found])
    assert float(every.median()) < 1e-4 and float(every.max()) < FLIP


@pytest.mark.parametrize("gamma", [0, 4])
def test_the_bundled_pair_writes_the_texts_of_its_rounded_target(gamma):
    """Greedy texts of the modules over the same rounded weights. No two best tokens of these are nearer than
    0.09, about ten times what rounded caches move."""
    place = Device("cpu", torch.float32, weights=HALF)
    team = "Minutes of the sales team, May 12\nPresent:"
    prompts = [team, "1. The proposal", "Minutes of the board, June 3"]
    found = {}
    for name in ("modules", "native"):
        target, draft = (
            load(path(which), place, engine=ModelEngine.of(name))
            for which in ("text", "text-draft")
        )
        made = TextGenerator(target, draft if gamma else None, device=place, batch=2, gamma=gamma)
        found[name] = [c.ids for c in made.generate(prompts, Options(max_tokens=40))]
        assert made.engine.target.engine == name
    assert made.engine.target.stored is HALF
    assert sum(map(len, found["native"])) > 90 and found["native"] == found["modules"]
