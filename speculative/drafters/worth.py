"""Worth: which drafts of a cascade pay, from the times and verdicts of past rounds.

What a drafted token and a scored position cost is learnt from the times of past rounds (`Line`). For devices
that have finished when a call returns, and where reading a number costs nothing. Knows seconds and chances;
nothing of where drafts come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DECAY = 0.97
"""Weight of the earlier rounds in each new one: about thirty rounds are remembered."""

OUTLIER = 2.0
"""A round that took more than this many times the expected time was interrupted, and counts as that."""

FREE_SHARE = 0.02
"""Share of a forward that a position costs at least, so that noise never makes drafts free."""

LEAST = 1e-9
"""Seconds that everything takes, however coarse the clock is."""

MEASURED_FIRST = 4
"""Rounds with the model's drafts before anything is decided by prices."""

PROBE_EVERY = 16
"""Rounds after which something is tried although it would not pay, to know what it brings: free drafts behind
the model's, and the model's where free ones were taken."""


class Worth:
    """Prices of forwards and positions, and what rounds with the model's drafts bring."""

    def __init__(self) -> None:
        self._model, self._score = Line(), Line()
        self._tokens, self._seconds = Mean(), Mean()  # of rounds in which the model drafts all
        self._full = Mean()  # share of such rounds whose drafts were all kept
        self._untried = 0  # rounds since drafts behind the model's were tried
        self._led = 0  # rounds with free drafts first since one in which the model drafts all

    @property
    def known(self) -> bool:
        """Whether enough was measured to decide."""
        return self._model.rounds >= MEASURED_FIRST and self._seconds.value > 0

    def learn_model(self, drafted: int, seconds: float) -> None:
        """The model has drafted so many tokens in each row."""
        self._model.learn(drafted, seconds)

    def learn_scores(self, nodes: int, seconds: float) -> None:
        """The target has scored so many positions of each row."""
        self._score.learn(nodes, seconds)

    def learn_round(self, accepted: Tensor, width: int, nodes: int, spent: float) -> None:
        """A round in which the model drafted first although there were free drafts, `width` tokens: accepted
        drafts of its rows `[b]`, the positions that were scored, and the seconds before that. (Where a text
        has nothing to say, as at timestamps, the model's own drafts are worse than elsewhere.)"""
        kept = accepted.float()
        self._tokens.learn(float(kept.mean()) + 1)
        self._seconds.learn(spent + self._score.at(nodes))
        self._full.learn(float((kept >= width).float().mean()))

    def lead(self, chances: Tensor, valid: Tensor, model: float, gamma: int) -> Shape:
        """How many free drafts to take before, or in place of, the model's, in rows `[b]`: `chances` that
        each of their `valid` tokens is kept, and `model` that one of the model's is."""
        rows = len(valid)
        if not self.known or not rows:
            return Shape()
        self._led += 1
        if self._led >= PROBE_EVERY:
            self._led = 0
            return Shape()
        best, best_rate = Shape(), self._rate(rows)
        longest = min(int(valid.max()), gamma)
        believed = believed_tokens(chances, valid, longest).sum(0).tolist()
        tokens = float(rows)
        for width, more in enumerate(believed, start=1):
            tokens += more
            rate = tokens / self._score.at(width + 1)
            if rate > best_rate:
                best, best_rate = Shape(width), rate
        rest = gamma - longest
        if longest and rest:
            reached = float((chances ** valid.clamp_max(longest)).sum())
            for width in range(1, rest + 1):
                more = sum(model**depth for depth in range(1, width + 1))
                spent = self._model.at(width) + self._score.at(longest + width + 1)
                rate = (tokens + reached * more) / spent
                if rate > best_rate:
                    best, best_rate = Shape(longest, width), rate
        return best

    def tail_may_pay(self, chances: Tensor) -> bool:
        """Whether the first free draft behind the model's would be worth its time, in rows with these chances
        `[b]`, if a source has one."""
        self._untried += 1
        if not self.known or self._untried >= PROBE_EVERY:
            self._untried = 0
            return True
        hoped = float(chances.sum()) * self._full.value
        return hoped > self._rate(len(chances)) * self._score.slope

    def tail(self, chances: Tensor, valid: Tensor, most: int) -> int:
        """Free drafts behind the model's that are worth the time of scoring them, of `most`."""
        if not self.known or not self._untried:
            return most  # to learn what they cost and bring
        rate = self._rate(len(valid))
        believed = (believed_tokens(chances, valid, most).sum(0) * self._full.value).tolist()
        worth = [more > rate * self._score.slope for more in believed]
        return worth.index(False) if False in worth else len(worth)

    def _rate(self, rows: int) -> float:
        """Tokens per second of all rows in rounds in which the model drafts."""
        return self._tokens.value * rows / self._seconds.value


@dataclass(frozen=True)
class Shape:
    """Free drafts of a round, the `lead`, and the drafts of the model behind them; 0 and 0: not worth it."""

    lead: int = 0
    model: int = 0


def believed_tokens(chances: Tensor, valid: Tensor, width: int) -> Tensor:
    """The chance that each of `width` drafts and all before it are kept `[b, G]`."""
    column = torch.arange(width, device=valid.device)
    return torch.where(column < valid[:, None], chances[:, None] ** (column + 1), 0.0)


class Line:
    """Seconds as a straight line over a size, by least squares over the past rounds."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.rounds = 0

    def learn(self, size: int, seconds: float) -> None:
        if self.rounds > 3:
            seconds = min(seconds, OUTLIER * self.at(size))
        self.rounds += 1
        for name, value in (
            ("_weight", 1.0),
            ("_x", size),
            ("_y", seconds),
            ("_xx", size * size),
            ("_xy", size * seconds),
        ):
            setattr(self, name, DECAY * getattr(self, name) + value)

    @property
    def slope(self) -> float:
        """Seconds that one more costs; at least a small share of the mean."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        least = FREE_SHARE * mean_y
        if spread < 0.1:
            return least
        slope = (self._xy / self._weight - mean_x * mean_y) / spread
        return min(max(slope, least), mean_y / max(mean_x, 1.0))

    def at(self, size: float) -> float:
        """Seconds of this size."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        return max(mean_y + self.slope * (size - mean_x), FREE_SHARE * mean_y, LEAST)


class Mean:
    """A running mean."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def learn(self, value: float) -> None:
        self._sum, self._weight = DECAY * self._sum + value, DECAY * self._weight + 1

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0
