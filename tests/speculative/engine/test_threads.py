"""Threads of a round by measurement, with a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Fixed, ModelDrafter, NgramDrafter, Request
from forescribe.speculative.engine.runner import PAIRS, fastest
from tests.speculative.tiny import TinyModel


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class World:
    """Rounds that take a time by their number of threads; every second one is disturbed."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.now, self.runs = seconds, 0.0, [0, 0, 0]

    def clock(self) -> float:
        return self.now

    def run(self) -> None:
        count = torch.get_num_threads()
        self.runs[count] += 1
        self.now += self.seconds[count] * (1 + 5 * (self.runs[count] % 2))


@pytest.mark.parametrize(
    ("one", "two", "limit", "pairs"),
    [(1, 2, 1, 2), (2, 1, None, 2), (9, 10, 1, PAIRS), (99, 100, None, PAIRS)],
)
def test_the_faster_number_is_chosen_and_all_where_they_are_alike(one, two, limit, pairs) -> None:
    world = World({1: one * 1e-5, 2: two * 1e-5})
    assert fastest(world.run, world.clock) == limit
    assert world.runs == [0, pairs, pairs + 1]  # few where one is far slower


class Watching(TinyModel):
    """Records the number of threads of its forwards."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.prompts: list[int] = []
        self.rounds: list[int] = []

    def prefill(self, *args: Any) -> Any:
        self.prompts.append(torch.get_num_threads())
        return super().prefill(*args)

    def score(self, *args: Any, **options: Any) -> Any:
        self.rounds.append(torch.get_num_threads())
        return super().score(*args, **options)


def decoded(engine: Engine) -> dict[Any, tuple[int, ...]]:
    work = [Request(tuple(range(1, n)), tag=n) for n in range(2, 8)]
    return {r.request.tag: r.tokens for r in engine.run(work)}


@pytest.mark.parametrize("drafter", [None, ModelDrafter, NgramDrafter])
def test_an_engine_keeps_to_its_choice_and_writes_the_same(drafter) -> None:
    def engine(target: TinyModel) -> Engine:
        made = (
            ModelDrafter(TinyModel(blur=0.3)) if drafter is ModelDrafter else drafter and drafter()
        )
        return Engine(target, made, batch=2, eos=(10,), schedule=Fixed(3 if made else 0))

    expected, target = decoded(engine(TinyModel())), Watching()
    made = engine(target)
    made.choose_threads()
    assert set(target.rounds) == {1, 2}
    assert made.stats.rounds == made.stats.emitted == made.stats.faults == 0
    for limit in (1, None):
        target.rounds.clear()
        made.threads = limit
        assert decoded(made) == expected
        assert set(target.rounds) == {limit or 2}
    assert set(target.prompts) == {2}
    assert torch.get_num_threads() == 2


def test_a_model_that_fails_does_so_in_a_request_not_in_the_measurement() -> None:
    class Failing(TinyModel):
        def score(self, *args: Any, **options: Any) -> Any:
            raise ValueError("no")

    engine = Engine(Failing(), batch=1, eos=(10,))
    engine.choose_threads()
    assert engine.threads is None and engine.stats.faults == 1
    (result,) = engine.run([Request((1,))])
    assert "no" in str(result.error)
