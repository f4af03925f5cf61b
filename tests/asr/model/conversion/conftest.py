"""Conversions go into a cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FORESCRIBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"
