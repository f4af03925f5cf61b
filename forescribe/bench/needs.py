"""The packages of the extra `bench`, which no other part of the package imports.

Knows their names and whether they are installed; loads none of them.
"""

from __future__ import annotations

from importlib.util import find_spec

from forescribe.asr.installing import how_to_install

INSTALL = how_to_install("bench")

PACKAGES = {"jiwer": "jiwer", "faster_whisper": "faster-whisper", "ctranslate2": "ctranslate2"}
"""Module name to package name."""


def missing(*modules: str) -> str | None:
    """Return the package name of the first of these modules that is not installed."""
    return next((PACKAGES[name] for name in modules if find_spec(name) is None), None)
