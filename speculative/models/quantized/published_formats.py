"""Checkpoints that were published in a quantised form: which library reads them.

Knows the names of transformers' quantisation methods and the packages that they need; loads nothing.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ...errors import LoadError

PACKAGES = {
    "torchao": {"torchao": "torchao"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "gptq": {"optimum": "optimum", "gptqmodel": "gptqmodel"},
    "awq": {"gptqmodel": "gptqmodel"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
}
"""By method of a `quantization_config`: the modules that read it, with the names to install."""

GGUF = {".gguf": "a .gguf of llama.cpp"}
"""Single files that hold a language model, by suffix, with what they are."""


def method_of(config: Any) -> str | None:
    """The quantisation method of a checkpoint's configuration; None for plain weights."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    return str(getattr(method, "value", method))


def check_library(config: Any) -> None:
    """Raises LoadError, with the packages to install, where a checkpoint is quantised by a method whose
    libraries are not here."""
    method = method_of(config)
    if method is None or method not in PACKAGES:  # transformers itself answers for the others
        return
    missing = [
        name
        for module, name in PACKAGES[method].items()
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise LoadError(
            f"its weights are quantised by {method}, which {' and '.join(missing)} "
            f"read{'s' if len(missing) == 1 else ''}: pip install {' '.join(missing)}, or take the plain "
            "weights"
        )


def check_gguf() -> None:
    """Raises LoadError where a package is missing with which transformers reads GGUF files."""
    missing = [m for m in ("gguf", "accelerate") if importlib.util.find_spec(m) is None]
    if missing:
        raise LoadError(
            "GGUF files are read with the packages gguf and accelerate: "
            f"pip install {' '.join(missing)}"
        )


def inexact(method: str, problem: str) -> LoadError:
    """The refusal of a quantised model whose adapter has a `problem`: formats that round activations too turn
    a difference in the last bit into one of a whole step."""
    return LoadError(
        f"its weights are quantised by {method}, and {problem}: drafts could change its text, as where "
        "activations are rounded too; take a form that rounds weights alone, or the plain weights with "
        "--quantize int8"
    )
