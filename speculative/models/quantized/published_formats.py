"""Checkpoints that were published in a quantised form: which library reads them.

Knows the names of transformers' quantisation methods and the packages that they need; loads nothing.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from ...errors import LoadError

PACKAGES = {
    "torchao": ("torchao", "torchao"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "awq": ("gptqmodel", "gptqmodel"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
}
"""By method of a `quantization_config`: the module and the name to install."""


def method_of(config: Any) -> str | None:
    """The quantisation method of a checkpoint's configuration; None for plain weights."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    return str(getattr(method, "value", method))


def check_library(config: Any) -> None:
    """Raises LoadError, with the package to install, where a checkpoint is quantised by a method whose
    library is not here."""
    method = method_of(config)
    if method is None or method not in PACKAGES:  # transformers itself answers for the others
        return
    module, package = PACKAGES[method]
    if importlib.util.find_spec(module) is None:
        raise LoadError(
            f"its weights are quantised by {method}, which {package} reads: pip install {package}, or take "
            "the plain weights"
        )
