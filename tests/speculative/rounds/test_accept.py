"""Acceptance rules: one round by exact enumeration, and the parts of a rule."""

from __future__ import annotations

import itertools

import pytest
import torch

from forescribe.speculative.drafts import Draft, Topology
from forescribe.speculative.rounds.accept import (
    BlockVerification,
    GreedyMatch,
    TokenRejection,
    draw,
    policy,
)
from forescribe.speculative.rows import Rows
from tests.speculative.rounds.enumeration import (
    DRAFT_DISTRIBUTIONS,
    V,
    distributions,
    joint,
    speculative_joint,
)


@pytest.mark.parametrize("valid", [None, 1])
@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dense", [True, False], ids=["dense draft", "one-hot draft"])
@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_sampling_rules_emit_the_targets_law(rule, gamma, seed, dense, valid):
    p = distributions(seed, gamma, None)
    q = distributions(seed + 100, gamma, DRAFT_DISTRIBUTIONS) if dense else None
    expected, (actual, _) = joint(p, gamma), speculative_joint(rule, p, q, gamma, valid)
    for text, probability in expected.items():
        assert actual[text] == pytest.approx(probability, abs=1e-12)


def test_block_verification_keeps_more_than_token_rejection():
    """The paper's example (2403.10444, section 2): 10 against 11 ninths of two drafts, of two tokens."""
    p = {prefix: [1 / 3, 2 / 3, 0.0] for prefix in [(), (0,), (1,), (2,)]}
    p |= {prefix: [1 / 3, 2 / 3, 0.0] for prefix in itertools.product(range(V), repeat=2)}
    q = {prefix: [2 / 3, 1 / 3, 0.0] for prefix in p}
    assert speculative_joint(TokenRejection, p, q, 2)[1] == pytest.approx(10 / 9, abs=1e-12)
    assert speculative_joint(BlockVerification, p, q, 2)[1] == pytest.approx(11 / 9, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_block_verification_never_keeps_fewer(seed):
    p, q = distributions(seed, 3, None), distributions(seed + 100, 3, DRAFT_DISTRIBUTIONS)
    block = speculative_joint(BlockVerification, p, q, 3)[1]
    assert block >= speculative_joint(TokenRejection, p, q, 3)[1] - 1e-12


def verdict_rows(logits: torch.Tensor, temperature: float) -> Rows:
    rows = Rows.empty(len(logits), 16, torch.device("cpu"))
    rows.sampling.temperature.fill_(temperature)
    rows.sampling.seed.copy_(torch.arange(len(logits)))
    return rows


@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_greedy_match_is_a_sampling_rule_at_temperature_zero(rule):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, 7, generator=generator)
    tokens = logits[:, :4].argmax(-1)
    wrong = torch.rand(400, 4, generator=generator) < 0.3
    tokens = torch.where(wrong, torch.randint(7, (400, 4), generator=generator), tokens)
    draft = Draft(tokens, torch.randint(0, 5, (400,), generator=generator))
    rows = verdict_rows(logits, 0.0)
    greedy, general = GreedyMatch()(rows, draft, logits), rule()(rows, draft, logits)
    assert greedy.num_accepted.bincount(minlength=5).min() > 0  # every outcome occurs
    assert torch.equal(greedy.num_accepted, general.num_accepted)
    for a, b, n in zip(greedy.tokens, general.tokens, greedy.num_accepted, strict=True):
        assert torch.equal(a[: n + 1], b[: n + 1])


def test_drafts_behind_valid_are_neither_accepted_nor_subtracted():
    p = torch.tensor([[[0.5, 0.5, 0.0]] * 3], dtype=torch.float64)
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([0]), p[:, :2])
    for u, token in [(0.9, 0), (0.1, 1)]:
        noise = torch.full((1, 3), u)
        verdict = TokenRejection.judge(draft, p, torch.zeros(1, 2), noise)
        assert verdict.num_accepted.tolist() == [0]
        assert verdict.tokens[0, 0] == token  # drawn from p itself


def test_a_draw_never_takes_a_token_of_zero_weight_and_follows_the_weights():
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0], dtype=torch.float64)
    u = torch.cat([torch.tensor([0.0, 1 - 2**-24]), (torch.arange(800) + 0.5) / 800]).double()
    drawn = draw(weights.expand(len(u), -1), u)
    assert set(drawn.tolist()) == {1, 3}
    assert (drawn[2:] == 1).double().mean() == pytest.approx(0.25)


def test_policy_is_one_hot_at_zero_and_softmax_above():
    logits = torch.tensor([[[1.0, 3.0, 2.0]], [[1.0, 3.0, 2.0]]])
    probabilities = policy(logits, torch.tensor([0.0, 0.5]))
    assert probabilities[0, 0].tolist() == [0.0, 1.0, 0.0]
    assert torch.allclose(probabilities[1, 0], (logits[1, 0] / 0.5).softmax(-1))


def brute_force_walk(tokens, choice, topology: Topology, valid: int) -> list[int]:
    """Longest chain of nodes each of which is its parent's choice; first found wins."""
    best = [0]
    chains = {0: [0]}
    for node, parent in enumerate(topology.parents, start=1):
        if parent in chains and node <= valid and tokens[node - 1] == choice[parent]:
            chains[node] = [*chains[parent], node]
            if len(chains[node]) > len(best):
                best = chains[node]
    return best


@pytest.mark.parametrize("parents", [(0, 0, 1, 1, 2), (0, 1, 2, 3), (0, 0, 0, 3, 3, 5)])
def test_greedy_match_walks_to_the_deepest_accepted_node_of_a_tree(parents):
    topology, nodes = Topology(parents), len(parents) + 1
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(300, nodes, 3, generator=generator)
    right = logits.argmax(-1)[:, list(parents)]  # what each node's parent asks for
    wrong = torch.rand(300, nodes - 1, generator=generator) < 0.3
    tokens = torch.where(wrong, (right + 1) % 3, right)
    draft = Draft(tokens, torch.randint(0, nodes, (300,), generator=generator), topology=topology)
    verdict = GreedyMatch()(verdict_rows(logits, 0.0), draft, logits)
    assert verdict.path is not None
    assert verdict.num_accepted.max() == max(topology.depths)
    for b in range(300):
        choice = logits[b].argmax(-1)
        walk = brute_force_walk(tokens[b], choice, topology, int(draft.valid[b]))
        assert verdict.num_accepted[b] == len(walk) - 1
        assert verdict.path[b, : len(walk)].tolist() == walk
        assert verdict.tokens[b, : len(walk)].tolist() == choice[walk].tolist()
