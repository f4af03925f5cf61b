"""How wide the rounds of n-gram drafts are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor
from torch.nn.functional import one_hot

from forescribe.speculative import Engine, Fixed
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.requests import Request
from forescribe.speculative.testing import TinyModel
from forescribe.speculative.types import Scores

GAMMA = 5


class Counting(TinyModel):
    """After every token it writes the next number; `widths` has the positions that each round scored."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def score(self, tokens: Tensor, start: Tensor, **how: object) -> Scores:
        self.widths.append(tokens.shape[1])
        scores = super().score(tokens, start, **how)  # type: ignore[arg-type]
        following = (tokens + 1) % self.vocab_size
        return replace(scores, logits=9.0 * one_hot(following, self.vocab_size).float())


@pytest.mark.parametrize("early", [False, True])
def test_a_round_is_as_wide_as_its_longest_match(early: bool) -> None:
    """Nothing repeats but what one prompt has of the next numbers."""
    model = Counting()
    drafter = NgramDrafter(hint_slots=1, early=early)
    engine = Engine(model, drafter, batch=2, eos=(), schedule=Fixed(GAMMA))
    work = [
        Request((1,), max_new_tokens=8, tag="nothing"),
        Request((1, 2, 3, 9, 1), max_new_tokens=8, tag="two"),
    ]
    texts = {r.request.tag: r.tokens for r in engine.run(work)}
    assert texts == dict.fromkeys(("nothing", "two"), (2, 3, 4, 5, 6, 7, 8, 9))
    if early:
        assert model.widths[0] == 1 + 4 and set(model.widths[1:]) == {1}
    else:
        assert set(model.widths) == {1 + GAMMA}
    assert engine.stats.accepted == 2


def test_a_match_of_one_row_in_three_does_not_widen_the_round() -> None:
    model = Counting()
    drafter = NgramDrafter(hint_slots=1, early=True)
    engine = Engine(model, drafter, batch=3, eos=(), schedule=Fixed(GAMMA))
    prompts = ((1,), (1,), (1, 2, 3, 9, 1))
    work = [Request(p, max_new_tokens=8, tag=i) for i, p in enumerate(prompts)]
    assert {r.tokens for r in engine.run(work)} == {(2, 3, 4, 5, 6, 7, 8, 9)}
    assert set(model.widths) == {1} and engine.stats.drafted == 0
