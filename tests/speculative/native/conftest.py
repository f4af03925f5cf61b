"""Kernels of one instruction set after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forescribe.speculative.native.library import load, missing


@pytest.fixture(params=[] if missing() else load().instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    load().choose(request.param)
    yield request.param
    load().choose(None)
