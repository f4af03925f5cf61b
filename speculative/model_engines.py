"""Which engine runs a model's forward: the names, and how one is chosen.

    modules  transformers' own modules: every family, and the reference of the others
    lean     short functions over the same weights (`models/lean`): Whisper and Llama-like models
    native   compiled kernels over the same weights (`native/`): both on CPUs, where they were compiled

All engines compute the same tokens in float32. The choice is made once, before a model decodes; adapters
have the name in `engine`. A target in 8-bit integers runs on the native engine alone (`int8_engine`).
Whisper's encoder is native where the decoder is. A draft may have another number format than its target
(`draft_device`): that changes no token, only speed. Knows the adapters and when each can run a model;
nothing of how they compute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from .device import Device, bfloat16_units, choose
from .errors import LoadError
from .models.lean import LeanCausalDecoder, LeanWhisperDecoder
from .models.plain import PlainWhisper
from .models.quantized import int8_encoder, is_int8
from .models.slot_model import SlotModel
from .models.weights import causal_gap, encoder_gap, encoder_of, whisper_gap
from .native.adapters import (
    NativeCausalDecoder,
    NativeEncoder,
    NativeWhisperDecoder,
    native_causal_gap,
    unsupported,
    unsupported_encoder,
)
from .native.library import missing
from .types import Embedded

log = logging.getLogger(__name__)


class ModelEngine(StrEnum):
    """What runs a model's forward; `AUTO` takes the fastest one that has a form of the model."""

    AUTO = "auto"
    NATIVE = "native"
    LEAN = "lean"
    MODULES = "modules"

    @classmethod
    def of(cls, name: str | None) -> ModelEngine:
        """The engine of a name; None is `AUTO`. Raises LoadError, with the known names."""
        try:
            return cls(name or cls.AUTO)
        except ValueError:
            known = ", ".join(cls)
            raise LoadError(f"there is no engine {name!r}; known: {known}") from None


@dataclass(frozen=True)
class Form:
    """How one engine runs a family: why it cannot run a model (None if it can), and its adapter."""

    engine: ModelEngine
    gap: Callable[[Any], str | None]
    adapter: Callable[..., SlotModel]


def native_gap(model: Any) -> str | None:
    """Why a Whisper has no native form here: its weights are read as those of the lean one."""
    return whisper_gap(model) or unsupported(model)


def _of_modules(name: str) -> Callable[..., SlotModel]:
    """An adapter of `modules`, which is imported where it is built: transformers' modelling takes seconds."""

    def adapter(*args: Any, **kwargs: Any) -> SlotModel:
        from .models import modules

        built: SlotModel = getattr(modules, name)(*args, **kwargs)
        return built

    return adapter


WHISPER_FORMS = (
    Form(ModelEngine.NATIVE, native_gap, NativeWhisperDecoder),
    Form(ModelEngine.LEAN, whisper_gap, LeanWhisperDecoder),
    Form(
        ModelEngine.MODULES,
        lambda m: "it was not read by transformers" if isinstance(m, PlainWhisper) else None,
        _of_modules("WhisperDecoder"),
    ),
)

CAUSAL_FORMS = (
    Form(ModelEngine.NATIVE, native_causal_gap, NativeCausalDecoder),
    Form(ModelEngine.LEAN, causal_gap, LeanCausalDecoder),
    Form(ModelEngine.MODULES, lambda model: None, _of_modules("CausalDecoder")),
)


def whisper_decoder(
    model: Any,
    pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
    *,
    engine: ModelEngine = ModelEngine.AUTO,
    stored: torch.dtype | None = None,
    listed: Sequence[int] | None = None,
) -> SlotModel:
    """The decoder of a Whisper model on an engine; arguments as `WhisperModel`. Raises LoadError for an
    engine that cannot run it."""
    form = form_of(WHISPER_FORMS, model, engine)
    return form.adapter(model, pick, stored=stored, listed=listed)


def causal_decoder(
    model: Any,
    positions: int | None = None,
    vocab: int | None = None,
    *,
    engine: ModelEngine = ModelEngine.AUTO,
    stored: torch.dtype | None = None,
    pick: Callable[[Any], Embedded | None] = lambda encoder_states: encoder_states,
) -> SlotModel:
    """A causal LM on an engine; arguments and errors as `CausalModel`."""
    form = form_of(CAUSAL_FORMS, model, engine)
    return form.adapter(model, positions, vocab, stored=stored, pick=pick)


def whisper_engine(
    model: Any, asked: ModelEngine = ModelEngine.AUTO, *, draft: bool = False
) -> ModelEngine:
    """The engine that runs a Whisper. Raises LoadError where none does, and for a target in 8-bit integers as
    `int8_engine`; a `draft` may be computed by any engine."""
    if is_int8(model) and not draft:
        asked = int8_engine(asked, native_gap(model))
    return form_of(WHISPER_FORMS, model, asked).engine


def causal_engine(
    model: Any,
    asked: ModelEngine = ModelEngine.AUTO,
    *,
    stored: torch.dtype | None = None,
    draft: bool = False,
) -> ModelEngine:
    """The engine that runs a causal LM; `stored` as of `causal_decoder`. Raises LoadError as `CausalModel`,
    and for a target in 8-bit integers as `int8_engine`; a `draft` may be computed by any engine."""
    if is_int8(model) and not draft:
        asked = int8_engine(asked, native_causal_gap(model))
    return ModelEngine(causal_decoder(model, engine=asked, stored=stored).engine)


def native_encoder(
    model: Any, engine: ModelEngine, asked: ModelEngine, *, int8: bool = False
) -> NativeEncoder | None:
    """The native encoder of a Whisper whose decoder runs on `engine`, from modules that hold their weights,
    with `int8` of those rounded to 8-bit integers (`int8_encoder`). None where the modules encode: on the
    other engines, and where `auto` was `asked` and there are no such kernels. Raises LoadError where `native`
    was asked for and cannot encode."""
    encoder = encoder_of(model)
    if engine is not ModelEngine.NATIVE or encoder is None:
        return None
    problem = encoder_gap(encoder) or unsupported_encoder(encoder)
    if problem is None:
        return NativeEncoder(int8_encoder(encoder) if int8 else encoder)
    if asked is ModelEngine.NATIVE:
        raise LoadError(f"the native engine has no form of this encoder: {problem}")
    log.warning("encoder of engine modules instead of native: %s", problem)
    return None


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


def int8_engine(asked: ModelEngine, gap: str | None = None) -> ModelEngine:
    """The engine of a target in 8-bit integers; `gap` is why native kernels cannot run the model, if known.

    Their logits do not depend on what a forward computes beside a token. torch's attention rounds the last
    bit of a token differently when other tokens are read in the same forward, and rounding to int8 turns that
    bit into a whole step: with drafts, 2 of 16 texts of the bundled pair were others. Reading one token at a
    time would give the same bits and save nothing. A draft in int8 may run on any engine, as it changes no
    token.

    Raises LoadError where another engine was `asked` for, and where native kernels cannot be used.
    """
    if asked not in (ModelEngine.AUTO, ModelEngine.NATIVE):
        raise LoadError(
            f"--quantize int8 does not run on the {asked} engine, where drafts could change words: take "
            "--engine native, or leave out --quantize (--draft-dtype int8 runs on every engine)"
        )
    problem = gap or missing()
    if problem is not None:
        raise LoadError(
            f"--quantize int8 needs the native engine ({problem}), as on others drafts could change words: "
            "leave out --quantize, or take --dtype bfloat16"
        )
    return ModelEngine.NATIVE


def form_of(forms: Sequence[Form], model: Any, asked: ModelEngine) -> Form:
    """The form that runs a model: the one that was asked for, or the first that can. Raises LoadError where
    there is none."""
    kind = model.config.model_type
    for form in forms:
        if asked not in (ModelEngine.AUTO, form.engine):
            continue
        gap = form.gap(model)
        if gap is None:
            return form
        if asked is form.engine:
            raise LoadError(f"the {form.engine} engine has no form of this {kind}: {gap}")
    raise LoadError(f"{kind} has no engine {asked}: {', '.join(f.engine for f in forms)}")
