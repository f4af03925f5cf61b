"""The graph runner: one callable per static shape, and isolation of faults by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Fixed, ModelDrafter, Request
from forescribe.speculative.engine import engine as engines
from forescribe.speculative.engine.runner import RoundRunner
from forescribe.speculative.engine.shapes import Shape
from forescribe.speculative.engine.shared import Shared
from forescribe.speculative.requests import Mode
from forescribe.speculative.testing import TinyModel

GAMMA = 3


class Capturing:
    """Captures rounds on a CPU, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fn: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        fn()  # capturing runs it
        return fn


def parts(
    monkeypatch: pytest.MonkeyPatch,
    processors: tuple[Any, ...] = (),
    capture: Capturing | None = None,
    modes: tuple[Mode, ...] = (Mode(),),
) -> tuple[Shared, RoundRunner]:
    """What an engine with two rows under way shares, and its runner."""
    monkeypatch.setattr(engines, "capture_for", lambda device: capture)
    drafter = ModelDrafter(TinyModel(blur=0.3))
    made = Engine(
        TinyModel(),
        drafter,
        batch=3,
        eos=(99,),
        schedule=Fixed(GAMMA),
        processors=processors,
        modes=modes,
    )
    for n in (1, 2):
        made.submit(Request((n, 3), max_new_tokens=12, tag=n))
    made._admit()
    assert made._reader is not None
    made._reader.read()
    return made._shared, made._runner


@torch.inference_mode()
def test_each_shape_is_captured_once_and_captures_move_no_row(monkeypatch):
    made = Capturing()
    (captured, runner), (eager, other) = parts(monkeypatch, capture=made), parts(monkeypatch)
    for gamma in (GAMMA, GAMMA, 0, GAMMA, 0):
        runner.run(gamma, Mode())
        other.run(gamma, Mode())
        for name, tensor in captured.rows.tensors().items():
            left, right = (
                t[:, :-1] if t.dim() > 1 else t for t in (tensor, eager.rows.tensors()[name])
            )
            assert torch.equal(left, right), name
    assert made.count == 2
    assert captured.counts == eager.counts and captured.counts.rounds == 5
    assert captured.counts.draft_forwards == 3 * GAMMA + 1  # and one prefill


@torch.inference_mode()
def test_a_warm_up_runs_every_shape(monkeypatch):
    made = Capturing()
    context, runner = parts(monkeypatch, capture=made, modes=(Mode(), Mode(sampling=True)))
    runner.warm_up()
    slots = context.rows.scratch
    assert set(runner.captured) == {
        Shape(3, gamma, Mode(sampling=sampling), slots)
        for gamma in (GAMMA,)
        for sampling in (False, True)
    }
    assert made.count == 2


@torch.inference_mode()
@pytest.mark.parametrize("culprit", [1, 2])
def test_a_round_that_fails_is_repeated_by_each_row_and_fails_the_culprit(culprit, monkeypatch):
    def fails(logits, prefix):
        if bool((prefix.tokens[:, 0] == culprit).any()):
            raise RuntimeError("planted")
        return logits

    context, runner = parts(monkeypatch, (fails,))
    states = list(context.slots.occupied.values())
    runner.run(GAMMA, Mode())
    assert [s.request.tag for s in context.slots.occupied.values()] == [3 - culprit]
    assert context.faults.count == 2  # together, and alone
    (result,) = states[culprit - 1].inbox.take()
    assert result.error.stage == "scoring" and result.tokens == ()
    assert context.counts.rounds == 1  # of the other row
    assert int(context.rows.lengths[2 - culprit]) > 2
