"""Whisper's token rules equal transformers' own processors at every drafted position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig, WhisperConfig
from transformers.generation.logits_process import (
    LogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from forescribe.asr.model.rules import WhisperRules, whisper_rules
from forescribe.speculative.protocols import Processor
from forescribe.speculative.rounds.choice import Choice, choose
from forescribe.speculative.types import Prefix

# A vocabulary in Whisper's order: 40 text tokens, end-of-text, special tokens, 24 timestamps.
EOS, SOT, NO_TIMESTAMPS, STAMPS, V = 40, 41, 47, 48, 72
T = 24


def _config(max_initial: int | None = 5) -> GenerationConfig:
    return GenerationConfig(
        suppress_tokens=[1, 2, 7, 14, 25, 41, 42, 45, 46, V + 3],
        begin_suppress_tokens=[3, EOS],
        eos_token_id=EOS,
        bos_token_id=EOS,
        decoder_start_token_id=SOT,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=max_initial,
    )


def _rules(generation_config: GenerationConfig) -> tuple[Processor, ...]:
    return whisper_rules(generation_config, WhisperConfig(vocab_size=V))


def _combined(generation_config: GenerationConfig) -> WhisperRules:
    (rules,) = _rules(generation_config)
    assert isinstance(rules, WhisperRules)
    return rules


def _chosen(config: GenerationConfig, logits: Tensor, prefix: Prefix) -> Choice:
    return choose(logits, _combined(config).allowed(prefix.chain()))


def _apply(rules: tuple[Processor, ...], logits: Tensor, prefix: Prefix) -> Tensor:
    for rule in rules:
        logits = rule(logits, prefix)
    return logits


def _theirs(config: GenerationConfig, begin: int, timed: bool) -> list[LogitsProcessor]:
    """As `WhisperGenerationMixin._retrieve_logit_processors` composes them."""
    processors: list[LogitsProcessor] = [
        SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin_index=begin),
        SuppressTokensLogitsProcessor(config.suppress_tokens),
    ]
    if timed:
        processors.append(WhisperTimeStampLogitsProcessor(config, begin_index=begin))
    return processors


def _expected(config: GenerationConfig, logits: Tensor, prefix: Prefix) -> Tensor:
    """One call of transformers' processors for every row and position."""
    rows = []
    for b in range(logits.shape[0]):
        begin = int(prefix.begin[b])
        timed = int(prefix.tokens[b, begin - 1]) != NO_TIMESTAMPS
        processors = _theirs(config, begin, timed)
        row = []
        for i in range(logits.shape[1]):
            seen = prefix.tokens[b, : int(prefix.last[b, i]) + 1][None]
            scores = logits[b, i][None]
            for processor in processors:
                scores = processor(seen, scores)
            row.append(scores[0])
        rows.append(torch.stack(row))
    return torch.stack(rows)


def _case(seed: int, B: int, N: int, peak: float = 3.0) -> tuple[Tensor, Prefix]:
    """Random logits and ragged prefixes, a third of whose tokens are timestamps.

    The pool of timestamps is small so that pairs, repeats and steps back all occur; slots after the
    drafts hold junk of the same kind, which no rule may look at.
    """
    rng = torch.Generator().manual_seed(seed)
    stamps = torch.randint(STAMPS, V, (B, T), generator=rng)
    text = torch.randint(0, STAMPS, (B, T), generator=rng)
    tokens = torch.where(torch.rand((B, T), generator=rng) < 0.4, stamps, text)
    begin = torch.randint(1, T - N + 1, (B,), generator=rng)
    untimed = torch.rand((B,), generator=rng) < 0.25
    before = tokens.gather(1, begin[:, None] - 1)[:, 0]
    tokens.scatter_(1, begin[:, None] - 1, torch.where(untimed, NO_TIMESTAMPS, before)[:, None])
    room = T - N - begin + 1
    generated = (torch.rand((B,), generator=rng) * (room + 1)).long().clamp(max=room)
    generated = torch.where(torch.rand((B,), generator=rng) < 0.3, 0, generated)
    last = (begin + generated - 1)[:, None] + torch.arange(N)
    logits = torch.randn((B, N, V), generator=rng) * peak
    # Between clearly text and clearly timestamps, so that the mass rule decides either way.
    logits[..., STAMPS:] += torch.randn((B, N, 1), generator=rng) * peak
    return logits, Prefix(tokens, last.clamp(max=T - 1), begin)


@pytest.mark.parametrize("max_initial", [5, 0, None])
@pytest.mark.parametrize("N", [1, 2, 3, 6, 9])
def test_rules_equal_transformers_processors_at_every_position(
    N: int, max_initial: int | None
) -> None:
    config = _config(max_initial)
    rules = _rules(config)
    for seed in range(5):
        logits, prefix = _case(seed, B=32, N=N)
        assert torch.equal(_apply(rules, logits, prefix), _expected(config, logits, prefix))


def test_the_random_cases_reach_every_branch_of_the_timestamp_rule() -> None:
    """Without this, equality on random cases could be equality on the easy ones."""
    config = _config()
    rules = _rules(config)
    logits, prefix = _case(0, B=512, N=4)
    out = _apply(rules, logits, prefix)
    text_closed = out[..., :STAMPS].isneginf().all(-1)
    stamps_closed = out[..., STAMPS:].isneginf().all(-1)
    only_eos_and_stamps = out[..., :EOS].isneginf().all(-1) & ~text_closed
    some_stamps_closed = out[..., STAMPS:].isneginf().any(-1) & ~stamps_closed
    for branch in (text_closed, stamps_closed, only_eos_and_stamps, some_stamps_closed):
        assert 0.01 < branch.float().mean() < 0.9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), B=st.integers(1, 8), N=st.integers(1, 9))
def test_n_positions_at_once_equal_n_single_calls(seed: int, B: int, N: int) -> None:
    rules = _rules(_config())
    logits, prefix = _case(seed, B, N)
    together = _apply(rules, logits, prefix)
    single = [
        _apply(
            rules,
            logits[:, i : i + 1],
            Prefix(prefix.tokens, prefix.last[:, i : i + 1], prefix.begin),
        )
        for i in range(N)
    ]
    assert torch.equal(together, torch.cat(single, dim=1))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), N=st.integers(1, 9))
def test_no_rule_looks_past_its_own_prefix(seed: int, N: int) -> None:
    rules = _rules(_config())
    logits, prefix = _case(seed, B=4, N=N)
    other = torch.randint(0, V, (4, T), generator=torch.Generator().manual_seed(seed))
    unseen = torch.arange(T) > prefix.last[:, :1]
    poisoned = Prefix(torch.where(unseen, other, prefix.tokens), prefix.last, prefix.begin)
    first = _apply(rules, logits, prefix)[:, 0]
    assert torch.equal(first, _apply(rules, logits, poisoned)[:, 0])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), N=st.integers(1, 9))
def test_rules_change_no_input_and_make_no_nan(seed: int, N: int) -> None:
    rules = _rules(_config())
    logits, prefix = _case(seed, B=4, N=N, peak=50.0)
    before = [t.clone() for t in (logits, prefix.tokens, prefix.last, prefix.begin)]
    out = _apply(rules, logits, prefix)
    for now, then in zip((logits, prefix.tokens, prefix.last, prefix.begin), before, strict=True):
        assert torch.equal(now, then)
    assert not out.isnan().any()
    assert not out.isneginf().all(-1).any(), "every position keeps a token to choose"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    B=st.integers(1, 8),
    N=st.integers(1, 9),
    max_initial=st.sampled_from([5, 0, None]),
    steps=st.sampled_from([None, 1.0, 1.5]),
)
def test_the_choice_is_the_argmax_after_all_rules(
    seed: int, B: int, N: int, max_initial: int | None, steps: float | None
) -> None:
    """With `steps` the logits are multiples of a number, so that ties are frequent."""
    config = _config(max_initial)
    logits, prefix = _case(seed, B, N)
    if steps is not None:
        logits = (logits / steps).round() * steps
    processed = _apply(_rules(config), logits, prefix)
    choice = _chosen(config, logits, prefix)
    assert torch.equal(choice.tokens, processed.argmax(-1))
    expected = processed.log_softmax(-1).amax(-1)
    assert torch.allclose(choice.logprobs, expected, atol=1e-5)


def test_the_choice_decides_near_ties_of_the_joint_probability_as_the_rules_do() -> None:
    """Best text token and timestamps together within a few units in the last place, either way."""
    config, decided = _config(None), set()
    logits, prefix = _case(3, B=256, N=1)
    together = logits[..., STAMPS:].logsumexp(-1)
    for ulps in range(-4, 5):
        near = logits.clone()
        near[..., :STAMPS] -= 50
        near[..., 30] = together + ulps * 2**-22
        processed = _apply(_rules(config), near, prefix)
        choice = _chosen(config, near, prefix)
        assert torch.equal(choice.tokens, processed.argmax(-1))
        decided |= set((choice.tokens >= STAMPS).flatten().tolist())
    assert decided == {True, False}


@pytest.mark.parametrize("kept", ["begin_suppress_tokens", "suppress_tokens"])
def test_the_choice_without_a_timestamp_rule(kept: str) -> None:
    config = GenerationConfig(eos_token_id=EOS, **{kept: [1, 3, 60]})
    logits, prefix = _case(1, B=64, N=3)
    processed = _apply(_rules(config), logits, prefix)
    choice = _chosen(config, logits, prefix)
    assert torch.equal(choice.tokens, processed.argmax(-1))
    assert torch.allclose(choice.logprobs, processed.log_softmax(-1).amax(-1), atol=1e-5)


def test_rows_prompted_without_timestamps_get_only_the_suppress_rules() -> None:
    rules = _rules(_config())
    tokens = torch.tensor([[SOT, NO_TIMESTAMPS, 60, 60], [SOT, 42, 60, 60]])
    prefix = Prefix(tokens, torch.tensor([[3], [3]]), torch.tensor([2, 2]))
    out = _apply(rules, torch.zeros(2, 1, V), prefix)
    assert not out[0, 0, STAMPS:].isneginf().any()
    assert out[1, 0, STAMPS:].isneginf().all()


@pytest.mark.parametrize("N", [1, 6])
def test_rules_trace_into_one_graph_for_all_ragged_prefixes(N: int) -> None:
    rules = _rules(_config())
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def apply(logits: Tensor, tokens: Tensor, last: Tensor, begin: Tensor) -> Tensor:
        return _apply(rules, logits, Prefix(tokens, last, begin))

    torch._dynamo.reset()
    compiled = torch.compile(apply, fullgraph=True, dynamic=False, backend=count)
    for seed in range(4):
        logits, prefix = _case(seed, B=4, N=N)
        out = compiled(logits, prefix.tokens, prefix.last, prefix.begin)
        assert torch.equal(out, _apply(rules, logits, prefix))
    assert graphs == 1
