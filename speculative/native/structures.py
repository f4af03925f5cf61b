"""The records of `kernels/forescribe.h` for ctypes, field by field in the same order.

Knows layouts in memory only. Pointers are plain addresses: the tensors that they lead to are kept alive by
whoever fills a record.
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

from torch import Tensor

ABI = 4


class Stored(IntEnum):
    """How a tensor is stored. Arithmetic is float32, but for products with bfloat16 matrices where the
    processor multiplies bfloat16: there the other factors are rounded too, and sums are float32. Products
    with int8 matrices, which only decoders have, round the other factor to int8, row by row
    (`models.quantized`)."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


ACTIVATIONS = {"gelu": 0, "relu": 1, "silu": 2, "swish": 2}
"""transformers' names of the activations that the kernels have."""

ERRORS = {
    1: "a shape that the kernels do not have",
    2: "a slot or row outside the cache",
    3: "a token outside the vocabulary",
    4: "a workspace that is too small",
    5: "an instruction set that this machine does not have",
}


class Linear(Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p)]


class Norm(Structure):
    _fields_ = [("scale", c_void_p), ("shift", c_void_p)]


class WhisperLayer(Structure):
    _fields_ = [
        ("self_norm", Norm),
        ("qkv", Linear),
        ("self_out", Linear),
        ("cross_norm", Norm),
        ("cross_query", Linear),
        ("cross_out", Linear),
        ("ffn_norm", Norm),
        ("up", Linear),
        ("down", Linear),
        ("cross_key", c_void_p),
        ("cross_key_bias", c_void_p),
        ("cross_value", Linear),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("cross_keys", c_void_p),
        ("cross_values", c_void_p),
    ]


class Whisper(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("width", "heads", "layers", "ffn", "vocab", "positions",
                                       "sources", "outputs", "batch", "slots")),
        *((name, c_int32) for name in ("weight_storage", "cache_storage", "cross_storage",
                                       "activation")),
        ("eps", c_float),
        ("embedding", c_void_p),
        ("position", c_void_p),
        ("norm", Norm),
        ("head", Linear),
        ("layer", c_void_p),
    ]  # fmt: skip


class CausalLayer(Structure):
    _fields_ = [
        ("input_norm", c_void_p),
        ("qkv", Linear),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("out", Linear),
        ("post_norm", c_void_p),
        ("gate_up", Linear),
        ("down", Linear),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
        ("rotary", c_int32),
    ]


class Causal(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("width", "heads", "key_heads", "head", "layers", "ffn", "vocab",
                                       "outputs", "columns", "positions", "batch", "slots")),
        *((name, c_int32) for name in ("weight_storage", "cache_storage", "activation")),
        *((name, c_float) for name in ("eps", "scale")),
        *((name, c_void_p) for name in ("embedding", "cosine", "sine", "norm")),
        ("projection", Linear),
        ("layer", c_void_p),
    ]  # fmt: skip


class Choice(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("count", "vocab", "split", "kinds")),
        *((name, c_void_p) for name in ("logits", "bias", "kind", "low", "high", "joint", "tokens",
                                        "logprobs")),
        ("threads", c_int32),
    ]  # fmt: skip


class Draft(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("depths", "columns")),
        *((name, c_void_p) for name in ("active", "ids", "tokens", "start", "logprobs",
                                         "belief")),
        ("drafted", c_int64),
        ("confidence", c_float),
    ]  # fmt: skip


class EncoderLayer(Structure):
    _fields_ = [
        ("attention_norm", Norm),
        *((name, Linear) for name in ("query", "key", "value", "out")),
        ("ffn_norm", Norm),
        ("up", Linear),
        ("down", Linear),
    ]


class Encoder(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("width", "heads", "layers", "ffn", "mels", "sources")),
        ("weight_storage", c_int32),
        ("activation", c_int32),
        ("eps", c_float),
        ("conv1", Linear),
        ("conv2", Linear),
        ("position", c_void_p),
        ("norm", Norm),
        ("layer", c_void_p),
    ]


class Step(Structure):
    kept: list[Tensor]
    """The tensors that it leads to."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "nodes", "reach")),
        *((name, c_void_p) for name in ("tokens", "start", "rows", "depths", "ancestry", "node", "logits",
                                        "hidden", "tap_layers")),
        ("tap_count", c_int64),
        ("taps", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
        ("threads", c_int32),
    ]  # fmt: skip
