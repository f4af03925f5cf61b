"""Penalties, and the bounds and the noise of sampling above temperature 0, on logits.

Tensor functions of each row's own settings, and of each position's prefix with the drafts before it, so that
target and draft are treated alike at every drafted position. Rows with default settings keep their logits bit
for bit, whatever the other rows of the batch use.

A token is drawn as the largest of `logits + temperature * noise`, where the noise of every token is Gumbel's
(Gumbel 1954; Maddison et al. 2014, 1411.0030) and a function of the row's seed, the token's slot and its id
alone. So sampling is greedy decoding of other logits: a draft counts where it is the token that the target
draws, the drafter draws with the same noise, and a seed gives one text whatever drafts it, however many, in
whichever rounds and beside whichever rows (drafter-invariant speculative decoding, Daliri et al. 2024,
2408.07978). No round uses noise that depends on what an earlier one has decided, so the text follows the
target's distribution over rounds as it does in one. The noise is a counter-based hash: integer mixing (C.
Wellons' `lowbias32`) without a state.

The thresholds of top-k and top-p are found without sorting the vocabulary. A float32 is mapped
to an integer whose order is the reverse of the floats', and the lowest logit that is kept is found digit by
digit: a histogram of the first digit over all tokens tells in which bin it lies, one of the next digit in
that bin tells the rest. Exact for any logits, on fixed shapes and without a sync. Knows tensors only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..rows import Rows
from ..types import Prefix

CACHED = 1 << 18
"""Logits that are treated at a time on CPUs: several arrays of them fit into a core's caches."""

DIGITS = (11, 11, 10)
"""Bits of each digit. The histograms of two digits would be as large as half a vocabulary."""

_LAST = 0x7FFFFFFF
_LOW = 0xFFFFFFFF
_WEYL = -0x61C88647
"""2^32 divided by the golden ratio, as int32: neighbouring ids differ in many bits."""


def penalise(rows: Rows, logits: Tensor, prefix: Prefix) -> Tensor:
    """Returns `logits [B, N, V]`, lower for tokens that the prefix contains.

    `repetition` (Keskar et al. 2019, transformers) counts prompt and text; `presence` and `frequency`
    (OpenAI) the text alone. The cost is two counts over the vocabulary per position.
    """
    first, drafts = prefix.last[:, :1], prefix.tokens.gather(1, prefix.last[:, 1:])
    slots = torch.arange(prefix.tokens.shape[1], device=logits.device)

    def counts(begin: Tensor) -> Tensor:
        """How often each token is among those from slot `begin [B, 1]` on, `[B, N, V]`."""
        there = ((slots >= begin) & (slots <= first)).to(logits.dtype)  # [B, T]
        base = torch.zeros_like(logits[:, 0]).scatter_add(1, prefix.tokens, there)
        steps = [base]
        for i in range(drafts.shape[1]):  # a position sees the drafts before it
            one = torch.ones_like(base[:, :1])
            steps.append(steps[-1].scatter_add(1, drafts[:, i : i + 1], one))
        return torch.stack(steps, dim=1)

    def each(values: Tensor) -> Tensor:
        return values[:, None, None]

    present = counts(torch.zeros_like(prefix.begin)[:, None]) > 0
    factor = torch.where(present, each(rows.repetition), 1.0)
    logits = torch.where(logits < 0, logits * factor, logits / factor)
    text = counts(prefix.begin[:, None])
    return logits - each(rows.presence) * (text > 0) - each(rows.frequency) * text


def perturbed(rows: Rows, logits: Tensor, slots: Tensor) -> Tensor:
    """Processed `logits [B, N, V]` with the noise of the tokens to be drawn at `slots [B, N]`: the largest is
    the one that is drawn. At temperature 0 they are what they were. What the bounds exclude is at -inf."""
    temperature, vocab = rows.temperature[:, None, None], logits.shape[-1]
    if rows.mode.bounded:
        out = bound(rows, logits / temperature.clamp_min(1e-6)) == float("-inf")
        logits = logits.masked_fill(out & (temperature > 0), float("-inf"))
    flat = logits.reshape(-1, vocab)  # [R, V], R = B N
    keys = _keys(rows.seed[:, None], slots).flatten()
    hot = -temperature[:, 0].expand_as(slots).reshape(-1, 1)
    ids = torch.arange(vocab, dtype=torch.int32, device=logits.device) * _WEYL
    size = _together(flat)
    parts = [
        torch.addcmul(
            flat[i : i + size], hot[i : i + size], _log_waits(keys[i : i + size, None] ^ ids)
        )
        for i in range(0, len(flat), size)
    ]
    return torch.cat(parts).view(logits.shape)


def _keys(seed: Tensor, slots: Tensor) -> Tensor:
    """A hash `[B, N]` int32 of seeds `[B, 1]` and slots `[B, N]`, both int64."""
    mixed = _mix((seed & _LOW).int())
    mixed = _mix(mixed ^ (seed >> 32 & _LOW).int())
    return _mix(mixed ^ _mix(slots.int()))


def _mix(x: Tensor) -> Tensor:
    """Permutes int32 numbers. They have a sign, so the bits that a shift brings in are masked."""
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * -0x7B935975
    return x ^ (x >> 16 & 0xFFFF)


def _log_waits(keys: Tensor) -> Tensor:
    """Logarithms of exponentially distributed numbers, which is Gumbel noise with its sign reversed, one for
    each of `keys` int32.

    Of 31 random bits, because a token of probability p wins with a number of the size of p: -log(1 - u) of a
    small u is its series, where 1 - u would keep 24 bits of 1. torch's `log1p` would take eight times as long
    as `log`.
    """
    u = (_mix(keys) & _LAST).float().add_(0.5).mul_(2**-31 * (1 - 2**-23))  # in (0, 1)
    series = (u / 3).add_(0.5).mul_(u).add_(1).mul_(u)
    return torch.where(u < 2**-8, series, (1 - u).log_().neg_()).log_()


def _together(flat: Tensor) -> int:
    """How many rows of `flat [R, V]` are treated at a time: on CPUs as many as stay in the caches."""
    return max(1, CACHED // flat.shape[1]) if flat.device.type == "cpu" else len(flat)


def bound(rows: Rows, logits: Tensor) -> Tensor:
    """`logits [B, N, V]`, divided by the temperature, at -inf where top-k, top-p or min-p cut them.

    All three are thresholds, so tokens that tie with the last one kept are kept too. The cost is
    a third of that of a sort.
    """
    vocab, nodes = logits.shape[-1], logits.shape[1]
    flat = logits.reshape(-1, vocab)  # [R, V], R = B N

    def each(values: Tensor) -> Tensor:
        return values.repeat_interleave(nodes, output_size=len(flat))[:, None]

    most = torch.where(rows.top_k > 0, rows.top_k, vocab).clamp_max(vocab)
    top_k, top_p, min_p = each(most), each(rows.top_p), each(rows.min_p)
    size = _together(flat)
    parts = [
        _bound(flat[i : i + size], top_k[i : i + size], top_p[i : i + size], min_p[i : i + size])
        for i in range(0, len(flat), size)
    ]
    return torch.cat(parts).view(logits.shape)


def _bound(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`bound` of `logits [R, V]`; the settings are `[R, 1]`."""
    by_min = logits.amax(-1, keepdim=True) + min_p.log()
    least = torch.maximum(top_k_top_p(logits, top_k, top_p), by_min)
    return logits.masked_fill(logits < least, float("-inf"))


def top_k_top_p(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The lowest number `[R, 1]` that is kept of `logits [R, V]`: the `top_k [R, 1]` largest (1 to V), and
    of those the fewest that hold `top_p [R, 1]` of their probability. Tokens that tie with the last one
    kept are kept too."""
    ranks = _ranks(logits)
    ones = torch.ones_like(logits[:1]).expand_as(logits)
    by_k = _floats(_search(ranks, ones, top_k.to(logits.dtype)))
    # Summed in float64: a bin may hold many thousand small numbers.
    mass = logits.softmax(-1)
    whole = (mass * (logits >= by_k)).sum(-1, keepdim=True)
    by_p = _floats(_search(ranks, mass.double(), top_p.double() * whole))
    # A top-p of 1 cuts nothing, although the running sum may reach 1 early by rounding.
    return torch.maximum(by_k, by_p.masked_fill(top_p >= 1, float("-inf")))


def _search(ranks: Tensor, weights: Tensor, target: Tensor) -> Tensor:
    """The last rank `[R, 1]` before which less than `target [R, 1]` lies, of `ranks` with `weights`, both
    `[R, V]`."""
    shift = 32 - DIGITS[0]
    here = (ranks >> shift).add_(1 << (DIGITS[0] - 1))  # the first digit has a sign
    before, last = _bin(here.long(), weights, torch.zeros_like(target), target, 1 << DIGITS[0])
    found = last.int() - (1 << (DIGITS[0] - 1))
    for digit in DIGITS[1:]:
        # Other ranks go to bins of their own, spread by their digit: additions to one bin would wait
        # for each other.
        bins, other = 1 << digit, (ranks >> shift).sub_(found).abs_().clamp_max_(1)
        shift -= digit
        here = (ranks >> shift).bitwise_and_(bins - 1).add_(other, alpha=bins)
        before, last = _bin(here.long(), weights, before, target, bins)
        found = (found << digit) + last.int()
    return found


def _bin(
    here: Tensor, weights: Tensor, before: Tensor, target: Tensor, bins: int
) -> tuple[Tensor, Tensor]:
    """The weight `[R, 1]` before the last bin before which less than `target` lies, and its index
    `[R, 1]`, where `weights [R, V]` lie in the bins `here [R, V]` and `before [R, 1]` lies before all."""
    empty = torch.zeros((len(here), 2 * bins), dtype=weights.dtype, device=weights.device)
    inside = empty.scatter_add_(1, here, weights)[:, :bins]
    each = inside.cumsum(1).sub_(inside).add_(before)
    last = (each < target).sum(1, keepdim=True).sub_(1).clamp_(0, bins - 1)
    return each.gather(1, last), last


def _ranks(logits: Tensor) -> Tensor:
    """Integers `[R, V]` int32 in the reverse order of `logits [R, V]` float32."""
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0, which it is equal to
    return ~(bits ^ ((bits >> 31) & _LAST))


def _floats(ranks: Tensor) -> Tensor:
    """The inverse of `_ranks`."""
    keys = ~ranks
    return (keys ^ ((keys >> 31) & _LAST)).view(torch.float32)
