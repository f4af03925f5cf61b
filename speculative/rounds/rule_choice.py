"""Which acceptance rule a round uses, and the guarantee that follows from it.

Knows rules and drafters; nothing of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..drafts import Distribution
from ..protocols import Drafter, Rule
from ..requests import Guarantee
from .accept import GreedyMatch, TokenRejection


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
