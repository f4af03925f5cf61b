"""An engine on another card than the current one, on the double, which notes the card of every call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forescribe.speculative.device import Device, Stopwatch
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.test_catch_up import tokens
from tests.speculative.graphs.workloads import tiny_engine, tiny_requests

SECOND = CudaOnCpu("cuda", torch.float32, 1)


def test_all_that_an_engine_launches_goes_to_its_own_card(cuda: FakeCuda) -> None:
    cuda.log.clear()
    engine = tiny_engine(SECOND, 3)
    for name in ("prefill", "score"):
        real = getattr(engine.target, name)

        def noted(*args: Any, real: Any = real, name: str = name, **options: Any) -> Any:
            cuda.note(name)
            return real(*args, **options)

        setattr(engine.target, name, noted)
    work = [r for r in tiny_requests(8) if not r.ranks]
    with running(cuda, engine):
        engine.warm_up()
        with cuda.reads_allowed():
            assert not engine.rows.active.any() and (engine.rows.lengths == 1).all()
        assert tokens(engine, work) == tokens(tiny_engine(None, 3), work)
        with cuda.reads_allowed():
            assert engine.stats.seconds["prefill"] > 0
        engine.device.synchronize()
    assert {what for what, _ in cuda.log} == {
        *("stream", "current stream", "wait", "wait for event", "capture", "replay", "pool"),
        *("event", "record", "synchronize", "synchronize event", "prefill", "score"),
    }
    assert not [what for what, card in cuda.log if card != 1]
    assert cuda.card == 0  # as it was


def test_a_stopwatch_of_the_pipeline_records_on_its_own_card(cuda: FakeCuda) -> None:
    """The transcriber's is started outside of the engine's steps."""
    cuda.log.clear()
    watch = Stopwatch(SECOND)
    watch.start()
    watch.mark("encode")
    assert watch.seconds == {"encode": 0.002}
    assert {card for _, card in cuda.log} == {1} and cuda.card == 0


@pytest.mark.parametrize("kind", ["cuda", "hpu"])
def test_a_guard_gives_the_current_card_back_whatever_happens(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    module = {name: getattr(torch.cuda, name) for name in cuda.names}
    monkeypatch.setattr(torch, "hpu", SimpleNamespace(**module), raising=False)
    on = CudaOnCpu(kind, torch.float32, 1)
    with pytest.raises(ZeroDivisionError), on.guard():
        with on.guard():
            assert cuda.card == 1
        assert cuda.card == 1
        1 / 0  # noqa: B018
    assert cuda.card == 0
    cuda.log.clear()
    on.synchronize()
    assert cuda.log == [("synchronize", 1)]


@pytest.mark.parametrize("on", [Device("cpu", torch.float32), CudaOnCpu("cuda", torch.float32)])
def test_without_an_index_the_current_card_stays(cuda: FakeCuda, on: Device) -> None:
    for card in (1, 0):
        torch.cuda.set_device(card)
        with on.guard():
            assert cuda.card == card
