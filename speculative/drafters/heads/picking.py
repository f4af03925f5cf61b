"""From a head's states to drafted tokens: greedy, or drawn from the row's distribution.

Knows rows, an output layer and the target's; nothing of how states are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from ...drafts import Draft, Prefix
from ...models.heads.head_record import Output
from ...rounds.accept import distribution, draw
from ...rounds.choice import argmax
from ...rounds.noise import Stream, uniform
from ...rounds.sampling import penalise
from ...rows import Rows


class Logits(Protocol):
    """Logits of states, as a `Picker` asks for them."""

    def rows(self, states: Tensor) -> Tensor:
        """Logits `[B, N, U]` float32 of the tokens that are proposed."""

    def whole(self, rows: Tensor) -> Tensor:
        """The same in all tokens of the target `[B, N, V]`."""

    def tokens(self, best: Tensor) -> Tensor:
        """The tokens of rows."""


class Given:
    """For a `Picker` that is given logits `[B, N, V]` in place of states."""

    def rows(self, states: Tensor) -> Tensor:
        return states

    def whole(self, rows: Tensor) -> Tensor:
        return rows

    def tokens(self, best: Tensor) -> Tensor:
        return best


class Scorer:
    """Logits of a head's states, in the target's tokens."""

    def __init__(self, output: Output, head: Callable[[Tensor], Tensor], vocab: int) -> None:
        """`head` is the target's output layer; `vocab` its number of tokens."""
        self.output, self._head, self.vocab = output, head, vocab

    @property
    def ids(self) -> Tensor | None:
        """The tokens of `rows`; None where row i is token i."""
        return self.output.ids if self.output.head is not None else None

    def rows(self, states: Tensor) -> Tensor:
        """Logits `[B, N, U]` float32 of the output layer's rows."""
        normed, own = self.output.normed(states), self.output.head
        return self._head(normed) if own is None else linear(normed, own.weight, own.bias).float()

    def whole(self, rows: Tensor) -> Tensor:
        """The same in all tokens of the target `[B, N, V]`: -inf for those that the head does not propose."""
        if self.ids is None:
            return rows
        made = rows.new_full((*rows.shape[:-1], self.vocab), float("-inf"))
        return made.index_copy_(-1, self.ids, rows)

    def tokens(self, best: Tensor) -> Tensor:
        """The tokens of rows."""
        return best if self.ids is None else self.ids[best]


class Picker:
    """Picks the tokens of one draft, one position after another."""

    def __init__(self, scorer: Logits, rows: Rows) -> None:
        self.scorer, self.rows = scorer, rows
        self.belief = torch.ones(rows.batch, device=rows.lengths.device)
        """`[B]`: the chance, by the head itself, that all drafts so far are kept. Greedy rounds only."""
        self._tokens: list[Tensor] = []
        self._probs: list[Tensor] = []
        # Penalties read the drafts, which are not committed: one copy for all of them.
        self._known = rows.tokens.clone() if rows.mode.penalised else rows.tokens

    def pick(self, states: Tensor, *, believe: bool = False) -> Tensor:
        """The next draft `[B]`, of states `[B, 1, H]`; `believe` keeps account of `belief`."""
        rows, mode = self.rows, self.rows.mode
        slot = rows.lengths + len(self._tokens)  # of the token drafted now
        logits = self.scorer.rows(states)
        if mode.penalised or mode.sampling:
            logits = self.scorer.whole(logits)
        if mode.penalised:
            logits = penalise(rows, logits, Prefix(self._known, (slot - 1)[:, None], rows.begin))
        if mode.sampling:
            q = distribution(rows, logits)[:, 0]
            token = draw(q, uniform(rows.sampling.seed, rows.lengths, slot, Stream.DRAFT))
            self._probs.append(q)
        else:
            best = argmax(logits)
            token = best[:, 0] if mode.penalised else self.scorer.tokens(best[:, 0])
            if believe:
                chosen = logits.gather(-1, best[..., None])[:, 0, 0]
                self.belief = self.belief * (chosen - logits[:, 0].logsumexp(-1)).exp()
        if mode.penalised:
            self._known.scatter_(1, slot[:, None], token[:, None])
        self._tokens.append(token)
        return token

    def draft(self, most: Tensor) -> Draft:
        """The draft; of row b the first `most[b]` tokens count."""
        tokens = torch.stack(self._tokens, 1)
        return Draft(
            tokens=tokens,
            valid=most.clamp_max(tokens.shape[1]),
            probs=torch.stack(self._probs, 1) if self._probs else None,
        )
