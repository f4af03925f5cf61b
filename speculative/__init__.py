"""The speculative core: batched, ragged, static-shape speculative decoding of token ids.

Knows token ids and tensors; nothing of audio, text, files or HTTP. The public names, as in
`from forescribe.speculative import Engine`, load on first use, as they import torch. Letters of shapes
are defined in `speculative.types`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import Device as Device
    from .device import choose as choose
    from .drafters.model_drafter import ModelDrafter as ModelDrafter
    from .drafters.ngram import NgramDrafter as NgramDrafter
    from .engine.engine import Engine as Engine
    from .engine.schedule import Fixed as Fixed
    from .engine.schedule import Goodput as Goodput
    from .requests import Probe as Probe
    from .requests import Request as Request
    from .requests import Result as Result
    from .requests import Sampling as Sampling
    from .requests import Source as Source
    from .requests import Stats as Stats

_HOMES = {
    "device": ("Device", "choose"),
    "drafters.model_drafter": ("ModelDrafter",),
    "drafters.ngram": ("NgramDrafter",),
    "engine.engine": ("Engine",),
    "engine.schedule": ("Fixed", "Goodput"),
    "requests": ("Probe", "Request", "Result", "Sampling", "Source", "Stats"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
