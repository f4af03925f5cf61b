"""Which engine runs a model's forward: the names, and how one is chosen.

    modules  transformers' own modules: every family, and the reference of the others
    lean     short functions over the same weights (`models/lean`): Whisper and Llama-like models
    native   compiled kernels over the same weights (`native/`): both on CPUs, where they were compiled

All engines compute the same tokens in float32. The choice is made once, before a model decodes; adapters have
the name in `engine`, and a warning is logged where `auto` had to take the next one. A target in 8-bit
integers runs on the native engine alone (`int8_engine`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

from ...errors import LoadError
from ...native.library import missing
from ..slot_model import SlotModel

log = logging.getLogger(__name__)

Made = TypeVar("Made")


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


def int8_engine(asked: ModelEngine, gap: str | None = None) -> ModelEngine:
    """The engine of a target in 8-bit integers; `gap` is why native kernels cannot run the model, if known.

    Only an adapter that is `SlotModel.invariant` will do. torch's attention rounds the last bit of a token
    differently when other tokens are read in the same forward, and rounding to int8 turns that bit into a
    whole step: with drafts, 2 of 16 texts of the bundled pair were others. Reading one token at a time would
    give the same bits and save nothing. A draft in int8 may run on any engine, as it changes no token.

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


@dataclass(frozen=True)
class Form:
    """How one engine runs a family: why it cannot run a model (None if it can), and its adapter."""

    engine: ModelEngine
    gap: Callable[[Any], str | None]
    adapter: Callable[..., SlotModel]


def build(
    forms: Sequence[Form], model: Any, asked: ModelEngine, make: Callable[[Form], Made]
) -> Made:
    """What `make` returns for the form that runs `model`: the one that was asked for, or the first that can
    and for which `make` raises no LoadError. Raises LoadError where there is none."""
    kind = model.config.model_type
    able = []
    for form in forms:
        gap = form.gap(model)
        if gap is None and asked in (ModelEngine.AUTO, form.engine):
            able.append(form)
        elif asked is form.engine:
            raise LoadError(f"the {form.engine} engine has no form of this {kind}: {gap}")
        elif gap is not None:
            log.debug("the %s engine has no form of this %s: %s", form.engine, kind, gap)
    for form, other in pairwise(able):
        try:
            return _made(form, kind, make)
        except LoadError as error:
            log.warning("engine %s instead of %s: %s", other.engine, form.engine, error)
    if not able:
        raise LoadError(f"{kind} has no engine {asked}: {', '.join(f.engine for f in forms)}")
    return _made(able[-1], kind, make)


def _made(form: Form, kind: str, make: Callable[[Form], Made]) -> Made:
    made = make(form)
    log.info("%s: engine %s", kind, form.engine)
    return made
