"""Acceptance rules by exact enumeration: noise is integrated out, never sampled.

A verdict is a step function of its noise. The steps are found by bisection on the rule itself, so the
probability of every outcome is exact whatever the rule's formula, and nothing of it is repeated here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from speculative.accept import BlockVerification, GreedyMatch, TokenRejection, draw, policy
from speculative.types import Draft, Rows, Topology, Verdict

V = 3
TOP = 1 - 2**-53  # the largest number that noise can be
DRAFT_LAWS = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]

Table = dict[tuple[int, ...], list[float]]
Judge = Callable[[Tensor, Tensor], Verdict]  # accept_u [M, G], extra_u [M, N]


def laws(seed: int, gamma: int, choices: list[list[float]] | None) -> Table:
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


def joint(p: Table, gamma: int) -> dict[tuple[int, ...], float]:
    """The target's own law of the next gamma + 1 tokens."""
    return {
        text: float(torch.tensor([p[text[:i]][text[i]] for i in range(gamma + 1)]).prod())
        for text in itertools.product(range(V), repeat=gamma + 1)
    }


def last_true(holds: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """For each of `count` predicates over noise, true from 0 on: where it ends. 1 if it never does."""
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    for _ in range(54):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    return high


def cells(judge: Judge, gamma: int) -> list[tuple[Tensor, float]]:
    """Noise `[G]` of one point in each cell on which the number of kept drafts is constant, and the
    cell's size. The borders of a coordinate are sought with the others at both ends."""
    borders = []
    for i in range(gamma):
        corners = torch.tensor(list(itertools.product([0.0, TOP], repeat=gamma)))
        noise = corners[corners[:, i] == 0].double()
        extra = torch.zeros(len(noise), gamma + 1, dtype=torch.float64)
        kept = judge(noise, extra).num_accepted

        def unchanged(u: Tensor, i=i, noise=noise, extra=extra, kept=kept) -> Tensor:
            moved = noise.clone()
            moved[:, i] = u
            return judge(moved, extra).num_accepted == kept

        found = sorted({0.0, *last_true(unchanged, len(noise)).tolist(), 1.0})
        borders.append([pair for pair in itertools.pairwise(found) if pair[1] - pair[0] > 1e-12])
    result = []
    for sides in itertools.product(*borders):
        size = float(torch.tensor([b - a for a, b in sides], dtype=torch.float64).prod())
        result.append((torch.tensor([(a + b) / 2 for a, b in sides]).double(), size))
    return result


def extras(judge: Judge, accept_u: Tensor, gamma: int) -> tuple[int, list[float]]:
    """Drafts kept at this noise, and the law of the token behind them."""

    def token(u: Tensor) -> Tensor:
        count = len(u)
        verdict = judge(accept_u.expand(count, -1), u[:, None].expand(-1, gamma + 1))
        return verdict.tokens.gather(1, verdict.num_accepted[:, None])[:, 0]

    at_least = torch.arange(1, V)
    ends = [1.0, *last_true(lambda u: token(u) >= at_least, V - 1).tolist(), 0.0]
    # Where no noise gives a token so large, the predicate is false at 0 already.
    kept = judge(accept_u[None], torch.zeros(1, gamma + 1, dtype=torch.float64)).num_accepted
    return int(kept), [a - b for a, b in itertools.pairwise(ends)]


def speculative_joint(
    rule: type, p: Table, q: Table | None, gamma: int, valid: int | None = None
) -> tuple[dict[tuple[int, ...], float], float]:
    """The law of the next gamma + 1 tokens when the first come from a verdict, the rest from p, and how
    many drafts are kept on average.

    With `q=None` the draft is one fixed chain without probabilities; only `valid` drafts count.
    """
    law = dict.fromkeys(itertools.product(range(V), repeat=gamma + 1), 0.0)
    mean = 0.0
    chains = itertools.product(range(V), repeat=gamma) if q is not None else [(1, 0, 2)[:gamma]]
    for chain in chains:
        weight = 1.0
        for i, token in enumerate(chain if q is not None else ()):
            weight *= q[chain[:i]][token]
        if weight == 0:
            continue
        target = torch.tensor([p[chain[:i]] for i in range(gamma + 1)], dtype=torch.float64)
        probs = None
        if q is not None:
            probs = torch.tensor([q[chain[:i]] for i in range(gamma)], dtype=torch.float64)

        def judge(accept_u, extra_u, chain=chain, target=target, probs=probs) -> Verdict:
            rows = len(accept_u)
            draft = Draft(
                torch.tensor(chain).reshape(1, gamma).expand(rows, -1),
                torch.full((rows,), gamma if valid is None else valid),
                None if probs is None else probs.expand(rows, -1, -1),
            )
            return rule.judge(draft, target.expand(rows, -1, -1), accept_u, extra_u)

        for noise, size in cells(judge, gamma):
            kept, extra = extras(judge, noise, gamma)
            mean += weight * size * kept
            for token, rest in itertools.product(
                range(V), itertools.product(range(V), repeat=gamma - kept)
            ):
                text = (*chain[:kept], token, *rest)
                tail = 1.0
                for i in range(kept + 1, gamma + 1):
                    tail *= p[text[:i]][text[i]]
                law[text] += weight * size * extra[token] * tail
    return law, mean


@pytest.mark.parametrize("valid", [None, 1])
@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dense", [True, False], ids=["dense draft", "one-hot draft"])
@pytest.mark.parametrize("rule", [TokenRejection, BlockVerification])
def test_sampling_rules_emit_the_targets_law(rule, gamma, seed, dense, valid):
    p = laws(seed, gamma, None)
    q = laws(seed + 100, gamma, DRAFT_LAWS) if dense else None
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
    p, q = laws(seed, 3, None), laws(seed + 100, 3, DRAFT_LAWS)
    block = speculative_joint(BlockVerification, p, q, 3)[1]
    assert block >= speculative_joint(TokenRejection, p, q, 3)[1] - 1e-12


def verdict_rows(logits: torch.Tensor, temperature: float) -> Rows:
    rows = Rows.empty(len(logits), 16, torch.device("cpu"))
    rows.temperature.fill_(temperature)
    rows.seed.copy_(torch.arange(len(logits)))
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
