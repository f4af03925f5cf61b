"""Whisper's rule of timestamps, for all drafted positions at once.

Knows token ids; nothing of audio, models, caches or text. The module `rules` has the other rules, the
conditions that all of them meet, and the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from forescribe.speculative.types import Chain, Prefix

FORBIDDEN = float("-inf")


@dataclass(frozen=True)
class Bounds:
    """What `Timestamps` reads of N prefixes: all [B, N]. Rows without timestamps allow all of them."""

    timed: Tensor  # whether the row's prompt asks for timestamps
    first: Tensor  # nothing is generated yet
    segment_ended: Tensor  # ends with the end of a segment
    stamp_from: Tensor  # the allowed timestamps: from this id
    stamp_to: Tensor  # to below this one


@dataclass(frozen=True)
class Timestamps:
    """Timestamps come first, in pairs and in order, and are chosen by their joint probability.

    The vocabulary ends with them: text and special tokens are ids < `timestamp_begin`. At each
    position two intervals of ids are allowed, one of text and one of timestamps:

    | the prefix                      | text              | timestamps                           |
    |---------------------------------|-------------------|--------------------------------------|
    | nothing generated yet           | none              | the first `max_initial` steps        |
    | ends with a closed pair         | all               | none: words must follow              |
    | ends with the end of a segment  | `eos` and above   | from that timestamp on               |
    | anything else                   | all               | after the latest timestamp           |

    Then, where the timestamps together are more probable than the most probable text token, text is
    forbidden. Rows whose prompt ends with `no_timestamps` are not changed.

    Token ids: `timestamp_begin` (<|0.00|>), `eos`, `no_timestamps` (<|notimestamps|>).
    `max_initial`: highest step of the first timestamp (a step is 20 ms), None for no limit.
    `by_mass`: whether the joint probability of the timestamps counts.
    """

    timestamp_begin: int
    eos: int
    no_timestamps: int
    max_initial: int | None = None
    by_mass: bool = True

    def __call__(self, logits: Tensor, prefix: Prefix) -> Tensor:
        """Return logits [B, N, V] with -inf where the prefix of a position forbids a token."""
        V = logits.shape[-1]
        bounds = self.bounds(prefix.chain(), V)
        v = torch.arange(V, device=logits.device)
        text_from = torch.zeros_like(prefix.last).masked_fill(bounds.first, self.timestamp_begin)
        text_from = text_from.masked_fill(bounds.segment_ended, self.eos)
        text = (v >= text_from[..., None]) & (v < self.timestamp_begin) & (v != self.no_timestamps)
        stamp = (v >= bounds.stamp_from[..., None]) & (v < bounds.stamp_to[..., None])
        timed = bounds.timed[..., None]
        scores = logits.masked_fill(~(text | stamp | ~timed), FORBIDDEN)
        if not self.by_mass:
            return scores
        is_text = v < self.timestamp_begin
        return scores.masked_fill(self._stamp_wins(scores)[..., None] & timed & is_text, FORBIDDEN)

    def bounds(self, chain: Chain, V: int) -> Bounds:
        """What the rule reads of the prefixes; the vocabulary has V tokens."""
        text, fed, begin = chain.text, chain.fed, chain.begin[:, None]
        generated = chain.last + 1 - begin  # [B, N]
        first = generated == 0
        timed = text.gather(1, (begin - 1).clamp(min=0)) != self.no_timestamps  # [B, 1]
        before = text.gather(1, (chain.last[:, :1] - 1).clamp(min=0))
        second = torch.cat([before, fed[:, :-1]], dim=1)
        is_stamp = (fed >= self.timestamp_begin) & (generated >= 1)
        # A single first timestamp opens the first segment: it counts as the second half of a pair.
        paired = (generated < 2) | (second >= self.timestamp_begin)
        segment_ended = is_stamp & ~paired

        # Constants are written by masked_fill: `where` with a number may copy it from the host.
        stamp_from = self._latest_stamp(chain, is_stamp) + (~segment_ended).to(fed.dtype)
        stamp_from = stamp_from.clamp(min=self.timestamp_begin)
        stamp_from = stamp_from.masked_fill(is_stamp & paired, V)
        limit = V if self.max_initial is None else self.timestamp_begin + self.max_initial + 1
        return Bounds(
            timed=timed.expand_as(first),
            first=first,
            segment_ended=segment_ended,
            stamp_from=stamp_from.masked_fill(~timed, self.timestamp_begin),
            stamp_to=torch.full_like(fed, V).masked_fill(first & timed, limit),
        )

    def _latest_stamp(self, chain: Chain, is_stamp: Tensor) -> Tensor:
        """The latest timestamp generated before each prediction, [B, N]; -1 where there is none.

        `is_stamp [B, N]`: whether the last token before it is one. The text before the drafts is
        searched once per row, without a scan, which is slow on accelerators.
        """
        text, first = chain.text, chain.last[:, :1]
        slot = torch.arange(text.shape[1], device=text.device)  # [T]
        older = (text >= self.timestamp_begin) & (slot >= chain.begin[:, None]) & (slot < first)
        at = slot.masked_fill(~older, -1).amax(1, keepdim=True)  # [B, 1]
        old = text.gather(1, at.clamp(min=0)).masked_fill(at < 0, -1)
        column = torch.arange(is_stamp.shape[1], device=text.device)
        latest = column.masked_fill(~is_stamp, -1).cummax(1).values  # [B, N]
        return torch.where(latest < 0, old, chain.fed.gather(1, latest.clamp(min=0)))

    def _stamp_wins(self, scores: Tensor) -> Tensor:
        """Whether timestamps together are more probable than the best text token, [B, N] bool.

        Both sides are normalised although the normaliser cancels out: transformers compares the rounded
        values, and a near-tie has to be decided in the same way here.
        """
        logprobs = torch.log_softmax(scores.float(), dim=-1)
        stamps = logprobs[..., self.timestamp_begin :].logsumexp(-1)
        return stamps > logprobs[..., : self.timestamp_begin].amax(-1)
