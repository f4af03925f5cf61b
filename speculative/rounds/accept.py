"""Acceptance rules: how much of a draft is kept, and which token of the target follows.

A policy turns logits into probabilities, one-hot at temperature 0, and a draft without `probs` is one-hot as
well, so greedy decoding and lookup drafts are cases of the one general rule. Inside the rules `p` is the
target and `q` the draft, as in the papers.

Randomness is keyed by (seed, start of the round, slot, stream) and depends on nothing else: a sampled answer
must not change with the rows that share its batch, which rules out a generator that is advanced by use. It is
a counter-based hash: 32-bit integer mixing (C. Wellons' `lowbias32`) in int64 arithmetic, which every backend
has, and no state. The start of the round is part of the key because a round that accepts only some of its
drafts has already used the random numbers of the slots after them, and block verification decides by them. If
the next round used them again it would condition on their outcome, and the text would no longer follow the
target's distribution. A row commits at least one token per round, so no two of its rounds start at the same
slot, and the start depends on the row's own text and drafts only.

Knows rules and drafters; nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from ..protocols import Drafter, Rule
from ..requests import Guarantee
from ..rows import Rows
from ..types import Distribution, Draft, Verdict
from .choice import argmax
from .sampling import bound

_MASK = 0xFFFFFFFF


class Stream(IntEnum):
    """Draws of one slot that must be independent of each other."""

    DRAFT = 1
    ACCEPT = 2
    EXTRA = 3


class GreedyMatch:
    """Keep drafts while they equal the target's argmax: token rejection with one-hot p.

    An optimisation of `TokenRejection` for temperature 0 (a test holds them equal): one argmax
    instead of several passes over the vocabulary. It reads no draft probabilities, so any drafter
    will do.
    """

    name = "greedy match"
    distributions = frozenset(Distribution)

    def guarantee(self, distribution: Distribution) -> Guarantee:
        return Guarantee.GREEDY_ONLY

    def __call__(self, rows: Rows, draft: Draft, logits: Tensor) -> Verdict:
        return self.match(draft, argmax(logits))

    def match(self, draft: Draft, choice: Tensor) -> Verdict:
        """The verdict where the target's best tokens `choice [B, N]` are known; its tokens are of them."""
        # An accepted draft equals the target's choice, so the choices are the tokens to emit.
        return Verdict(choice, kept(draft.tokens == choice[:, :-1], draft.valid))


class _Sampling:
    """What the rules of sampled rows share: keyed noise, and the token that follows the drafts."""

    distributions = frozenset({Distribution.ONE_HOT, Distribution.DENSE})

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
        """The rule itself: `p [B, N, V]`, uniform numbers `accept_u [B, G]` and `extra_u [B, N]`.

        Noise is an argument, so that tests can integrate over it instead of sampling.
        """
        gamma, vocab = draft.tokens.shape[1], p.shape[-1]
        q = one_hot(draft.tokens, vocab, p.dtype) if draft.probs is None else draft.probs
        usable = torch.arange(gamma, device=p.device) < draft.valid[:, None]
        # With q = 0 after the last draft, "all accepted" leaves p itself to draw from.
        q = torch.cat([q * usable[..., None], torch.zeros_like(p[:, :1])], dim=1)
        n, share = cls.count(draft, p, q, accept_u)  # [B], [B]

        at = n[:, None, None].expand(-1, 1, vocab)
        p_n, q_n = p.gather(1, at)[:, 0], q.gather(1, at)[:, 0]
        residual = (share[:, None] * p_n - q_n).clamp_min(0)
        # p == q leaves nothing to draw from; it is only reached when rounding rejects a sure token.
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p_n)
        extra = draw(residual, extra_u.gather(1, n[:, None])[:, 0])

        column = torch.arange(gamma + 1, device=p.device)
        drafts = torch.cat([draft.tokens, extra[:, None]], dim=1)
        return Verdict(torch.where(column < n[:, None], drafts, extra[:, None]), n)

    @staticmethod
    def count(draft: Draft, p: Tensor, q: Tensor, accept_u: Tensor) -> tuple[Tensor, Tensor]:
        """Drafts kept `[B]`, and the share `[B]` of p that the token after them is drawn from, less q.

        `q [B, N, V]` is zero where no draft counts.
        """
        raise NotImplementedError


class TokenRejection(_Sampling):
    """Leviathan et al. 2023 (2211.17192), algorithm 1, one verdict per row; Chen et al. 2302.01318.

    Draft x_i survives with probability min(1, p(x_i) / q(x_i)); the first rejected one is replaced by
    a draw from max(p - q, 0).
    """

    name = "token rejection"

    @staticmethod
    def count(draft: Draft, p: Tensor, q: Tensor, accept_u: Tensor) -> tuple[Tensor, Tensor]:
        p_x, q_x = _at_drafts(draft, p, q)
        n = kept(accept_u * q_x < p_x, draft.valid)
        return n, torch.ones_like(n, dtype=p.dtype)


class BlockVerification(_Sampling):
    """Sun et al. 2024 (2403.10444), algorithm 2: the draft is judged as one block.

    r_i = min(1, r_{i-1} p(x_i) / q(x_i)) is the share of the target's distribution that the first i
    drafts hold. The block ends at the *last* i whose own test succeeds, not before the first that fails:
    a good continuation rescues a weak token, so the expected number of tokens is never below that of
    token rejection. The
    cost is two passes over the vocabulary of every drafted position.
    """

    name = "block verification"

    @staticmethod
    def count(draft: Draft, p: Tensor, q: Tensor, accept_u: Tensor) -> tuple[Tensor, Tensor]:
        p_x, q_x = _at_drafts(draft, p, q)
        ratio = p_x / q_x.clamp_min(torch.finfo(p.dtype).tiny)
        share = [torch.ones_like(p[:, 0, 0])]  # r_0, r_1, ..., each [B]
        for i in range(ratio.shape[1]):
            share.append((share[-1] * ratio[:, i]).clamp_max(1))
        r = torch.stack(share, dim=1)  # [B, N]
        left = (r[..., None] * p - q).clamp_min(0).sum(-1)  # [B, N]
        whole = left + 1 - r
        h = (left / whole).masked_fill(whole <= 0, 1.0)[:, 1:]  # [B, G]
        column = torch.arange(1, r.shape[1], device=p.device)
        # At the last draft that counts q is 0 after it, so that left is r, whole 1 and h is r.
        success = (accept_u < h) & (column <= draft.valid[:, None])
        n = (column * success).amax(1) if len(column) else torch.zeros_like(draft.valid)
        return n, r.gather(1, n[:, None])[:, 0]


@dataclass(frozen=True)
class RuleChoice:
    """`rule` for all rounds; where it is None, greedy match while all rows are at temperature 0 and
    `sampled` otherwise, which is token rejection by default."""

    rule: Rule | None
    sampled: Rule | None
    drafter: Drafter | None

    def pick(self, *, sampling: bool) -> Rule:
        """The rule for rounds with, or without, a row above temperature 0."""
        if self.rule is not None:
            return self.rule
        if not sampling:
            return GreedyMatch()
        return TokenRejection() if self.sampled is None else self.sampled

    def guarantee(self, *, sampling: bool) -> Guarantee:
        """The guarantee of a result; for a greedy one a greedy-only rule is exact."""
        guarantee = self.pick(sampling=sampling).guarantee(self._distribution(sampling))
        if guarantee is Guarantee.GREEDY_ONLY and not sampling:
            return Guarantee.EXACT
        return guarantee

    def check(self) -> None:
        """Raises `ValueError` for a drafter whose drafts the rule cannot verify."""
        for sampling in (False, True):
            rule, distribution = self.pick(sampling=sampling), self._distribution(sampling)
            if distribution not in rule.distributions:
                known = ", ".join(sorted(member.value for member in rule.distributions))
                raise ValueError(
                    f"rule {rule.name!r} cannot verify {distribution.value} drafts; it takes: {known}"
                )

    def _distribution(self, sampling: bool) -> Distribution:
        if self.drafter is None:
            return Distribution.ONE_HOT
        return self.drafter.distribution(sampling=sampling)


def distribution(rows: Rows, logits: Tensor) -> Tensor:
    """Probabilities `[B, N, V]` that rows sample from, of processed `logits`: temperature, then bounds."""
    if not rows.mode.bounded:
        return policy(logits, rows.sampling.temperature)
    t = rows.sampling.temperature[:, None, None]
    warm = bound(rows, logits / t.clamp_min(1e-6))
    return torch.where(
        t > 0, warm.softmax(-1), policy(logits, torch.zeros_like(rows.sampling.temperature))
    )


def policy(logits: Tensor, temperature: Tensor) -> Tensor:
    """Probabilities `[B, N, V]` of processed `logits`; `temperature [B]`, 0 puts all mass on the argmax."""
    t = temperature[:, None, None]
    greedy = one_hot(argmax(logits), logits.shape[-1], logits.dtype)
    return torch.where(t > 0, (logits / t.clamp_min(1e-6)).softmax(-1), greedy)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """Index `[...]` drawn from unnormalised `weights [..., V]` by the inverse of their running sum.

    Never a token of zero weight: its sum counts as 0, and what is drawn is the first token whose sum is above
    0 and reaches `1 - u`, in (0, 1], of the largest. Neither a product that underflows nor a sum that a
    device adds in blocks, and that is not monotonic in its last bit, can choose one. One weight must be
    above 0.
    """
    mass = weights.cumsum(-1) * (weights > 0)
    reached = mass >= (1 - u)[..., None] * mass.amax(-1, keepdim=True)
    vocab = weights.shape[-1]
    ids = torch.arange(vocab, device=weights.device)
    return torch.where(reached & (mass > 0), ids, vocab - 1).amin(-1)


def kept(matches: Tensor, valid: Tensor) -> Tensor:
    """Length `[B]` of the accepted prefix of `matches [B, G]`; drafts from `valid [B]` on do not count."""
    usable = torch.arange(matches.shape[1], device=matches.device) < valid[:, None]
    return (matches & usable).long().cumprod(-1).sum(-1)


def one_hot(tokens: Tensor, vocab: int, dtype: torch.dtype) -> Tensor:
    """`[..., V]` with all mass on `tokens [...]`. torch's own function checks the values, which is a sync."""
    return (tokens[..., None] == torch.arange(vocab, device=tokens.device)).to(dtype)


def _at_drafts(draft: Draft, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both probabilities `[B, G]` of the drafted tokens."""
    x, gamma = draft.tokens[..., None], draft.tokens.shape[1]
    return p[:, :gamma].gather(-1, x)[..., 0], q[:, :gamma].gather(-1, x)[..., 0]


def uniform(seed: Tensor, start: Tensor, slot: Tensor, stream: Stream) -> Tensor:
    """Numbers in [0, 1) with 24 random bits, float32.

    `start` is the row's length when the round began, `slot` the place of the token to be decided. All
    three tensors are int64 and broadcast.
    """
    key = _mix((seed & _MASK) ^ (0x9E3779B9 * int(stream) & _MASK))
    key = _mix(key ^ ((seed >> 32) & _MASK))
    key = _mix(key ^ _mix(start & _MASK))
    key = _mix(key ^ _mix(slot & _MASK))
    return (key >> 8).float() * (1.0 / (1 << 24))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)
