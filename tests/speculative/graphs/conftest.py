"""The doubles of devices, as fixtures."""

from __future__ import annotations

import pytest

from tests.speculative.graphs.fake_cuda import FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)
