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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

States = Sequence[Any]
"""What requests bring for the encoder of a model, one for each."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings that a causal model reads in place of some tokens of a prompt, e.g. those of audio: `n` of
    them, from place `at` on. The prompt has any token there, of which nothing is read.

    They are as the embedding layer returns them: where a model multiplies embeddings, it multiplies these
    too. They end before the last token, which the first round reads again. A draft model reads the last two
    again: in place of the last but one they cost it drafts.
    """

    at: int
    states: Tensor  # [n, D] floating point

    @property
    def end(self) -> int:
        """The place behind the last one."""
        return self.at + len(self.states)


@dataclass(frozen=True)
class Draft:
    """The tokens that a drafter proposes for every row."""

    tokens: Tensor  # [B, G] int64
    valid: Tensor  # [B] int64: how many leading drafts of the row count, 0..G


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
class Paths:
    """Where texts lie that share the slots of a row, those of beams and of drafts behind them: each reads its
    own."""

    slots: Tensor  # [B, N, T] int64, of every token of a text, prompt first
    lengths: Tensor  # [B, N] int64, how many of them count


@dataclass(frozen=True)
class Level:
    """Texts of one row each that share its slots: its beams, or drafts of one length behind them."""

    written: Tensor  # [B, N, T] int64, the tokens of each text, prompt first
    paths: Tensor  # [B, N, T] int64, their slots
    lengths: Tensor  # [B, N] int64, how many of them count
    sums: Tensor  # [B, N] float32, of log-probabilities
    parents: Tensor  # [B, N] int64, which text of the level before goes on in it

    @property
    def last(self) -> Tensor:
        """The last token `[B, N]` of each text."""
        return self.written.gather(2, self.lengths[..., None] - 1)[..., 0]

    @property
    def slots(self) -> Tensor:
        """The slot `[B, N]` of the last token."""
        return self.paths.gather(2, self.lengths[..., None] - 1)[..., 0]

    def until(self, lengths: Tensor) -> Level:
        """The same texts, of which so many tokens count."""
        return replace(self, lengths=lengths.expand_as(self.lengths))

    @staticmethod
    def joined(levels: Sequence[Level]) -> Level:
        """All of their texts, in order."""
        if len(levels) == 1:
            return levels[0]
        fields = zip(*(vars(level).values() for level in levels), strict=True)
        return Level(*(torch.cat(values, 1) for values in fields))


@dataclass(frozen=True)
class Verdict:
    """The result of accepting a draft. `tokens[b, :num_accepted[b] + 1]` are emitted, in order."""

    tokens: Tensor  # [B, N] accepted drafts, then one token of the target; undefined after that
    num_accepted: Tensor  # [B] 0..G


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
