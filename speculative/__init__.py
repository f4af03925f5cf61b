"""The speculative core: batched, ragged, static-shape speculative decoding of token ids.

`from speculative import Engine` is the entrance; importing it takes torch along, so the names load
on first use. Letters of shapes are defined in `speculative.types`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speculative.accept import GreedyMatch, TokenRejection
    from speculative.device import Device, choose
    from speculative.drafters.model import ModelDrafter
    from speculative.drafters.ngram import NgramDrafter
    from speculative.engine import Engine
    from speculative.schedule import Fixed, Goodput
    from speculative.stats import Stats
    from speculative.text import TextGenerator
    from speculative.types import Guarantee, Probe, Request, Result, Sampling, Source

_HOMES = {
    "Device": "device",
    "Engine": "engine",
    "Fixed": "schedule",
    "Goodput": "schedule",
    "GreedyMatch": "accept",
    "Guarantee": "types",
    "ModelDrafter": "drafters.model",
    "NgramDrafter": "drafters.ngram",
    "Probe": "types",
    "Request": "types",
    "Result": "types",
    "Sampling": "types",
    "Source": "types",
    "Stats": "stats",
    "TextGenerator": "text",
    "TokenRejection": "accept",
    "choose": "device",
}

__all__ = [
    "Device",
    "Engine",
    "Fixed",
    "Goodput",
    "GreedyMatch",
    "Guarantee",
    "ModelDrafter",
    "NgramDrafter",
    "Probe",
    "Request",
    "Result",
    "Sampling",
    "Source",
    "Stats",
    "TextGenerator",
    "TokenRejection",
    "choose",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'speculative' has no attribute {name!r}")
    return getattr(importlib.import_module(f"speculative.{_HOMES[name]}"), name)
