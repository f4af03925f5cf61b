"""Records of one round: what was drafted, how the target scored it, and what was accepted.

Shapes, in all of `speculative/`:

    B  rows (slots of the batch)          G  gamma, drafted tokens per round
    N  scored nodes per row, G + 1        T  token slots per row, the last one a scratch slot
    V  vocabulary                         D  model width
    K  rows admitted together             P  padded prompt length of an admission
    H  tapped layers of the target

Knows tensors; nothing of requests, slots or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Distribution(Enum):
    """The distribution that drafts are drawn from; a rule lists those that it can verify exactly."""

    ONE_HOT = "one-hot"  # all mass on the proposed token: n-gram, retrieval, greedy drafts
    DENSE = "dense"  # `Draft.probs` holds the distribution of every drafted position
    TREE = "tree"  # nodes of a tree, each of them one-hot or with `Draft.probs`


@dataclass(frozen=True)
class Topology:
    """A static tree over the scored nodes: `parents[i]` is the node before drafted node i + 1.

    Node 0 is the pending token. Parents come before children, so the tree is topologically sorted.
    The chain of G drafts is `parents == (0, 1, ..., G - 1)`, written as `None` wherever a topology is
    optional. Raises `ValueError` for a parent that comes after its child.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for child, parent in enumerate(self.parents, start=1):
            if not 0 <= parent < child:
                raise ValueError(f"node {child} has parent {parent}; parents come before children")

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; the root has 0."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    def ancestry(self) -> list[list[bool]]:
        """`[N][N]`: entry (i, j) is True where node j is node i or one of its ancestors."""
        size = len(self.parents) + 1
        seen = [[i == j for j in range(size)] for i in range(size)]
        for child, parent in enumerate(self.parents, start=1):
            seen[child] = [a or b for a, b in zip(seen[child], seen[parent], strict=True)]
        return seen

    def tree(self, batch: int, device: torch.device) -> Tree:
        """The same tree in each of `batch` rows."""
        # Filled on the device: a captured round copies nothing from the host.
        parents = torch.zeros((batch, len(self.parents)), dtype=torch.int64, device=device)
        for column, parent in zip(parents.unbind(1), self.parents, strict=True):
            column.fill_(parent)
        return Tree.of(parents, max(self.depths))


@dataclass(frozen=True)
class Tree:
    """A tree over the nodes of a forward, of each row its own; `Topology` is one that all rows share.

    Nodes are as in `Topology`: node 0 is the root, and parents come before children. Where a tree grows, a
    forward is of its last N nodes, and earlier forwards have written the first M - N.
    """

    depths: Tensor  # [B, N] int64, of the root 0
    ancestry: Tensor  # [B, N, M] bool: node j is the forward's node i, or one of its ancestors

    @staticmethod
    def of(parents: Tensor, depth: int) -> Tree:
        """The tree of `parents [B, G]`, as `Topology.parents`, of at most this depth."""
        root = parents.new_zeros((len(parents), 1))  # its own parent
        parents = torch.cat([root, parents], 1)
        batch, nodes = parents.shape
        ancestry = torch.eye(nodes, dtype=torch.bool, device=parents.device)
        ancestry = ancestry.expand(batch, -1, -1)
        up = parents[..., None].expand_as(ancestry)
        for _ in range(depth):
            ancestry = ancestry | ancestry.gather(1, up)
        return Tree(ancestry.sum(-1) - 1, ancestry)

    def parents(self) -> Tensor:
        """The node `[B, N]` before each node of a whole tree; the root is its own."""
        before = self.depths[:, None] == (self.depths[..., None] - 1).clamp_min(0)
        return (self.ancestry & before).long().argmax(-1)

    def path(self, node: Tensor) -> Tensor:
        """The nodes `[B, N]` from the root to `node [B]`, by depth; behind it the root again."""
        column = torch.arange(self.depths.shape[1], device=node.device)
        on_path = self.ancestry.gather(1, node[:, None, None].expand(-1, 1, len(column)))[:, 0]
        # Of nodes beside the path the root is written to the column of depth 0, where it belongs.
        depth, here = torch.where(on_path, self.depths, 0), torch.where(on_path, column, 0)
        return torch.zeros_like(self.depths).scatter_add(1, depth, here)


@dataclass(frozen=True)
class Draft:
    """The tokens that a drafter proposes for every row."""

    tokens: Tensor  # [B, G] int64
    valid: Tensor  # [B] int64: how many leading drafts (of a tree: nodes) of the row count, 0..G
    # [B, G, V] float32, the distribution that the tokens were drawn from; None: one-hot. In a tree a node's
    # may depend on the siblings before it, as where they are drawn without replacement
    probs: Tensor | None = None
    topology: Topology | Tree | None = None  # None: a chain

    def tree(self) -> Tree:
        """The tree of each row; raises `ValueError` for a chain."""
        if self.topology is None:
            raise ValueError("the draft is a chain")
        if isinstance(self.topology, Tree):
            return self.topology
        return self.topology.tree(len(self.tokens), self.tokens.device)

    def depth(self) -> Tensor:
        """The depth `[B]` that the counting drafts reach, the most that can be kept: `valid` of a chain."""
        if self.topology is None:
            return self.valid
        depths = self.tree().depths
        column = torch.arange(depths.shape[1], device=depths.device)
        return torch.where(column <= self.valid[:, None], depths, 0).amax(1)


@dataclass(frozen=True)
class Scores:
    """One target forward over the pending token and the drafts."""

    logits: Tensor  # [B, N, V] float32, unprocessed
    # [B, N, H, D] hidden states that enter the H tapped layers; see `Needs`
    taps: Tensor | None = None


@dataclass(frozen=True)
class Prefilled:
    """One target forward over prompts."""

    # [K, P, V] float32, [K, M, V] of M chosen positions, or [K, 0, V] where left out
    logits: Tensor
    taps: Tensor | None = None  # [K, P, H, D], as in `Scores`


@dataclass(frozen=True)
class Verdict:
    """The result of accepting a draft. `tokens[b, :num_accepted[b] + 1]` are emitted, in order."""

    tokens: Tensor  # [B, N] accepted drafts, then one token of the target; undefined after that
    num_accepted: Tensor  # [B] 0..G
    path: Tensor | None = None  # [B, N] node of every emitted token's predecessor; None: a chain


@dataclass(frozen=True)
class Prefix:
    """For each scored position, the tokens before it: the input of logits processors."""

    tokens: Tensor  # [B, T] prompt, committed tokens, and this round's drafts already written in
    last: Tensor  # [B, N] slot of the last token before each prediction
    begin: Tensor  # [B] slot of the first generated token, which is the prompt length

    def chain(self) -> Chain:
        """The same positions; those of one row follow each other."""
        return Chain(self.tokens, self.tokens.gather(1, self.last), self.last, self.begin)


@dataclass(frozen=True)
class Chain:
    """The same for N positions that follow each other, without a copy of the text with the drafts."""

    text: Tensor  # [B, T] prompt and committed tokens; undefined from slot `last[:, 0] + 1` on
    fed: Tensor  # [B, N] the last token before each prediction: the pending one, then the drafts
    last: Tensor  # [B, N] its slot, one more from position to position
    begin: Tensor  # [B] slot of the first generated token, which is the prompt length

    def prefix(self) -> Prefix:
        """The same positions, with the drafts written into a copy of the text."""
        return Prefix(self.text.scatter(1, self.last, self.fed), self.last, self.begin)
