"""Trees of each row's own: what their nodes read, their verdicts, and who refuses them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forescribe.speculative import NgramDrafter
from forescribe.speculative.drafters.cascade import Cascade
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.models.lean import LeanCausalDecoder
from forescribe.speculative.models.modules import CausalDecoder
from forescribe.speculative.native.decoder import NativeCausalDecoder
from forescribe.speculative.rounds.accept import GreedyMatch
from forescribe.speculative.types import Distribution, Draft, Topology, Tree
from tests.speculative.models.causal_lms import causal_lm
from tests.speculative.rounds.test_accept import verdict_rows


def random_parents(rows: int, nodes: int) -> Tensor:
    generator = torch.Generator().manual_seed(nodes)
    most = torch.arange(nodes).expand(rows, -1)
    return (torch.rand(rows, nodes, generator=generator) * (most + 1)).long().clamp_max(most)


def test_a_tree_of_each_row_is_the_topology_of_its_parents():
    parents = random_parents(40, 9)
    tree = Tree.of(parents, 9)
    for b, row in enumerate(parents.tolist()):
        topology = Topology(tuple(row))
        assert tree.ancestry[b].tolist() == topology.ancestry()
        assert tree.depths[b].tolist() == list(topology.depths)
        assert tree.parents()[b].tolist() == [0, *row]
        for node in range(10):
            path = [node]
            while path[-1]:
                path.append(row[path[-1] - 1])
            found = tree.path(torch.full((40,), node))[b].tolist()
            assert found == [*reversed(path)] + [0] * (10 - len(path))


def test_rows_with_trees_of_their_own_get_the_verdicts_of_their_topologies():
    parents, nodes = random_parents(60, 7), 8
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(60, nodes, 3, generator=generator)
    right = logits.argmax(-1).gather(1, parents)
    wrong = torch.rand(60, nodes - 1, generator=generator) < 0.3
    tokens = torch.where(wrong, (right + 1) % 3, right)
    valid = torch.randint(0, nodes, (60,), generator=generator)
    rows = verdict_rows(logits, 0.0)
    whole = GreedyMatch()(rows, Draft(tokens, valid, topology=Tree.of(parents, 7)), logits)
    assert whole.num_accepted.max() >= 2
    for b in range(60):
        own = Draft(tokens, valid, topology=Topology(tuple(parents[b].tolist())))
        alone = GreedyMatch()(rows, own, logits)
        n = int(whole.num_accepted[b])
        assert int(alone.num_accepted[b]) == n
        assert torch.equal(alone.tokens[b, : n + 1], whole.tokens[b, : n + 1])
        assert torch.equal(alone.path[b], whole.path[b])


def paths(parents: Tensor, tokens: Tensor) -> list[list[list[int]]]:
    """The tokens from the root to every node of each row."""
    found = []
    for row, above in zip(tokens.tolist(), parents.tolist(), strict=True):
        texts = [[row[0]]]
        for node, parent in enumerate(above, start=1):
            texts.append([*texts[parent], row[node]])
        found.append(texts)
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2 with a window"])
@pytest.mark.parametrize("decoder", [LeanCausalDecoder, CausalDecoder])
@torch.inference_mode()
def test_nodes_read_their_own_ancestors(decoder, family):
    """Each row has a tree of its own, scored at once and in two parts."""
    made = causal_lm(family, dtype=torch.float64)
    prompt = torch.tensor([[3, 5, 7, 9], [4, 6, 8, 10], [1, 2, 3, 4]])
    fed = torch.randint(0, 50, (3, 6), generator=torch.Generator().manual_seed(1))
    parents = torch.tensor([[0, 0, 1, 2, 2], [0, 1, 2, 3, 4], [0, 0, 0, 0, 3]])
    whole, start = Tree.of(parents, 5), torch.full((3,), 4)
    model = decoder(made)
    for first in (6, 3):  # nodes of the first forward
        model.allocate(3, 24)
        model.prefill(torch.arange(3), prompt, [None] * 3)
        head = Tree(whole.depths[:, :first], whole.ancestry[:, :first, :first])
        logits = [model.score(fed[:, :first], start, reach=16, topology=head).logits]
        if first < 6:
            rest = Tree(whole.depths[:, first:], whole.ancestry[:, first:])
            scores = model.score(fed[:, first:], start + first, reach=16, topology=rest)
            logits.append(scores.logits)
        found = torch.cat(logits, 1)
        for row, texts in enumerate(paths(parents, fed)):
            for node, text in enumerate(texts):
                plain = made(torch.tensor([[*prompt[row].tolist(), *text]])).logits[0, -1]
                assert (found[row, node] - plain).abs().max() < 5e-5
    model.commit(start, whole.path(torch.tensor([4, 5, 5])))
    texts = [t[n] for t, n in zip(paths(parents, fed), (4, 5, 5), strict=True)]
    lengths = torch.tensor([len(t) for t in texts])
    after = model.score(torch.tensor([[11], [12], [13]]), start + lengths, reach=16).logits
    for row, text in enumerate(texts):
        plain = made(torch.tensor([[*prompt[row].tolist(), *text, 11 + row]])).logits[0, -1]
        assert (after[row, 0] - plain).abs().max() < 5e-5


class OfTrees(NgramDrafter):
    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.TREE


def test_drafters_that_join_chains_refuse_trees():
    with pytest.raises(ValueError, match="a drafter of trees drafts alone"):
        Cascade({"text": NgramDrafter()}, OfTrees(), adaptive=False)
    with pytest.raises(ValueError, match="drafters of trees cannot share a batch"):
        RoutingDrafter([OfTrees(), OfTrees()], lambda request: 0, skips=False)


@pytest.mark.native
def test_native_kernels_refuse_them():
    model = NativeCausalDecoder(causal_lm("llama", dtype=torch.float32))
    model.allocate(1, 16)
    tree = Tree.of(torch.zeros(1, 1, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="native kernels read one tree for all rows"):
        model.score(torch.tensor([[1, 2]]), torch.tensor([3]), reach=8, topology=tree)
