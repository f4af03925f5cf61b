"""The number format of a draft, which may differ from its target's: it changes no token, only speed.

Knows devices and whether the native kernels can be used; nothing of models.
"""

from __future__ import annotations

import torch

from ...device import Device, bfloat16_units, choose
from ...native.library import missing
from .model_engine import ModelEngine


def draft_device(target: Device, name: str | None, engine: ModelEngine) -> Device:
    """The device of a target's draft, in the number format `name`: a dtype, or `int8` for matrices of 8-bit
    integers in a draft that is otherwise in the format of `auto`.

    None and `auto` take bfloat16 beside float32 where the processor multiplies bfloat16 and native kernels
    run the draft, which halves what a draft reads from memory; the target's format elsewhere. Raises
    DeviceError for an unknown name.
    """
    if name not in (None, "auto", "int8"):
        return choose(target.name, name)
    native = engine in (ModelEngine.AUTO, ModelEngine.NATIVE) and missing() is None
    halved = target.kind == "cpu" and target.stored is torch.float32 and bfloat16_units()
    dtype = "bfloat16" if native and halved else str(target.stored).removeprefix("torch.")
    return choose(target.name, dtype, name if name == "int8" else "none")
