"""The set of shapes is closed: whichever requests meet in a round, its shape was known before the first."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Request
from forescribe.speculative.errors import RequestError
from forescribe.speculative.requests import Mode, Sampling
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.test_hpu_graphs import HPU, Compiled
from tests.speculative.graphs.workloads import mixed_requests, tiny_engine

CUDA = CudaOnCpu("cuda", torch.float32)
SAMPLED, RANKED, PENALISED = Mode(sampling=True), Mode(ranked=True), Mode(penalised=True)
APART = (Mode(), Mode(sampling=True, bounded=True), RANKED, PENALISED)
"""Modes of which none covers a sampled and a ranked request together."""


def texts(results: Any) -> dict[Any, Any]:
    found = {r.request.tag: r for r in results}
    assert all(r.error is None for r in found.values())
    return {tag: (r.tokens, r.ranked) for tag, r in found.items()}


def test_requests_of_two_modes_meet_in_one_that_was_compiled_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", Compiled())
    engine = tiny_engine(HPU, 3, modes=APART)
    engine.warm_up()
    captured, work = engine.captured, mixed_requests(16)
    expected = texts(tiny_engine(None, 3).run(work))  # sampled texts depend on gamma
    assert texts(engine.run(work)) == expected
    assert engine.captured == captured and not engine.faults


@pytest.mark.failing_drafts
def test_a_row_whose_drafter_failed_runs_shapes_of_the_set(cuda: FakeCuda) -> None:
    engine = tiny_engine(CUDA, 3)
    work = [Request((1 + n, 2), max_new_tokens=20, tag=n) for n in range(8)]
    expected = texts(tiny_engine(None, 3).run(work))

    def fails(rows: Any, tokens: Any, requests: Any, taps: Any) -> None:
        if any(request.tag == 2 for request in requests):
            raise RuntimeError("planted")
        real(rows, tokens, requests, taps)

    real, engine.drafter.admit = engine.drafter.admit, fails  # type: ignore[union-attr, method-assign]
    with running(cuda, engine):
        assert texts(engine.run(work)) == expected
    assert {shape.gamma for shape in engine.captured} == {0, 3}
    axes, captured = engine._texts.runner._shapes, engine.captured
    assert {shape.rows for shape in captured} <= {*axes.batches}
    assert {shape.reach for shape in captured} <= {*axes.reaches}


def test_a_mode_that_no_mode_covers_is_refused() -> None:
    engine = tiny_engine(CUDA, 3, modes=(Mode(), RANKED))
    with pytest.raises(RequestError, match="no mode of this engine covers"):
        engine.submit(Request((1,), temperature=0.5))
    engine.submit(Request((1,), sampling=Sampling(top_k=2)))  # bounds at temperature 0: greedy
