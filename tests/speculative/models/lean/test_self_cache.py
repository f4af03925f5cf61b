"""What a cache remembers of its forwards must not become a condition of compiled ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.slot_model import SelfCache
from tests.speculative.models.whispers import SOT, whisper


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


@pytest.mark.nightly
def test_a_larger_forward_compiles_no_smaller_one_again() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    decoder = LeanWhisperDecoder(whisper())
    decoder.allocate(1, 40)
    decoder.cache._tracked = False  # as on a device: these tensors are on the CPU
    tokens, start = torch.full((1, 3), SOT), torch.tensor([4])

    @torch.compile(backend=backend, fullgraph=True, dynamic=False)
    def score(drafted: torch.Tensor) -> torch.Tensor:
        return decoder.score(drafted, start, reach=40).logits

    with torch.inference_mode():
        for nodes in (2, 3, 2, 3):
            score(tokens[:, :nodes])
    assert len(graphs) == 2
