"""The engines that run causal LMs, in order of preference.

Knows the adapters and when each can run a model; nothing of how they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import LoadError
from ...native.native_causal import NativeCausalDecoder, native_causal_gap
from ...native.packing.shared_weights import forget
from ..causal_lm import CausalDecoder
from ..lean.coverage import causal_gap
from ..lean.lean_causal_decoder import LeanCausalDecoder
from ..quantized.int8_linear import is_int8
from ..slot_model import SlotModel
from .model_engine import Form, ModelEngine, build, int8_engine

FORMS = (
    Form(ModelEngine.NATIVE, native_causal_gap, NativeCausalDecoder),
    Form(ModelEngine.LEAN, causal_gap, LeanCausalDecoder),
    Form(ModelEngine.MODULES, lambda model: None, CausalDecoder),
)


def causal_decoder(
    model: Any,
    positions: int | None = None,
    vocab: int | None = None,
    *,
    engine: ModelEngine = ModelEngine.AUTO,
    stored: torch.dtype | None = None,
    listed: Sequence[int] | None = None,
) -> SlotModel:
    """A causal LM on an engine; arguments and errors as `causal_model.CausalModel`. Native kernels store
    weights and caches in `stored`, by default the model's dtype. The first decoder
    of a model compares itself with the model's plain forward."""

    def make(form: Form) -> SlotModel:
        if form.engine is ModelEngine.NATIVE:
            try:
                return form.adapter(model, positions, vocab, stored=stored, listed=listed)
            except LoadError:
                forget(model)
                raise
        return form.adapter(model, positions, vocab, listed=listed)

    return build(FORMS, model, engine, make)


def checked_engine(
    model: Any,
    asked: ModelEngine = ModelEngine.AUTO,
    *,
    stored: torch.dtype | None = None,
    draft: bool = False,
) -> ModelEngine:
    """The engine that runs a causal LM, after a comparison with the model's plain forward; `stored` as of
    `causal_decoder`. Raises LoadError as `CausalModel`, and for a target in 8-bit integers as `int8_engine`;
    a `draft` may be computed by any engine."""
    if is_int8(model) and not draft:
        asked = int8_engine(asked, native_causal_gap(model))
    return ModelEngine(causal_decoder(model, engine=asked, stored=stored).engine)
