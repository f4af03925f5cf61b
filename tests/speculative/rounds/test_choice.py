"""A greedy round's choice equals the argmax of processed logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.rounds.choice import CHUNK, SMALL, Allowed, argmax, choose
from forescribe.speculative.rounds.round import Parts
from forescribe.speculative.types import Chain, Prefix
from tests.speculative.tiny import TinyModel

NONE = float("-inf")


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, CHUNK - 1, CHUNK, 2 * CHUNK, 2 * CHUNK + 1, 1000, 4099]),
    large=st.booleans(),
    seed=st.integers(0, 2**31),
    step=st.sampled_from([None, 0.5]),
)
def test_argmax_is_torchs_argmax(size: int, large: bool, seed: int, step: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = SMALL // size + 1 if large else 3
    values = torch.randn(rows, size, generator=generator)
    if step is not None:  # ties: the lowest index counts
        values = (values / step).round() * step
    values[0] = NONE
    assert torch.equal(argmax(values), values.argmax(-1))
    assert torch.equal(argmax(values[:, : size // 2 + 1]), values[:, : size // 2 + 1].argmax(-1))


def dense(allowed: Allowed, logits: Tensor) -> Tensor:
    """`logits` with -inf at every token that is not allowed, by the definition, position by position."""
    out = logits.clone()
    ids = torch.arange(logits.shape[-1])
    for b in range(logits.shape[0]):
        for n in range(logits.shape[1]):
            fits = (ids >= allowed.low[b, n]) & (ids < allowed.high[b, n])
            here = (allowed.bias[allowed.kind[b, n]] == 0) & ((ids < allowed.split) | fits)
            out[b, n, ~here] = NONE
            shares = out[b, n].log_softmax(-1)
            first, second = shares[: allowed.split], shares[allowed.split :]
            if (
                allowed.joint[b, n]
                and len(first)
                and len(second)
                and second.logsumexp(-1) > first.amax()
            ):
                out[b, n, : allowed.split] = NONE
    return out


@settings(max_examples=80, deadline=None)
@given(
    B=st.integers(1, 4),
    N=st.integers(1, 6),
    V=st.sampled_from([2, 17, 300]),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_the_choice_is_the_argmax_of_the_allowed(
    B: int, N: int, V: int, share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    split = round(share * V)
    forbidden = torch.rand(3, V, generator=generator) < 0.3
    forbidden[:, 0] = False  # every position keeps a token
    allowed = Allowed(
        split=split,
        bias=torch.zeros(3, V).masked_fill(forbidden, NONE),
        kind=integers(0, 2, B, N),
        low=integers(0, V, B, N),
        high=integers(0, V, B, N),
        joint=integers(0, 1, B, N).bool(),
    )
    logits = 3 * torch.randn(B, N, V, generator=generator)
    before = logits.clone()
    found, expected = choose(logits, allowed), dense(allowed, logits)
    assert torch.equal(logits, before)
    assert torch.equal(found.tokens, expected.argmax(-1))
    best = expected.log_softmax(-1).amax(-1)  # NaN where `split` is 0 and nothing is allowed
    assert torch.allclose(found.logprobs, best, atol=1e-5, equal_nan=True)


def test_without_rules_the_choice_is_of_all_tokens() -> None:
    logits = torch.randn(2, 3, 50)
    found = choose(logits)
    assert torch.equal(found.tokens, logits.argmax(-1))
    assert torch.allclose(found.logprobs, logits.log_softmax(-1).amax(-1), atol=1e-6)


@dataclass(frozen=True)
class Rising:
    """After token t: ids of `split` and above from t on only, which win by their joint probability
    after an even token; ids that t divides are forbidden below it."""

    split: int
    bias: Tensor

    @classmethod
    def of(cls, vocab: int, split: int) -> Rising:
        bias = torch.zeros(vocab, vocab)
        for t in range(2, vocab):
            bias[t, t:split:t] = NONE
        return cls(split, bias)

    def allowed(self, chain: Chain) -> Allowed:
        end = torch.full_like(chain.fed, self.bias.shape[1])
        return Allowed(self.split, self.bias, chain.fed, chain.fed, end, chain.fed % 2 == 0)

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        return dense(self.allowed(prefix.chain()), logits)


@dataclass(frozen=True)
class Opaque:
    """The same for rounds that process the logits."""

    rule: Rising

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        return self.rule(logits, prefix)


RULES = Rising.of(11, 6)
DRAFTERS: dict[str, Any] = {
    "near": lambda: ModelDrafter(TinyModel(blur=0.3)),
    "early": lambda: ModelDrafter(TinyModel(blur=0.3), confidence=0.2),
    "ngram": lambda: NgramDrafter(),
}


def decoded(work: list[Request], drafter: str, processor: Any, batch: int) -> tuple[dict, Engine]:
    engine = Engine(
        TinyModel(),
        DRAFTERS[drafter](),
        batch=batch,
        eos=(10,),
        schedule=Fixed(4),
        processors=(processor,),
    )
    return {r.request.tag: r for r in engine.run(work)}, engine


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=6),
    st.sampled_from(sorted(DRAFTERS)),
    st.integers(1, 3),
)
def test_texts_are_those_of_rounds_that_process_the_logits(
    prompts: list[list[int]], drafter: str, batch: int
) -> None:
    """Ragged prompts, several rounds, rows that end and are taken again."""
    work = [
        Request(tuple(prompt), encoder_states=i % 8, tag=i, max_new_tokens=20 - i)
        for i, prompt in enumerate(prompts)
    ]
    found, engine = decoded(work, drafter, RULES, batch)
    expected, other = decoded(work, drafter, Opaque(RULES), batch)
    assert engine._texts.runner.parts[True].choose is not None
    assert other._texts.runner.parts[True].choose is None
    for tag, result in expected.items():
        assert found[tag].tokens == result.tokens
        assert found[tag].sources == result.sources
        assert found[tag].logprobs == pytest.approx(result.logprobs, abs=1e-5)


def parts(processors: tuple[Any, ...] = (RULES,)) -> Parts:
    return Parts(TinyModel(), None, processors, torch.tensor([10]))


def test_only_rounds_with_one_allowing_processor_read_the_choice() -> None:
    assert parts().choose is not None and parts(()).choose is not None
    assert parts((RULES, RULES)).choose is None
    assert parts((Opaque(RULES),)).choose is None
