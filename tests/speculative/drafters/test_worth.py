"""Which drafts of a cascade pay, by prices that are given."""

from __future__ import annotations

import pytest
import torch

from forescribe.speculative.drafters.worth import Shape, Worth, believed_tokens


def priced(*, model: float, score: float = 1.0, position: float = 0.1) -> Worth:
    """The model's drafts take `model` seconds each, of which five in six are kept."""
    worth = Worth()
    for width in (1, 4, 8, 2, 6):
        worth.learn_model(width, model * width)
        worth.learn_scores(width + 1, score + position * width)
        worth.learn_round(torch.tensor([width]), width, width + 1, model * width)
    return worth


def lead(worth: Worth, chance: float, valid: list[int], own: float = 0.8, gamma: int = 8) -> Shape:
    return worth.lead(torch.full((len(valid),), chance), torch.tensor(valid), own, gamma)


def test_a_sure_text_is_taken_and_the_model_goes_on_where_it_ends() -> None:
    assert lead(priced(model=0.3), 0.99, [8]) == Shape(8)
    assert lead(priced(model=0.02), 0.99, [3]).lead == 3
    assert lead(priced(model=0.02), 0.99, [3]).model > 0


def test_an_expensive_model_is_not_asked_to_go_on() -> None:
    assert lead(priced(model=3.0), 0.99, [3]) == Shape(3)


@pytest.mark.parametrize(("chance", "valid"), [(0.05, [8]), (0.99, [0]), (0.99, [])])
def test_without_good_free_drafts_the_model_drafts(chance: float, valid: list[int]) -> None:
    assert lead(priced(model=0.02), chance, valid) == Shape()


def test_nothing_is_decided_before_it_was_measured() -> None:
    assert lead(Worth(), 0.99, [8]) == Shape()


def test_all_together_are_no_more_than_gamma() -> None:
    for valid in ([1], [5, 2], [8, 8], [12, 3]):
        shape = lead(priced(model=0.02), 0.95, valid, gamma=6)
        assert shape.lead + shape.model <= 6


def test_believed_tokens_are_those_whose_predecessors_are_kept() -> None:
    found = believed_tokens(torch.tensor([0.5, 0.9]), torch.tensor([2, 0]), 3)
    assert found.tolist() == [[0.5, 0.25, 0.0], [0.0, 0.0, 0.0]]


def test_one_round_in_sixteen_is_the_models_so_that_its_worth_is_known() -> None:
    worth = priced(model=0.3)
    shapes = [lead(worth, 0.99, [8]) for _ in range(32)]
    assert shapes.count(Shape()) == 2
    assert shapes.count(Shape(8)) == 30
