"""The graph runner: one callable per static shape, and isolation of faults by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from forescribe.speculative import Fixed, ModelDrafter, Request
from forescribe.speculative.device import Device
from forescribe.speculative.engine.admission import DraftReader
from forescribe.speculative.engine.context import EngineContext, Sizes
from forescribe.speculative.engine.scheduler import Scheduler
from forescribe.speculative.engine.slots import Inbox, SlotState
from forescribe.speculative.graphs.runner import GraphRunner
from forescribe.speculative.graphs.shapes import Shape, ShapeSet
from forescribe.speculative.requests import Mode
from forescribe.speculative.rounds.accept import RuleChoice
from forescribe.speculative.testing import TinyModel

GAMMA = 3
CPU = Device("cpu", torch.float32)


class Capturing:
    """Captures rounds on a CPU, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fn: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        fn()  # capturing runs it
        return fn


def parts(
    device: Device,
    processors: tuple[Any, ...] = (),
    capture: Capturing | None = None,
    modes: tuple[Mode, ...] = (Mode(),),
) -> tuple[EngineContext, GraphRunner]:
    """A context with two rows under way, and a runner that records the rows that fail."""
    target, drafter = TinyModel(), ModelDrafter(TinyModel(blur=0.3))
    sizes = Sizes(batch=3, max_gamma=GAMMA, ranks=0, max_tokens=None)
    context = EngineContext.allocate(device, target, drafter, sizes, (99,))
    rules = RuleChoice(None, None, drafter)
    shapes = ShapeSet.of(device, sizes.batch, context.rows.scratch, (0, GAMMA), modes)
    scheduler = Scheduler(
        context, rules, shapes, Fixed(GAMMA), DraftReader.of(context, shapes), lambda: 0.0
    )
    for n in (1, 2):
        scheduler.submit(Request((n, 3), max_new_tokens=12, tag=n))
    runner = GraphRunner(context, rules, processors, scheduler.collector.fail, shapes, capture)
    scheduler.prepare()
    return context, runner


@torch.inference_mode()
def test_each_shape_is_captured_once_and_captures_move_no_row():
    made = Capturing()
    (captured, runner), (eager, other) = parts(CPU, capture=made), parts(CPU)
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
def test_a_warm_up_runs_every_shape():
    made = Capturing()
    context, runner = parts(CPU, capture=made, modes=(Mode(), Mode(sampling=True)))
    runner.warm_up()
    slots = context.rows.scratch
    assert set(runner.captured) == {
        Shape(3, gamma, Mode(sampling=sampling), slots)
        for gamma in (0, GAMMA)
        for sampling in (False, True)
    }
    assert made.count == 4


@torch.inference_mode()
@pytest.mark.parametrize("culprit", [1, 2])
def test_a_round_that_fails_is_repeated_by_each_row_and_fails_the_culprit(culprit):
    def fails(logits, prefix):
        if bool((prefix.tokens[:, 0] == culprit).any()):
            raise RuntimeError("planted")
        return logits

    context, runner = parts(CPU, (fails,))
    states = [state for _, state in context.slots.occupied()]
    runner.run(GAMMA, Mode())
    assert [s.request.tag for _, s in context.slots.occupied()] == [3 - culprit]
    assert context.faults.count == 2  # together, and alone
    (result,) = states[culprit - 1].inbox.take()
    assert result.error.stage == "scoring" and result.tokens == ()
    assert context.counts.rounds == 1  # of the other row
    assert int(context.rows.lengths[2 - culprit]) > 2


def test_a_waiting_state_has_no_errors():
    state = SlotState(Request((1,)), Inbox())
    assert not state.cancelled and state.error is state.draft_error is None
