"""The rule for sampled rows whose drafts are trees."""

from __future__ import annotations

import torch
from torch import Tensor

from forescribe.speculative.requests import Guarantee
from forescribe.speculative.rounds.accept import (
    Stream,
    TokenRejection,
    at,
    distribution,
    draw,
    one_hot,
    uniform,
)
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Distribution, Draft, Verdict


class TreeRejection:
    """Token rejection in a tree, node by node: SpecInfer (Miao et al. 2023, 2305.09781), algorithm 2.

    The children of the node that was reached are judged in order. One survives with probability
    min(1, p(x) / q(x)), and the walk goes on from it; otherwise p becomes max(p - q, 0), normalised, which
    the next sibling is judged by. Where none survives, the token is drawn from what is left of p. Exact for
    any `q` that is a function of the row's text and the siblings before: one-hot nodes, children drawn
    independently, and those drawn without replacement (Jeon et al. 2024, 2402.14160). A chain gets the
    verdicts of `TokenRejection`.
    """

    name = "tree rejection"
    distributions = frozenset(Distribution)

    def guarantee(self, distribution: Distribution) -> Guarantee:
        return Guarantee.EXACT

    def __call__(self, rows: Rows, draft: Draft, logits: Tensor) -> Verdict:
        seed, start = rows.sampling.seed[:, None], rows.lengths[:, None]
        slots = start + torch.arange(logits.shape[1], device=logits.device)
        return self.judge(
            draft,
            distribution(rows, logits),
            uniform(seed, start, slots[:, :-1], Stream.ACCEPT),
            uniform(seed, start, slots, Stream.EXTRA),
        )

    @classmethod
    def judge(cls, draft: Draft, p: Tensor, accept_u: Tensor, extra_u: Tensor) -> Verdict:
        """The rule itself: `p [B, N, V]`, uniform numbers `accept_u [B, G]`, one for each node, and
        `extra_u [B, N]`, one for each depth."""
        if draft.topology is None:
            return TokenRejection.judge(draft, p, accept_u, extra_u)
        tree, vocab = draft.tree(), p.shape[-1]
        parents, here = tree.parents(), torch.zeros_like(draft.valid)
        left = p[:, 0]  # [B, V] of p, what the siblings so far have not taken
        for node, x in enumerate(draft.tokens.unbind(1), start=1):
            q = one_hot(x, vocab, p.dtype) if draft.probs is None else draft.probs[:, node - 1]
            judged = (parents[:, node] == here) & (draft.valid >= node)
            takes = judged & (accept_u[:, node - 1] * at(q, x) < at(left, x))
            rest = (left - q).clamp_min(0)
            whole = rest.sum(-1, keepdim=True)
            # As in a chain, a remainder of nothing is only reached by rounding.
            rest = torch.where(whole > 0, rest / whole, left)
            left = torch.where((judged & ~takes)[:, None], rest, left)
            left = torch.where(takes[:, None], p[:, node], left)
            here = torch.where(takes, node, here)
        n, path = at(tree.depths, here), tree.path(here)
        extra = draw(left, at(extra_u, n))[:, None]
        column = torch.arange(p.shape[1], device=p.device)
        drafts = draft.tokens.gather(1, (path - 1).clamp_min(0))  # the root has no draft
        tokens = torch.where(column < n[:, None], drafts.roll(-1, 1), extra)
        return Verdict(tokens, n, path)
