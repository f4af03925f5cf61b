"""What a cache remembers of its forwards must not become a condition of compiled ones; its zeros take memory
where they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.slot_model import SelfCache, zeros
from tests.speculative.models.whispers import SOT, whisper

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


def cache(device: str) -> SelfCache:
    return SelfCache((2, 3, 2, 40, 4), torch.float32, torch.device(device))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1,), (4, 0, 2)])
def test_zeros_of_a_mapping_belong_to_the_tensor(shape, dtype):
    made = zeros(shape, dtype, CPU)
    assert made.equal(torch.zeros(shape, dtype=dtype)) and made.dtype == dtype
    part = made[:1]
    del made
    part.fill_(1)  # a view keeps the mapping
    assert part.equal(torch.ones_like(part))


def own() -> int:
    """Bytes of this process that are no file's."""
    if not STATUS.is_file():
        pytest.skip("only Linux tells a process's memory")
    line = next(x for x in STATUS.read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_only_what_is_written_takes_memory():
    before = own()
    rows = zeros((64, 1 << 20), torch.float32, CPU)  # 256 MB
    assert own() - before < 64 << 20
    rows[0] = 1
    assert own() - before < 64 << 20
    rows.fill_(1)
    assert own() - before > 192 << 20


@pytest.mark.parametrize("size", [1 << 50, 1 << 70])
def test_more_than_a_machine_has_is_a_lack_of_memory(size):
    with pytest.raises(MemoryError, match=f"a cache of {size} bytes"):
        zeros((size,), torch.uint8, CPU)
