"""The kernels' choice and greedy drafts are those of the torch forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forescribe.speculative import ModelDrafter
from forescribe.speculative.native.adapters import NativeCausalDecoder, NativeWhisperDecoder
from forescribe.speculative.native.library import load
from forescribe.speculative.rounds.choice import Allowed, choose

from ..models.causal_lms import causal_lm
from . import cases
from .cases import VOCAB, Shape, model, states

pytestmark = pytest.mark.native

NONE = float("-inf")


def rules(generator: torch.Generator, B: int, N: int, V: int, split: int) -> Allowed:
    def integers(high: int) -> Tensor:
        return torch.randint(0, high + 1, (B, N), generator=generator)

    forbidden = torch.rand(3, V, generator=generator) < 0.3
    forbidden[2, :split] = True  # nothing of the first part
    bias = torch.zeros(3, V).masked_fill(forbidden, NONE)
    return Allowed(split, bias, integers(2), integers(V), integers(V), integers(1).bool())


@settings(max_examples=60, deadline=None)
@given(
    B=st.integers(1, 3),
    N=st.integers(1, 4),
    V=st.sampled_from([1, 7, 64, 131, 2808]),
    share=st.floats(0, 1),
    ruled=st.booleans(),
    ties=st.booleans(),
    strange=st.sampled_from([None, NONE, float("nan")]),
    seed=st.integers(0, 2**31),
)
def test_the_choice_is_that_of_torch(
    B: int, N: int, V: int, share: float, ruled: bool, ties: bool, strange: float | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(B, N, V, generator=generator)
    if ties:
        logits = logits.round()
    allowed = rules(generator, B, N, V, round(share * V)) if ruled else None
    if strange is not None:
        logits[torch.rand(logits.shape, generator=generator) < 0.02] = strange
    before = logits.clone()
    found, expected = load().choose_tokens(logits, allowed), choose(logits, allowed)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=0, atol=1e-5, equal_nan=True)
    near = torch.zeros(B, N, dtype=torch.bool)
    if allowed is not None:  # the joint probability, where a rounding decides
        other = choose(logits + 1e-4 * (torch.arange(V) >= allowed.split), allowed)
        less = choose(logits - 1e-4 * (torch.arange(V) >= allowed.split), allowed)
        near = other.tokens != less.tokens
    assert torch.equal(found.tokens[~near], expected.tokens[~near])
    alone = load().choose_tokens(logits[:1, :1], None)
    if allowed is None:
        assert torch.equal(alone.tokens[0, 0], found.tokens[0, 0])
        assert str(alone.logprobs[0, 0]) == str(found.logprobs[0, 0])


def test_a_kind_without_a_row_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    allowed = rules(generator, 1, 1, 9, 4)
    allowed.kind.fill_(3)
    with pytest.raises(ValueError, match="refuse"):
        load().choose_tokens(torch.zeros(1, 1, 9), allowed)


@dataclass
class Plain:
    """A native model without its passes for greedy rounds."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        if name in ("choose", "draft_greedy"):
            raise AttributeError(name)
        return getattr(self.inner, name)


PAIRS: dict[str, Any] = {
    "whisper": lambda: [NativeWhisperDecoder(model(shape)) for shape in (Shape(), Shape(layers=1))],
    "text": lambda: [
        NativeCausalDecoder(causal_lm("llama", layers=n), pick=lambda states: None) for n in (3, 2)
    ],
}


def decoded(pair: str, confidence: float, batch: int, *, plain: bool) -> dict[Any, tuple[Any, ...]]:
    target, draft = (Plain(m) if plain else m for m in PAIRS[pair]())
    drafter = ModelDrafter(draft, confidence=confidence)
    results, _ = cases.decoded(target, drafter, 4, batch=batch)
    return {
        tag: (r.tokens, r.sources, r.rounds, r.drafted, r.accepted, r.finish)
        for tag, r in results.items()
    }


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("confidence", [0.0, 0.05])
def test_rounds_are_those_of_the_loop_in_torch(pair: str, confidence: float) -> None:
    for batch in (1, 3):
        found = decoded(pair, confidence, batch, plain=False)
        assert found == decoded(pair, confidence, batch, plain=True)
        assert sum(len(tokens) for tokens, *_ in found.values()) > 40
        assert any(accepted for *_, accepted, _ in found.values())
    if not confidence:  # then nothing of a row depends on the others
        assert found == decoded(pair, confidence, 1, plain=False)


@torch.inference_mode()
def test_drafts_end_where_every_active_row_doubts() -> None:
    shape = Shape()
    native = NativeWhisperDecoder(model(shape))
    native.allocate(2, 64)
    prompts = torch.tensor([[3, 4, 5], [7, 8, 9]])
    native.prefill(torch.arange(2), prompts, states(shape, 2))
    node = torch.tensor([1, 1])

    def drafts(confidence: float, active: list[bool]) -> Tensor:
        start = torch.tensor([1, 1])
        known = prompts[:, 1:]
        return native.draft_greedy(
            known, start, node, torch.tensor(active), reach=64, gamma=5, confidence=confidence
        )

    whole = drafts(0.0, [True, True])
    assert whole.shape == (2, 5) and int(whole.max()) < VOCAB
    assert torch.equal(drafts(1.0, [True, True]), whole[:, :1])
    assert torch.equal(drafts(1e-30, [False, False]), whole[:, :1])
    assert torch.equal(drafts(1e-30, [False, True]), whole)
