"""Acceptance rules by exact enumeration: noise is integrated over a grid, never sampled.

All probabilities are multiples of 1/8, so every decision is constant on cells of the grid: acceptance
ratios on `ACCEPT` cells, draws from a residual (whose mass is k/8) on `EXTRA = lcm(1..8)` cells.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from speculative.accept import GreedyMatch, TokenRejection, draw, policy
from speculative.types import Draft, Rows, Topology

V, ACCEPT, EXTRA = 3, 8, 840
DRAFT_LAWS = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]


def laws(
    seed: int, gamma: int, choices: list[list[float]] | None
) -> dict[tuple[int, ...], list[float]]:
    """One next-token law per prefix of up to `gamma` tokens; eighths, or from `choices`."""
    generator = torch.Generator().manual_seed(seed)
    table = {}
    for length in range(gamma + 1):
        for prefix in itertools.product(range(V), repeat=length):
            if choices is None:
                eighths = torch.randint(0, V, (8,), generator=generator).bincount(minlength=V)
                table[prefix] = (eighths / 8).tolist()
            else:
                pick = int(torch.randint(len(choices), (1,), generator=generator))
                table[prefix] = choices[pick]
    return table


def joint(p: dict, gamma: int) -> dict[tuple[int, ...], float]:
    """The target's own law of the next gamma + 1 tokens."""
    return {
        text: float(torch.tensor([p[text[:i]][text[i]] for i in range(gamma + 1)]).prod())
        for text in itertools.product(range(V), repeat=gamma + 1)
    }


def speculative_joint(p: dict, q: dict | None, gamma: int) -> dict[tuple[int, ...], float]:
    """The law of the next gamma + 1 tokens when the first come from a verdict, the rest from p.

    With `q=None` the draft is one fixed chain without probabilities.
    """
    law = dict.fromkeys(itertools.product(range(V), repeat=gamma + 1), 0.0)
    u = (torch.arange(ACCEPT, dtype=torch.float64) + 0.5) / ACCEPT
    e = (torch.arange(EXTRA, dtype=torch.float64) + 0.5) / EXTRA
    accept_u = torch.cartesian_prod(*[u] * gamma).reshape(-1, gamma)
    rows = len(accept_u) * EXTRA
    accept_u = accept_u.repeat_interleave(EXTRA, 0)
    extra_u = e.repeat(len(accept_u) // EXTRA)[:, None].expand(-1, gamma + 1)
    chains = itertools.product(range(V), repeat=gamma) if q is not None else [(1, 0, 2)[:gamma]]
    for chain in chains:
        weight = 1.0
        if q is not None:
            for i, token in enumerate(chain):
                weight *= q[chain[:i]][token]
        if weight == 0:
            continue
        target = torch.tensor([p[chain[:i]] for i in range(gamma + 1)], dtype=torch.float64)
        probs = None
        if q is not None:
            probs = torch.tensor([q[chain[:i]] for i in range(gamma)], dtype=torch.float64)
            probs = probs.expand(rows, -1, -1)
        draft = Draft(
            torch.tensor(chain).reshape(1, gamma).expand(rows, -1),
            torch.full((rows,), gamma),
            probs,
        )
        verdict = TokenRejection.judge(draft, target.expand(rows, -1, -1), accept_u, extra_u)
        for n in range(gamma + 1):
            emitted = verdict.tokens[verdict.num_accepted == n][:, : n + 1]
            for head, count in zip(*emitted.unique(dim=0, return_counts=True), strict=True):
                start = tuple(head.tolist())
                for rest in itertools.product(range(V), repeat=gamma - n):
                    text = start + rest
                    tail = 1.0
                    for i in range(n + 1, gamma + 1):
                        tail *= p[text[:i]][text[i]]
                    law[text] += weight * int(count) / rows * tail
    return law


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dense", [True, False], ids=["dense draft", "one-hot draft"])
def test_token_rejection_emits_the_targets_law(gamma, seed, dense):
    p = laws(seed, gamma, None)
    q = laws(seed + 100, gamma, DRAFT_LAWS) if dense else None
    expected, actual = joint(p, gamma), speculative_joint(p, q, gamma)
    for text, probability in expected.items():
        assert actual[text] == pytest.approx(probability, abs=1e-12)


def verdict_rows(logits: torch.Tensor, temperature: float) -> Rows:
    rows = Rows.empty(len(logits), 16, torch.device("cpu"))
    rows.temperature.fill_(temperature)
    rows.seed.copy_(torch.arange(len(logits)))
    return rows


def test_greedy_match_is_token_rejection_at_temperature_zero():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5, 7, generator=generator)
    tokens = logits[:, :4].argmax(-1)
    wrong = torch.rand(400, 4, generator=generator) < 0.3
    tokens = torch.where(wrong, torch.randint(7, (400, 4), generator=generator), tokens)
    draft = Draft(tokens, torch.randint(0, 5, (400,), generator=generator))
    rows = verdict_rows(logits, 0.0)
    greedy, general = GreedyMatch()(rows, draft, logits), TokenRejection()(rows, draft, logits)
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
