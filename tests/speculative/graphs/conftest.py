"""The doubles of devices, as fixtures."""

from __future__ import annotations

import pytest

from tests.speculative.graphs.fake_cuda import FakeCuda
from tests.speculative.graphs.fake_hpu import Compiled


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return Compiled.installed(monkeypatch)
