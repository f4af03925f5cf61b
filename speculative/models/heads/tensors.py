"""The files of a head's folder, and its tensors by name and shape, read without trusting them.

A folder may come from anywhere: nothing in it is executed, and a damaged file is refused with its name. A
tensor that is missing, has another shape than the configuration promises, or is left over is refused by name:
a head that is half understood would draft badly without a word.
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

    def joined(self, names: Iterable[str], rows: int, columns: int) -> Linear:
        """Projections of one input, with `rows` outputs each, as one matrix."""
        parts = [self.linear(name, rows, columns) for name in names]
        weight = torch.cat([part.weight for part in parts])
        biases = [part.bias for part in parts if part.bias is not None]
        if biases and len(biases) < len(parts):
            raise LoadError(f"{self.name}: some projections of a layer have a bias, others not")
        return Linear(weight, torch.cat(biases) if biases else None)

    def take_integers(self, name: str, size: int) -> Tensor:
        """A vector of integers."""
        if name not in self._left:
            raise LoadError(f"{self.name} lacks the tensor {name}")
        found = self._left.pop(name)
        if found.shape != (size,) or found.is_floating_point():
            raise LoadError(f"{self.name}: {name} is no vector of {size} whole numbers")
        return found.long()

    def finish(self) -> None:
        """Raises LoadError for tensors that nobody has taken. Angles of rotary positions are computed, and
        `t2d` marks the tokens that `d2t` leads to."""
        left = sorted(n for n in self._left if not n.endswith(("rotary_emb.inv_freq", "t2d")))
        if left:
            raise LoadError(f"{self.name} has tensors that are not known: {', '.join(left[:2])}")


def layer_config(raw: Mapping[str, Any], name: str) -> Any:
    """The configuration of a head's layers, with transformers' defaults. Raises LoadError for families
    other than Llama and Qwen 3."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = raw.get("model_type", "llama")
    if kind not in ("llama", "qwen3"):
        raise LoadError(f"{name}: layers of {kind!r} are not supported, but llama and qwen3")
    try:
        config = CONFIG_MAPPING[kind](**{k: v for k, v in raw.items() if k != "architectures"})
        heads, known = config.num_attention_heads, getattr(config, "head_dim", None)
        config.head_dim = known or config.hidden_size // heads
    except Exception as error:  # configurations check their fields in many ways
        raise LoadError(f"{name}: its configuration is not valid: {one_line(error)}") from error
    return config


def rotary_of(config: Any, name: str) -> Any:
    """What gives the angles of positions, as transformers does. Raises LoadError for those that depend on the
    length of a text, or that turn a part of each head."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    rotary = LlamaRotaryEmbedding(config) if kind in FIXED_ROTATIONS else None
    if rotary is None or 2 * len(rotary.inv_freq) != config.head_dim:
        raise LoadError(f"{name}: rotary positions of type {kind!r} are not supported")
    return rotary


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
        key_value=tensors.joined((f"{attention}k_proj", f"{attention}v_proj"), kv_rows, inputs),
        query_norm=tensors.take_if(f"{attention}q_norm.weight", size),
        key_norm=tensors.take_if(f"{attention}k_norm.weight", size),
        out=tensors.linear(f"{attention}o_proj", width, rows),
        post_norm=tensors.take(f"{prefix}post_attention_layernorm.weight", width),
        gate_up=tensors.joined((f"{mlp}gate_proj", f"{mlp}up_proj"), inner, width),
        down=tensors.linear(f"{mlp}down_proj", width, inner),
        window=window,
    )


def take_output(
    tensors: PublishedTensors, raw: Mapping[str, Any], config: Any, target: TargetShape
) -> Output:
    """The norm and the output layer. `d2t` are offsets: row i is token i + d2t[i]."""
    width, name = config.hidden_size, tensors.name
    size = raw.get("draft_vocab_size") or config.vocab_size
    norm, eps = tensors.take("norm.weight", width), float(config.rms_norm_eps)
    if "lm_head.weight" not in tensors and size == config.vocab_size and width == target.width:
        return Output(norm, eps)
    head, ids = tensors.linear("lm_head", size, width), torch.arange(size)
    if "d2t" in tensors or size != config.vocab_size:
        ids = ids + tensors.take_integers("d2t", size)
    vocab = min(config.vocab_size, target.vocab)
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab or len(ids.unique()) != size:
        raise LoadError(
            f"{name} proposes tokens outside of the {vocab} of {target.name}, or one of them twice"
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
    are missing, damaged or hold anything but tensors; nothing in them is executed."""
    try:
        tensors = stored_weights(folder, (prefix,))
        if not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError("a value is no tensor")
    except Exception as error:  # pickle, zip, safetensors and torch raise errors of many classes
        raise LoadError(
            f"{folder} holds something other than tensors, or is damaged: "
            f"{damaged(folder) or load_cause(error)}"
        ) from error
    if not tensors and not prefix:
        raise LoadError(f"{folder} holds no weights")
    return tensors
