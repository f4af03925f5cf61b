"""Trees of drafts that a smaller model grows: several guesses for each position, scored together.

A forward of the draft model is of all nodes of one depth that are expanded, which read the row's text and
their own ancestors. The target scores the finished tree in one forward, and its rule keeps one path.

    Growth    the tree is the row's own: the likeliest nodes by the draft model's own probability of the whole
              path (EAGLE-2, Li et al. 2024, 2406.16858, section 4). Always one-hot nodes: which of the drawn
              ones are kept would otherwise depend on the draws
    Topology  all rows have one tree. In sampled rounds siblings are drawn without replacement (Jeon et al.
              2024, 2402.14160) and carry their probabilities

The draft model's keys and values of a node lie where its forward wrote them; after the verdict those of the
accepted path move behind the text, as the target's do. Knows the draft model and rows; nothing of targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.models.slot_model import score_at, tree_gap
from forescribe.speculative.protocols import Model, Needs
from forescribe.speculative.requests import Request
from forescribe.speculative.rounds.accept import Stream, distribution, draw, one_hot, uniform
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Distribution, Draft, Scores, Topology, Tree, Verdict

ALIGNMENT = 8
"""The strip is a multiple of it, as the reaches of captured rounds are (`graphs.shapes`)."""


@dataclass(frozen=True)
class Growth:
    """How a tree grows: `depth` forwards, each but the first of `width` nodes with `width` children each.

    With `copied` above 0 a path of so many tokens, which followed the last ones when they occurred before,
    takes the place of model nodes that are less likely than it: `trust` is the chance that each copied token
    is given. This is Graft (2605.20104) on static shapes: a doubtful tree is pruned, and the nodes are filled
    from the text, but its forwards are run. Raises `ValueError` for impossible numbers."""

    width: int = 4
    depth: int = 4
    copied: int = 0
    trust: float = 0.5

    def __post_init__(self) -> None:
        if min(self.width, self.depth) < 1:
            raise ValueError(f"a tree of width {self.width} and depth {self.depth}")
        if self.copied < 0 or not 0 < self.trust < 1:
            raise ValueError(f"{self.copied} copied tokens, each with a chance of {self.trust}")


class TreeDrafter:
    """Drafts trees with any `Model` of the target's vocabulary; gamma is the most nodes that a tree has, of a
    `Topology` its first ones.

    A request's own gamma is a depth. The draft model's logits are not shaped by processors and penalties,
    which costs acceptance only. Raises `ValueError` for a model that cannot score trees.
    """

    def __init__(self, model: Model, shape: Growth | Topology) -> None:
        self.model, self.shape = model, shape
        _check(model, "draft model")
        if isinstance(shape, Topology):
            strip, self._depth = len(set(shape.parents)), max(shape.depths)
        else:
            strip, self._depth = (shape.depth - 1) * shape.width, max(shape.depth, shape.copied)
        self._copied = 0 if isinstance(shape, Topology) else shape.copied
        self._lookup = NgramDrafter(hint_slots=1) if self._copied else None
        # Slots behind the text, in which the draft model keeps the nodes that it has read.
        self._strip = -(-strip // ALIGNMENT) * ALIGNMENT
        self._place: Tensor | None = None  # [B, N] in the strip, of this round's nodes

    @property
    def needs(self) -> Needs:
        return Needs(vocab=self.model.vocab_size)

    def bind(self, target: Model) -> None:
        if isinstance(self.shape, Growth):  # every model scores a tree that all rows share
            _check(target, "target")

    def distribution(self, *, sampling: bool) -> Distribution:
        return Distribution.TREE

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        self.model.allocate(batch, slots + self._strip)
        if self._lookup is not None:
            self._lookup.allocate(batch, slots, device)

    def forwards(self, gamma: int) -> int:
        if isinstance(self.shape, Topology):
            return max(Topology(self.shape.parents[:gamma]).depths)
        return min(gamma, self.shape.depth)

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        self.model.prefill(rows, tokens, [r.encoder_states for r in requests])
        if self._lookup is not None:
            self._lookup.admit(rows, tokens, requests, None)

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        # What was copied in the round before has not been read either.
        count, start = count + self._copied, (start - self._copied).clamp_min(0)
        slots = start[:, None] + torch.arange(count, device=start.device)
        last = torch.full_like(start, count - 1)  # its logits are not read
        fed = rows.tokens.gather(1, slots.clamp_max(rows.scratch))
        score_at(self.model, fed, start, last, rows.reach)

    def propose(self, rows: Rows, gamma: int) -> Draft:
        # The text's last two tokens, as a chain drafter reads them: the last draft of an accepted path may
        # have been a leaf, which the model has not read. Nor has it read those that were copied.
        count = max(2, 1 + self._copied)
        start = (rows.lengths - count).clamp_min(0)
        slots = start[:, None] + torch.arange(count, device=start.device)
        fed = rows.tokens.gather(1, slots.clamp_max(rows.scratch))
        logits = score_at(self.model, fed, start, rows.lengths - 1 - start, rows.reach)  # [B, 1, V]
        if isinstance(self.shape, Growth):
            return self._grown(rows, gamma, logits, self.shape)
        shape = self.shape
        if gamma < len(shape.parents):
            shape = Topology(shape.parents[:gamma])
        return self._filled(rows, logits, shape)

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        if verdict.path is not None and self._place is not None:
            path = verdict.path[:, : self._depth + 1]
            self.model.commit(rows.lengths - 1, self._place.gather(1, path))

    def _grown(self, rows: Rows, gamma: int, logits: Tensor, shape: Growth) -> Draft:
        width, batch, device = shape.width, rows.batch, logits.device
        tokens, scores = (t[:, 0] for t in _logprobs(rows, logits, width))
        found = _Candidates.of(tokens, scores)
        frontier = torch.arange(width, device=device).expand(batch, -1)  # candidates to expand
        itself = torch.eye(width, dtype=torch.bool, device=device).expand(batch, -1, -1)
        above = torch.ones_like(itself[..., :1])  # [B, W, M] of the strip that they read
        for depth in range(1, min(shape.depth, gamma)):
            first = 1 + (depth - 1) * width
            place = (first + torch.arange(width, device=device)).expand(batch, -1)
            found.places.scatter_(1, frontier, place)
            above = torch.cat([above, itself], 2)
            tree = Tree(torch.full_like(place, depth), above)
            logits = self._score(rows, found.tokens.gather(1, frontier), first, tree)
            tokens, scores = _logprobs(rows, logits, width)  # [B, W, W]
            whole = (found.scores.gather(1, frontier)[..., None] + scores).flatten(1)
            made = found.tokens.shape[1]
            found.add(tokens.flatten(1), whole, (1 + frontier).repeat_interleave(width, 1))
            best = whole.topk(width).indices
            frontier = made + best
            above = above.gather(1, (best // width)[..., None].expand_as(above))
        if self._lookup is not None:
            self._copy(rows, found, self._lookup, shape)
        tokens, tree, self._place = found.chosen(gamma, self._depth)
        return Draft(tokens, torch.full_like(rows.lengths, tokens.shape[1]), topology=tree)

    def _copy(self, rows: Rows, found: _Candidates, lookup: NgramDrafter, shape: Growth) -> None:
        """Adds a path of copied tokens to the candidates."""
        copy, made = lookup.propose(rows, shape.copied), found.tokens.shape[1]
        column = torch.arange(shape.copied, device=copy.tokens.device)
        chance = (math.log(shape.trust) * (column + 1)).expand_as(copy.tokens)
        chance = chance.masked_fill(column >= copy.valid[:, None], float("-inf"))
        before = torch.where(column == 0, 0, made + column)
        found.add(copy.tokens, chance, before.expand_as(copy.tokens))

    def _filled(self, rows: Rows, logits: Tensor, shape: Topology) -> Draft:
        whole = shape.tree(rows.batch, logits.device)
        picks: dict[int, Tensor] = {}  # by node its token `[B]`
        probs: dict[int, Tensor] = {}
        strip = [0]
        for nodes in _steps(shape):
            if nodes != [0]:
                first = len(strip)
                strip += nodes
                ancestry = _columns(whole.ancestry, nodes, 1)
                tree = Tree(_columns(whole.depths, nodes, 1), _columns(ancestry, strip, 2))
                fed = torch.stack([picks[node] for node in nodes], 1)
                logits = self._score(rows, fed, first, tree)
            for i, parent in enumerate(nodes):
                children = [n for n, above in enumerate(shape.parents, 1) if above == parent]
                if rows.mode.sampling:
                    _draw_children(rows, logits[:, i : i + 1], children, picks, probs)
                    continue
                best = logits[:, i].topk(len(children)).indices.unbind(1)
                picks |= dict(zip(children, best, strict=True))
        # Of leaves the root's place: what moves there is written over, as nothing is read behind a leaf.
        places = [strip.index(n) if n in strip else 0 for n in range(len(shape.depths))]
        self._place = _columns(torch.arange(len(strip), device=logits.device)[None], places, 1)
        self._place = self._place.expand(rows.batch, -1)
        count = len(shape.parents)
        return Draft(
            torch.stack([picks[n] for n in range(1, count + 1)], 1),
            torch.full_like(rows.lengths, count),
            torch.stack([probs[n] for n in range(1, count + 1)], 1) if probs else None,
            shape,
        )

    def _score(self, rows: Rows, tokens: Tensor, first: int, tree: Tree) -> Tensor:
        """Logits `[B, W, V]` of nodes that are written from place `first` of the strip on."""
        reach = rows.reach + self._strip
        return self.model.score(tokens, rows.lengths - 1 + first, reach=reach, topology=tree).logits


@dataclass
class _Candidates:
    """The nodes that a tree is chosen from, a column each; parents come before children."""

    tokens: Tensor  # [B, C]
    scores: Tensor  # [B, C] log-probability of the path
    parents: Tensor  # [B, C] 0: the root; else a candidate, from 1 on
    places: Tensor  # [B, C] in the strip where it is expanded, else 0

    @staticmethod
    def of(tokens: Tensor, scores: Tensor) -> _Candidates:
        """Children of the root."""
        return _Candidates(tokens, scores, torch.zeros_like(tokens), torch.zeros_like(tokens))

    def add(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        self.tokens = torch.cat([self.tokens, tokens], 1)
        self.scores = torch.cat([self.scores, scores], 1)
        self.parents = torch.cat([self.parents, parents], 1)
        self.places = torch.cat([self.places, torch.zeros_like(tokens)], 1)

    def chosen(self, gamma: int, depth: int) -> tuple[Tensor, Tree, Tensor]:
        """The `gamma` likeliest nodes, or all: their tokens `[B, G]`, the tree, and the places `[B, N]`. With
        a node its parent is chosen, as scores only fall along a path."""
        gamma = min(gamma, self.tokens.shape[1])
        # Stable: a child that is certain has its parent's score, and comes after it.
        order = self.scores.sort(dim=1, descending=True, stable=True).indices[:, :gamma]
        order = order.sort(1).values
        node = torch.zeros_like(self.tokens[:, :1]).expand(-1, 1 + self.tokens.shape[1])
        numbers = torch.arange(1, gamma + 1, device=order.device).expand_as(order)
        node = node.scatter(1, 1 + order, numbers)  # of each candidate, 0 for those left out
        tree = Tree.of(node.gather(1, self.parents.gather(1, order)), depth)
        places = torch.cat([torch.zeros_like(order[:, :1]), self.places.gather(1, order)], 1)
        return self.tokens.gather(1, order), tree, places


def _draw_children(
    rows: Rows,
    logits: Tensor,
    children: list[int],
    picks: dict[int, Tensor],
    probs: dict[int, Tensor],
) -> None:
    """Draws the children of a node, by its logits `[B, 1, V]`, each from what the ones before it leave."""
    for child in children:
        q = distribution(rows, logits)[:, 0]
        slot = rows.lengths + child - 1
        token = draw(q, uniform(rows.sampling.seed, rows.lengths, slot, Stream.DRAFT))
        picks[child], probs[child] = token, q
        drawn = one_hot(token, logits.shape[-1], torch.bool)
        rest = logits.masked_fill(drawn[:, None], float("-inf"))
        # A head of few tokens may have none left: the last distribution serves again.
        logits = torch.where(rest.isfinite().any(-1, keepdim=True), rest, logits)


def _logprobs(rows: Rows, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens of each node and their log-probabilities, `[B, W, count]` both. At
    temperature 0 they are those of temperature 1."""
    if rows.mode.sampling:
        warm = rows.sampling.temperature
        logits = logits / torch.where(warm > 0, warm, 1.0)[:, None, None]
    best = logits.topk(count)
    return best.indices, best.values - logits.logsumexp(-1, keepdim=True)


def _steps(shape: Topology) -> list[list[int]]:
    """The nodes with children, by depth: each list is a forward."""
    found: dict[int, list[int]] = {}
    for node in sorted(set(shape.parents)):
        found.setdefault(shape.depths[node], []).append(node)
    return [found[depth] for depth in sorted(found)]


def _columns(values: Tensor, index: Sequence[int], dim: int) -> Tensor:
    """`values` at these places of a dimension, without an index that would have to be copied to a device."""
    return torch.stack([values.select(dim, i) for i in index], dim)


def _check(model: Model, role: str) -> None:
    gap = tree_gap(model)
    if gap is not None:
        raise ValueError(f"the {role} cannot score trees: {gap}")
