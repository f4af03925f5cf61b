"""Number formats of a benchmark's rows, by name.

    float32, float16, bfloat16, auto   a dtype
    int8, int8-bfloat16                matrices of 8-bit integers, and the rest in float32 or bfloat16

Knows names only.
"""

from __future__ import annotations

INT8 = {"int8": "float32", "int8-bfloat16": "bfloat16"}
"""The formats with 8-bit integers, and the dtype of the rest."""

REDUCED = ("bfloat16", *INT8)


def dtype_of(name: str) -> str:
    """The dtype of a format, as `--dtype` takes it."""
    return INT8.get(name, name)


def quantization_of(name: str) -> str:
    """The quantization of a format, as `--quantize` takes it."""
    return "int8" if name in INT8 else "none"
