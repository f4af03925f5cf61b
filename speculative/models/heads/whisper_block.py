"""A block head for Whisper: drafts of a whole block in one pass over [pending, mask, ...].

DFlash (arXiv 2602.06036) for an encoder-decoder: the target's states of committed tokens are projected into
the head's keys and values, the block reads them, itself in both directions, and the target's encoder states
by cross-attention of its own. Here query i predicts token i + 1 behind the pending one, so that the pending
token's query begins as an ordinary draft's. Its folder has config.json with its sizes and model.safetensors
with its tensors. Knows tensors and files; nothing of rows.

Letters besides those of `speculative.types`: n taps, Q queries of a block, S encoder states, h heads of d.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from ...errors import LoadError
from ..checkpoint import CONFIG
from ..plain import products

MODEL_TYPE = "forescribe_whisper_block"
"""The `model_type` of config.json, which no class of transformers has."""

WEIGHTS = "model.safetensors"

KeysValues = tuple[Tensor, Tensor]
"""Keys and values, `[B, h, T, d]` each."""


@dataclass(frozen=True)
class BlockShape:
    """The sizes of a head and of the target that it fits. Raises LoadError for sizes that make no head."""

    width: int  # D, of the head, the target and its encoder states
    heads: int
    inner: int
    layers: int
    positions: int
    block: int  # tokens that one pass drafts
    taps: tuple[int, ...]  # of the target, see `Model.tap`
    target_layers: int
    vocab: int

    def __post_init__(self) -> None:
        sizes = (self.width, self.heads, self.inner, self.layers, self.positions, self.block)
        if min(*sizes, self.target_layers, self.vocab) < 1 or self.width % self.heads:
            raise LoadError(f"a block head cannot have these sizes: {self}")
        if not self.taps or not all(-1 <= tap < self.target_layers for tap in self.taps):
            raise LoadError(f"taps {self.taps} are not of a target of {self.target_layers} layers")
        if len(set(self.taps)) != len(self.taps):
            raise LoadError(f"taps name a layer twice: {self.taps}")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of a head, by name."""
        width, found = self.width, dict[str, tuple[int, ...]]()

        def add(name: str, rows: int, columns: int) -> None:
            found[f"{name}.weight"], found[f"{name}.bias"] = (rows, columns), (rows,)

        def norm(name: str) -> None:
            found[f"{name}.weight"] = found[f"{name}.bias"] = (width,)

        for layer in range(self.layers):
            add(f"layers.{layer}.taps", width, len(self.taps) * width)
            for kind in ("self", "cross"):
                norm(f"layers.{layer}.{kind}_norm")
                add(f"layers.{layer}.{kind}_query", width, width)
                add(f"layers.{layer}.{kind}_key_value", 2 * width, width)
                add(f"layers.{layer}.{kind}_out", width, width)
            norm(f"layers.{layer}.inner_norm")
            add(f"layers.{layer}.up", self.inner, width)
            add(f"layers.{layer}.down", width, self.inner)
        norm("norm")
        add("input", width, width)
        add("output", width, width)
        found["positions"], found["masks"] = (self.positions, width), (self.block, width)
        return found


@dataclass(frozen=True, eq=False)
class WhisperBlock:
    """A head: its shape and its tensors, by the names of `BlockShape.tensors`. Raises LoadError for a tensor
    that is missing, unknown or of another shape."""

    shape: BlockShape
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        wanted = self.shape.tensors()
        for name in [*wanted, *self.tensors]:
            if name not in self.tensors:
                raise LoadError(f"the block head lacks {name}")
            if name not in wanted:
                raise LoadError(f"the block head has a tensor {name}, which it does not use")
            found = tuple(self.tensors[name].shape)
            if found != wanted[name]:
                raise LoadError(
                    f"{name} is {list(found)}; its config.json says {list(wanted[name])}"
                )

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors["masks"].dtype

    def to(self, device: torch.device, dtype: torch.dtype) -> WhisperBlock:
        return WhisperBlock(
            self.shape, {name: each.to(device, dtype) for name, each in self.tensors.items()}
        )

    def context(self, layer: int, taps: Tensor) -> KeysValues:
        """Keys and values of a layer for committed tokens, from their taps `[B, T, n, D]`.

        Every tap is normalised first, as states grow from layer to layer.
        """
        states = layer_norm(taps.to(self.dtype), taps.shape[-1:]).flatten(-2)
        return self._self_keys(layer, self._linear(f"layers.{layer}.taps", states))

    def cross(self, layer: int, encoder_states: Tensor) -> KeysValues:
        """Keys and values of a layer's cross-attention for encoder states `[B, S, D]`."""
        return self._split(
            self._linear(f"layers.{layer}.cross_key_value", encoder_states.to(self.dtype))
        )

    def embed(self, pending: Tensor, slots: Tensor) -> Tensor:
        """The inputs `[B, Q, D]` of a block: `pending [B, 1, D]` embedded, then masks, at `slots [B, Q]`.
        Slots beyond the last position have that one: drafts there are never kept."""
        count = slots.shape[1]
        masks = self.tensors["masks"][:count].expand(len(slots), -1, -1)
        first = self._linear("input", pending.to(self.dtype)) + masks[:, :1]
        inputs = torch.cat([first, masks[:, 1:]], 1)
        positions: Tensor = self.tensors["positions"][slots.clamp_max(self.shape.positions - 1)]
        return inputs + positions

    def layer(
        self, layer: int, x: Tensor, context: KeysValues, cross: KeysValues, mask: Tensor
    ) -> Tensor:
        """The states `[B, Q, D]` after a layer. The queries read `context` and, behind it, each other;
        `mask [B or 1, 1, Q, T + Q]` is additive."""
        name = f"layers.{layer}"
        keys, values = self._self_keys(layer, x)
        keys, values = torch.cat([context[0], keys], 2), torch.cat([context[1], values], 2)
        x = x + self._read(f"{name}.self", x, (keys, values), mask)
        x = x + self._read(f"{name}.cross", x, cross, None)
        inner = gelu(self._linear(f"{name}.up", self._norm(f"{name}.inner_norm", x)))
        return x + self._linear(f"{name}.down", inner)

    def finish(self, x: Tensor) -> Tensor:
        """What the target's output layer reads."""
        return self._linear("output", self._norm("norm", x))

    def _self_keys(self, layer: int, x: Tensor) -> KeysValues:
        name = f"layers.{layer}.self"
        return self._split(self._linear(f"{name}_key_value", self._norm(f"{name}_norm", x)))

    def _read(self, name: str, x: Tensor, read: KeysValues, mask: Tensor | None) -> Tensor:
        query = self._linear(f"{name}_query", self._norm(f"{name}_norm", x))
        query = query.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
        found = _attended(query, *read, mask)
        return self._linear(f"{name}_out", found.transpose(1, 2).flatten(2))

    def _split(self, both: Tensor) -> KeysValues:
        keys, values = both.unflatten(-1, (2, self.shape.heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], weight, bias)


def is_block(folder: Path) -> bool:
    """Whether a folder says that it holds a block head."""
    try:
        found: Any = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == MODEL_TYPE


def read_block(folder: Path) -> WhisperBlock:
    """The head in a folder, in float32. Raises LoadError for a folder without one, or a damaged one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config: Any = json.loads((folder / CONFIG).read_text("utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise LoadError(f"{folder} holds no readable block head: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        raise LoadError(f"{folder} holds no block head: its config.json does not say {MODEL_TYPE}")
    shape = _shape(config)
    return WhisperBlock(shape, {name: tensor.float() for name, tensor in tensors.items()})


def write_block(folder: Path, head: WhisperBlock) -> None:
    """Writes a head as float16, file by file in one move each."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Tensor] = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in head.tensors.items()
    }
    partial = folder / f"{WEIGHTS}.tmp"
    save_file(stored, partial)
    partial.replace(folder / WEIGHTS)
    config = {"model_type": MODEL_TYPE, **asdict(head.shape)}
    partial = folder / f"{CONFIG}.tmp"
    partial.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    partial.replace(folder / CONFIG)


def _shape(config: dict[str, Any]) -> BlockShape:
    names = [field.name for field in fields(BlockShape)]
    missing = [name for name in names if name not in config]
    if missing:
        raise LoadError(f"the block head's config.json lacks {missing[0]}")
    values = {name: config[name] for name in names}
    taps = values.pop("taps")
    numbers = [*values.values(), *(taps if isinstance(taps, list) else [taps])]
    if not all(type(number) is int for number in numbers):
        raise LoadError("the block head's config.json has sizes that are no whole numbers")
    return BlockShape(**values, taps=tuple(taps))


def _attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention `[B, h, Q, d]`. On a CPU few queries read many keys: in bfloat16 two products take about half
    the time of the fused kernel (docs/methods/block-drafter.md)."""
    if query.device.type != "cpu" or query.requires_grad:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return products(query * query.shape[-1] ** -0.5, keys, values, mask)
