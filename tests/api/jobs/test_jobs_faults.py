"""The most important faults in short: real processes, SIGKILL, and networks that fail."""

from __future__ import annotations

import pytest

from tests.faults.catalogue import run


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["F1", "F4", "F11", "F19", "F20", "F22", "F23"])
def test_jobs_survive(name) -> None:
    row = run(name, long=False, seed=0)
    assert row.held == "yes", row.what


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["F21", "F24", "F25", *(f"F{n}" for n in range(27, 34))])
def test_replicas_and_workers_survive(name) -> None:
    """On PostgreSQL, and with objects. F26, a cut of ten minutes, is run by hand."""
    row = run(name, long=False, seed=0)
    if row.held == "not run":
        pytest.skip(row.what)
    assert row.held == "yes", row.what
