"""Text generation: prompts to text by speculative decoding, for unmodified language models.

Knows tokenizers and characters; nothing of audio, files or HTTP.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .generator import TextGenerator
    from .streaming import Completion, Options

_HOMES = {"Completion": "streaming", "Options": "streaming", "TextGenerator": "generator"}

__all__ = ["Completion", "Options", "TextGenerator"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
