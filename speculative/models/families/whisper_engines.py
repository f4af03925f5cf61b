"""The engines that run Whisper's decoder, in order of preference.

Knows the adapters and when each can run a model; nothing of how they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError
from ...native.native_whisper import NativeWhisperDecoder, unsupported
from ...native.packing.shared_weights import forget
from ..lean.coverage import whisper_gap
from ..lean.lean_whisper_decoder import LeanWhisperDecoder
from ..quantized.int8_linear import is_int8
from ..slot_model import SlotModel
from ..whisper_decoder import WhisperDecoder, adapter_difference
from .model_engine import Form, ModelEngine, build, int8_engine


def native_gap(model: Any) -> str | None:
    """Why a Whisper has no native form here: its weights are read as those of the lean one."""
    return whisper_gap(model) or unsupported(model)


FORMS = (
    Form(ModelEngine.NATIVE, native_gap, NativeWhisperDecoder),
    Form(ModelEngine.LEAN, whisper_gap, LeanWhisperDecoder),
    Form(ModelEngine.MODULES, lambda model: None, WhisperDecoder),
)


def whisper_decoder(
    model: Any,
    pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
    *,
    sources: int | None = None,
    engine: ModelEngine = ModelEngine.AUTO,
    stored: torch.dtype | None = None,
    listed: Sequence[int] | None = None,
) -> SlotModel:
    """The decoder of a Whisper model on an engine; arguments as `WhisperDecoder`. Native kernels store
    weights and caches in `stored`, by default the model's dtype. Raises LoadError
    for an engine that cannot run it."""

    def make(form: Form) -> SlotModel:
        if form.engine is ModelEngine.NATIVE and stored is torch.bfloat16:
            return NativeWhisperDecoder(
                model, pick, sources=sources, storage="bfloat16", listed=listed
            )
        return form.adapter(model, pick, sources=sources, listed=listed)

    return build(FORMS, model, engine, make)


def checked_engine(
    model: Any, asked: ModelEngine = ModelEngine.AUTO, *, draft: bool = False
) -> ModelEngine:
    """The engine that runs a Whisper, after a comparison with the model's plain forward. Raises LoadError
    where the engine that was asked for, or every engine, would compute other logits, and for a target in
    8-bit integers as `int8_engine`; a `draft` may be computed by any engine."""
    if is_int8(model) and not draft:
        asked = int8_engine(asked, native_gap(model))

    def compare(form: Form) -> ModelEngine:
        problem = adapter_difference(model, partial(form.adapter, model))
        if problem is not None:
            forget(model)
            raise LoadError(problem)
        return form.engine

    return build(FORMS, model, asked, compare)
