"""Needs: packages of the extra `bench`, which nothing else here imports."""

from __future__ import annotations

from importlib.util import find_spec

INSTALL = "run `scripts/setup bench` in forescribe's folder"

PACKAGES = {"jiwer": "jiwer", "faster_whisper": "faster-whisper", "ctranslate2": "ctranslate2"}
"""As they are imported, and as they are installed."""


def missing(*modules: str) -> str | None:
    """The first package of these that is not installed, as an index knows it."""
    return next((PACKAGES[name] for name in modules if find_spec(name) is None), None)
