"""Conversions go into a cache of the test's own; models of random numbers that they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from forescribe.asr.model.conversion import converting
from tests.asr.model import folders

HEAD = 8
"""Width of an attention head in the models of these tests."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FORESCRIBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


@pytest.fixture(autouse=True)
def small_heads(request, monkeypatch) -> None:
    if request.node.get_closest_marker("weights") is None:
        monkeypatch.setattr(converting, "HEAD", HEAD)


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> Path:
    return folders.write(tmp_path_factory.mktemp("original") / "whisper")
