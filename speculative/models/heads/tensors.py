"""The files of a head's folder, and its tensors by name and shape, read without trusting them.

A folder may come from anywhere: nothing in it is executed, and a file that is damaged, too large or names
other folders is refused with its name. A tensor that is missing, has another shape than the configuration
promises, or is left over is refused by name: a head that is half understood would draft badly without a word.
Also the layers that heads of all families share. Knows file formats, names and shapes; nothing of how a head
computes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import LoadError, load_cause, one_line
from ..checkpoint import CONFIG, damaged
from ..quantized import stored_weights
from ..weights import FIXED_ROTATIONS, Linear
from .records import LeanLayer, Output, TargetShape

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
LARGEST_SIZE = 1 << 24


class PublishedTensors:
    """The tensors of one head, each of which may be taken once."""

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self.name = name
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, *shape: int) -> Tensor:
        """A floating tensor of this shape. Raises LoadError where it is missing or has another one."""
        if name not in self._left:
            raise LoadError(f"{self.name} lacks the tensor {name}")
        found = self._left.pop(name)
        if tuple(found.shape) != shape:
            raise LoadError(
                f"{self.name}: {name} has the shape {list(found.shape)}, not {list(shape)}"
            )
        if not found.is_floating_point():
            raise LoadError(f"{self.name}: {name} holds {found.dtype}, not floating numbers")
        return found

    def take_if(self, name: str, *shape: int) -> Tensor | None:
        return self.take(name, *shape) if name in self else None

    def linear(self, name: str, rows: int, columns: int) -> Linear:
        """A projection, with its bias where it has one."""
        return Linear(
            self.take(f"{name}.weight", rows, columns), self.take_if(f"{name}.bias", rows)
        )

    def joined(self, names: Iterable[str], rows: Iterable[int], columns: int) -> Linear:
        """Projections of one input as one matrix."""
        parts = [self.linear(n, r, columns) for n, r in zip(names, rows, strict=True)]
        biases = [p.bias for p in parts]
        if any(b is not None for b in biases) and any(b is None for b in biases):
            raise LoadError(f"{self.name}: some projections of a layer have a bias, others not")
        found = [b for b in biases if b is not None]
        return Linear(torch.cat([p.weight for p in parts]), torch.cat(found) if found else None)

    def take_integers(self, name: str) -> Tensor:
        """A vector of integers or truth values, as it is."""
        if name not in self._left:
            raise LoadError(f"{self.name} lacks the tensor {name}")
        found = self._left.pop(name)
        if found.dim() != 1 or found.is_floating_point() or found.is_complex():
            raise LoadError(f"{self.name}: {name} is no vector of whole numbers")
        return found

    def finish(self) -> None:
        """Raises LoadError for tensors that nobody has taken. Angles of rotary positions are computed."""
        left = sorted(n for n in self._left if not n.endswith("rotary_emb.inv_freq"))
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise LoadError(f"{self.name} has tensors that are not known: {left[0]}{more}")


def layer_config(raw: Mapping[str, Any], name: str) -> Any:
    """The configuration of a head's layers, with transformers' defaults. Raises LoadError for families
    other than Llama and Qwen 3, and for sizes that are no sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = raw.get("model_type", "llama")
    if kind not in ("llama", "qwen3"):
        raise LoadError(f"{name}: layers of {kind!r} are not supported, but llama and qwen3")
    for key in SIZES:
        value = raw.get(key)
        if type(value) is not int or not 0 < value < LARGEST_SIZE:
            raise LoadError(f"{name}: {key} is {value!r}, no size")
    known = {k: v for k, v in raw.items() if k not in ("architectures", "quantization_config")}
    if raw.get("quantization_config"):
        raise LoadError(f"{name}: quantised heads are not supported")
    try:
        config = CONFIG_MAPPING[kind](**known)
        heads, kv = int(config.num_attention_heads), int(config.num_key_value_heads)
        size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    except Exception as error:  # configurations check their fields in many ways
        raise LoadError(f"{name}: its configuration is not valid: {one_line(error)}") from error
    if (
        not (0 < kv <= heads < LARGEST_SIZE)
        or heads % kv
        or not 0 < size < LARGEST_SIZE
        or size % 2
    ):
        raise LoadError(f"{name}: {heads} heads, {kv} of keys, size {size} do not fit")
    config.head_dim = size
    return config


def rotary_of(config: Any, name: str) -> Any:
    """What gives the angles of positions, as transformers does. Raises LoadError for those that depend on the
    length of a text, or that turn a part of each head."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind not in FIXED_ROTATIONS:
        raise LoadError(f"{name}: rotary positions of type {kind!r} are not supported")
    rotary = LlamaRotaryEmbedding(config)
    if 2 * len(rotary.inv_freq) != config.head_dim:
        raise LoadError(f"{name}: rotary positions for a part of each head are not supported")
    return rotary


def window_of(config: Any, index: int) -> int | None:
    """The window of layer `index`; None where it reads everything."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[index] == "sliding_attention":
        width = getattr(config, "sliding_window", None)
        if type(width) is not int or width < 1:
            raise LoadError(f"layer {index} has a sliding window without a width")
        return width
    return None


def take_layer(
    tensors: PublishedTensors,
    prefix: str,
    config: Any,
    *,
    inputs: int,
    input_norm: Tensor | None,
    window: int | None,
) -> LeanLayer:
    """One layer of Llama's or Qwen 3's names; its projections read `inputs` numbers."""
    width, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    rows, kv_rows = config.num_attention_heads * size, config.num_key_value_heads * size
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    return LeanLayer(
        input_norm=input_norm,
        query=tensors.linear(f"{attention}q_proj", rows, inputs),
        key_value=tensors.joined(
            (f"{attention}k_proj", f"{attention}v_proj"), (kv_rows, kv_rows), inputs
        ),
        query_norm=tensors.take_if(f"{attention}q_norm.weight", size),
        key_norm=tensors.take_if(f"{attention}k_norm.weight", size),
        out=tensors.linear(f"{attention}o_proj", width, rows),
        post_norm=tensors.take(f"{prefix}post_attention_layernorm.weight", width),
        gate_up=tensors.joined((f"{mlp}gate_proj", f"{mlp}up_proj"), (inner, inner), width),
        down=tensors.linear(f"{mlp}down_proj", width, inner),
        window=window,
    )


def take_output(
    tensors: PublishedTensors, raw: Mapping[str, Any], config: Any, target: TargetShape
) -> Output:
    """The norm and the output layer. `d2t` are offsets: row i is token i + d2t[i].

    Raises LoadError where the rows are not those of the tokens that `t2d` marks.
    """
    width, vocab, name = config.hidden_size, config.vocab_size, tensors.name
    eps = float(config.rms_norm_eps)
    size = raw.get("draft_vocab_size")
    size = vocab if size is None else size
    if type(size) is not int or not 0 < size <= vocab:
        raise LoadError(f"{name}: draft_vocab_size is {size!r}, of {vocab} tokens")
    norm = tensors.take("norm.weight", width)
    if "lm_head.weight" not in tensors:
        if size != vocab:
            raise LoadError(f"{name} proposes {size} of {vocab} tokens and lacks lm_head.weight")
        if width != target.width:
            raise LoadError(f"{name} lacks the tensor lm_head.weight, and is {width} wide")
        return Output(norm, eps)
    head = tensors.linear("lm_head", size, width)
    ids = _ids(tensors, size, vocab)
    if int(ids.max()) >= target.vocab:
        raise LoadError(
            f"{name} proposes token {int(ids.max())}, and {target.name} has {target.vocab} tokens"
        )
    return Output(norm, eps, head, ids)


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a folder. Raises LoadError with the file's name."""
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path} is no JSON object")
    return found


def read_tensors(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a folder whose names begin with `prefix`, on the CPU. Raises LoadError for files that
    are missing, damaged or hold anything but finite tensors; nothing in them is executed."""
    try:
        tensors = stored_weights(folder, (prefix,))
    except Exception as error:  # pickle, zip, safetensors and torch raise errors of many classes
        raise LoadError(
            f"{folder} holds something other than tensors, or is damaged: "
            f"{damaged(folder) or load_cause(error)}"
        ) from error
    if not tensors and not prefix:
        raise LoadError(f"{folder} holds no weights")
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
            raise LoadError(f"{folder}: {name} is no plain tensor")
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise LoadError(f"{folder}: {name} has numbers that are not finite")
    return tensors


def _ids(tensors: PublishedTensors, size: int, vocab: int) -> Tensor:
    """The token ids `[U]` of the output layer's rows."""
    name = tensors.name
    marks = tensors.take_integers("t2d").bool() if "t2d" in tensors else None
    if marks is not None and (len(marks) != vocab or int(marks.sum()) != size):
        raise LoadError(
            f"{name}: t2d marks {int(marks.sum())} of {len(marks)} tokens, and the head has {size} of "
            f"{vocab}"
        )
    if "d2t" not in tensors:
        if size != vocab:
            raise LoadError(f"{name} proposes {size} of {vocab} tokens and lacks the tensor d2t")
        return torch.arange(size)
    offsets = tensors.take_integers("d2t").long()
    if len(offsets) != size:
        raise LoadError(f"{name}: d2t has {len(offsets)} entries for {size} rows")
    ids = torch.arange(size) + offsets
    if bool((ids < 0).any()) or bool((ids >= vocab).any()) or len(ids.unique()) != size:
        raise LoadError(f"{name}: d2t leads outside the vocabulary of {vocab}, or twice to a token")
    if marks is not None and not bool(marks[ids].all()):
        raise LoadError(f"{name}: d2t and t2d name different tokens")
    return ids
