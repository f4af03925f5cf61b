"""The speculative core: batched, ragged, static-shape speculative decoding of token ids.

Knows token ids and tensors; nothing of audio, text, files or HTTP. The public names, as in
`from forescribe.speculative import Engine`, load on first use, as they import torch. Letters of shapes
are defined in `speculative.types`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import Device, choose
    from .drafters.model_drafter import ModelDrafter
    from .drafters.ngram import NgramDrafter
    from .engine.engine import Engine
    from .engine.schedule import Fixed, Goodput
    from .requests import Probe, Request, Result, Sampling, Source, Stats

_HOMES = {
    "Device": "device",
    "Engine": "engine.engine",
    "Fixed": "engine.schedule",
    "Goodput": "engine.schedule",
    "ModelDrafter": "drafters.model_drafter",
    "NgramDrafter": "drafters.ngram",
    "Probe": "requests",
    "Request": "requests",
    "Result": "requests",
    "Sampling": "requests",
    "Source": "requests",
    "Stats": "requests",
    "choose": "device",
}

__all__ = [
    "Device",
    "Engine",
    "Fixed",
    "Goodput",
    "ModelDrafter",
    "NgramDrafter",
    "Probe",
    "Request",
    "Result",
    "Sampling",
    "Source",
    "Stats",
    "choose",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
