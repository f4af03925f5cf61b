"""Zeros of a mapping are like torch's, and take memory where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forescribe.speculative.models.slot_model import zeros

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1,), (4, 0, 2)])
def test_they_are_zero_and_belong_to_the_tensor(shape, dtype):
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
