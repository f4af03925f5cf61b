"""What a cache remembers of its forwards must not become a condition of compiled ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative.models.caches import SelfCache
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.requests import Mode
from tests.speculative.graphs.test_hpu_graphs import HPU
from tests.speculative.graphs.workloads import whisper_engine


def cache(device: str) -> SelfCache:
    return SelfCache(
        layers=2,
        batch=3,
        heads=2,
        slots=40,
        size=4,
        dtype=torch.float32,
        device=torch.device(device),
    )


def test_elsewhere_than_on_a_cpu_a_prompt_clears_every_slot_behind_it() -> None:
    made, other = cache("cpu"), cache("meta")
    for each in (made, other):
        each.readable(3, 16, 4)
    assert made._written == 20 and other._written == 40
    assert (other._reach, other._nodes) == (0, 0)


def test_a_larger_forward_compiles_no_smaller_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PT_HPU_LAZY_MODE", raising=False)
    graphs: list[Any] = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda fn, **options: real(fn, **options | {"backend": backend})
    )
    torch._dynamo.reset()
    engine = whisper_engine(HPU, 1, 2, decoder=LeanWhisperDecoder)
    for adapter in (engine.target, engine.drafter.model):  # type: ignore[union-attr]
        adapter.cache._tracked = False  # the double's tensors are on the CPU
    runner = engine._runner
    with torch.inference_mode():
        for gamma in (1, 2, 1, 2):
            runner._launch(runner._shapes.pick(1, gamma, Mode(), 1))()
    assert len(graphs) == 2
