"""The rule for sampled trees by exact enumeration, random numbers integrated out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from forescribe.speculative.rounds.accept import TokenRejection
from forescribe.speculative.types import Draft, Topology, Tree, Verdict
from tests.speculative.models.test_trees import random_parents
from tests.speculative.rounds.enumeration import (
    DRAFT_DISTRIBUTIONS,
    Joint,
    Table,
    Text,
    V,
    boxes,
    distributions,
    joint,
)
from tests.speculative.rounds.test_accept import verdict_rows
from training.trees.tree_rejection import TreeRejection

BINARY = Topology((0, 0, 1, 1, 2, 2))  # complete, of depth 2
LOPSIDED = Topology((0, 0, 0, 1, 1))


def test_rows_with_trees_of_their_own_get_the_verdicts_of_their_topologies():
    parents, nodes = random_parents(60, 7), 8
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(60, nodes, 3, generator=generator)
    right = logits.argmax(-1).gather(1, parents)
    wrong = torch.rand(60, nodes - 1, generator=generator) < 0.3
    tokens = torch.where(wrong, (right + 1) % 3, right)
    valid = torch.randint(0, nodes, (60,), generator=generator)
    for rule, temperature in ((TreeRejection(), 0.0), (TreeRejection(), 0.9)):
        rows = verdict_rows(logits, temperature)
        whole = rule(rows, Draft(tokens, valid, topology=Tree.of(parents, 7)), logits)
        assert whole.num_accepted.max() >= 2
        for b in range(60):
            own = Draft(tokens, valid, topology=Topology(tuple(parents[b].tolist())))
            alone = rule(rows, own, logits)
            n = int(whole.num_accepted[b])
            assert int(alone.num_accepted[b]) == n
            assert torch.equal(alone.tokens[b, : n + 1], whole.tokens[b, : n + 1])
            assert torch.equal(alone.path[b], whole.path[b])


def test_a_tree_that_is_a_chain_gets_the_verdicts_of_token_rejection():
    generator = torch.Generator().manual_seed(5)
    p = torch.rand(200, 4, 5, generator=generator).softmax(-1)
    q = torch.rand(200, 3, 5, generator=generator).softmax(-1)
    tokens = torch.randint(0, 5, (200, 3), generator=generator)
    noise = torch.rand(200, 3, generator=generator), torch.rand(200, 4, generator=generator)
    for probs in (q, None):
        valid = torch.randint(0, 4, (200,), generator=generator)
        chain = Draft(tokens, valid, probs)
        tree = Draft(tokens, valid, probs, Topology((0, 1, 2)))
        a, b = TokenRejection.judge(chain, p, *noise), TreeRejection.judge(tree, p, *noise)
        assert torch.equal(a.num_accepted, b.num_accepted)
        kept = torch.arange(4) <= a.num_accepted[:, None]
        assert torch.equal(a.tokens[kept], b.tokens[kept])


def drafts(topology: Topology, q: Table, how: str) -> list[tuple[Text, float, list[list[float]]]]:
    """Every drawn tree: the tokens of its nodes, its chance, and what each node was drawn from."""
    found: list[tuple[Text, float, list[list[float]]]] = [((), 1.0, [])]
    for node, parent in enumerate(topology.parents, start=1):
        grown = []
        for tokens, chance, laws in found:
            law = q[behind(topology, tokens, parent)]
            before = [
                tokens[s - 1] for s in range(1, node) if topology.parents[s - 1] == parent
            ] if how == "without replacement" else []  # fmt: skip
            rest = [0.0 if x in before else w for x, w in enumerate(law)]
            law = [w / sum(rest) for w in rest] if sum(rest) else laws[-1]
            grown += [((*tokens, x), chance * w, [*laws, law]) for x, w in enumerate(law) if w]
        found = grown
    return found


def behind(topology: Topology, tokens: Text, node: int) -> Text:
    """The text from the root to a node."""
    text: Text = ()
    while node:
        text = (tokens[node - 1], *text)
        node = topology.parents[node - 1]
    return text


def tree_joint(
    topology: Topology, p: Table, trees: list[tuple[Text, float, list[list[float]]]], *, dense: bool
) -> tuple[Joint, float]:
    """The distribution of the next D + 1 tokens when the first come from a verdict on a tree, the rest from
    p; and how many drafts are kept on average."""
    depth, nodes = max(topology.depths), len(topology.depths)
    laws = torch.tensor(
        [[p[behind(topology, t, n)] for n in range(nodes)] for t, _, _ in trees]
    ).double()
    tokens = torch.tensor([t for t, _, _ in trees])
    probs = torch.tensor([q for _, _, q in trees]).double() if dense else None

    def judge(context: Tensor, accept_u: Tensor, extra_u: Tensor) -> Verdict:
        counted = torch.full_like(context, nodes - 1)
        own = None if probs is None else probs[context]
        draft = Draft(tokens[context], counted, own, topology)
        verdict = TreeRejection.judge(draft, laws[context], accept_u, extra_u)
        n = verdict.num_accepted[:, None]
        # To `boxes` a verdict is the node that was reached, and the token behind it.
        reached, extra = verdict.path.gather(1, n)[:, 0], verdict.tokens.gather(1, n)
        return Verdict(extra.expand(-1, nodes), reached)

    found: Joint = dict.fromkeys(itertools.product(range(V), repeat=depth + 1), 0.0)
    mean = 0.0
    for (drafted, weight, _), own in zip(
        trees, boxes(judge, len(trees), nodes - 1, V), strict=True
    ):
        for box in own:
            path = behind(topology, drafted, box.kept)
            mean += weight * box.volume * len(path)
            for token, (low, high) in enumerate(box.extra):
                for rest in itertools.product(range(V), repeat=depth - len(path)):
                    text = (*path, token, *rest)
                    tail = math.prod(p[text[:i]][text[i]] for i in range(len(path) + 1, depth + 1))
                    found[text] += weight * box.volume * (high - low) * tail
    return found, mean


@pytest.mark.parametrize("how", ["one-hot", "independent", "without replacement"])
@pytest.mark.parametrize("topology", [BINARY, LOPSIDED], ids=["binary", "lopsided"])
@pytest.mark.parametrize("seed", range(3))
def test_tree_rejection_emits_the_targets_distribution(seed, topology, how):
    p = distributions(seed, 2, None)
    q = distributions(seed + 100, 2, DRAFT_DISTRIBUTIONS)
    trees = drafts(topology, q, how)
    if how == "one-hot":
        trees = [(trees[seed][0], 1.0, [])]  # some tree, whatever it was drawn from
    found, _ = tree_joint(topology, p, trees, dense=how != "one-hot")
    for text, probability in joint(p, 2).items():
        assert found[text] == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_siblings_that_differ_are_kept_more_often(seed):
    p, q = distributions(seed, 2, None), distributions(seed + 100, 2, DRAFT_DISTRIBUTIONS)
    independent, without = (
        tree_joint(BINARY, p, drafts(BINARY, q, how), dense=True)[1]
        for how in ("independent", "without replacement")
    )
    assert without >= independent - 1e-12
