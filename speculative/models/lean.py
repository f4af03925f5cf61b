"""Whisper's decoder and Llama-like decoders as functions over plain tensors.

They compute what transformers' modules compute. Whisper's takes a quarter of their operators: one product for
query, key and value, one mask for all layers, keys of encoder states in the layout of the product, no cache
objects. The Llama-like one has RMS norms, rotary positions, grouped queries, a gated feed-forward; biases,
norms of queries and keys, sliding windows and layers without positions where a model has them. One product
gives query, key and value, one the two halves of the feed-forward; angles come from a table. The queries that
share a key are rows of one product, so no key is repeated.

Cross-attention of a few queries over encoder states has the layout that the device's product wants, in two
classes with the same methods. Every admission overwrites the whole strip of its row, so nothing of an earlier
sequence remains. (Native kernels have a layout that only they know.)

    Transposed  keys and values [B, H, d, S], attention as two matrix products: float32 and float64 on CPUs.
                Projections of encoder states are written where they stay, without a copy.
    Natural     keys and values [B, H, S, d], torch's fused attention: every other device and dtype.

Shapes depend on the batch, the number of tokens and `reach` only, so a forward can be captured as a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import embedding, layer_norm, rms_norm, scaled_dot_product_attention

from ..errors import LoadError
from ..types import Paths, Prefilled, Scores, States
from .causal import FULL, SLIDING, CausalModel
from .plain import EXACT, activation
from .slot_model import Places, SelfCache, SlotModel, WhisperModel, at_node
from .weights import CausalLayer, CausalWeights, Linear, Norm, WhisperWeights, causal_gap

Run = Callable[[int, Tensor], Tensor]
"""One layer, by its index, over `x [B N, D]`, or its attention alone."""

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Writes and reads a layer: layer, queries `[B, K, G N, d]`, keys and values `[2, B, K, N, d]`, mask
`[B, 1, G N, R]` -> `[B, K, G N, d]`."""


class LeanDecoder(SlotModel):
    """What the decoders share: forwards over a `SelfCache`, layer by layer."""

    engine = "lean"
    weights: Any
    cache: SelfCache | None = None

    @abstractmethod
    def _round(self, tokens: Tensor, at: Places, reach: int) -> tuple[Tensor, Tensor | None]:
        """States and taps, as `_hidden`, of a forward that writes at these places and reads below `reach`."""

    @abstractmethod
    def _norm(self, x: Tensor, norm: Norm) -> Tensor: ...

    def score(self, tokens: Tensor, start: Tensor, *, reach: int) -> Scores:
        hidden, taps = self._round(tokens, self.places(tokens, start, reach), reach)
        return Scores(self.head(hidden), taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        hidden, _ = self._round(tokens, self.places(tokens, start, reach), reach)
        return self.head(at_node(hidden, node))

    def score_paths(self, tokens: Tensor, paths: Paths, *, reach: int) -> Tensor:
        return self.head(self._round(tokens, self.path_places(paths, reach), reach)[0])

    def _hidden(self, x: Tensor, shape: torch.Size, layer: Run) -> tuple[Tensor, Tensor | None]:
        """The last hidden states `[B, N, D]` of tokens of this shape, `(B, N)`, and the taps; `x [B N, D]`
        enters the first layer."""
        states: dict[int, Tensor] = {}
        for index in range(self.depth):
            if index in self.taps:
                states[index] = x.view(*shape, -1)
            x = layer(index, x)
        states[-1] = self._norm(x, self.weights.norm).view(*shape, -1)
        return states[-1], self.tapped(states)


class LeanWhisperDecoder(WhisperModel, LeanDecoder):
    """The decoder of a Whisper model; arguments as `WhisperModel`."""

    weights: WhisperWeights
    cross: Sources | None = None

    def prepare(self, model: Any, stored: torch.dtype) -> None:
        self.weights = WhisperWeights.of(model, self.listed)
        self.output, self.activate = self.weights.head, activation(self.weights.activation)

    def allocate(self, batch: int, slots: int) -> None:
        weights, like = self.weights, self.weights.embedding
        shape = len(weights.layers), batch, weights.heads, slots, weights.head_size
        self.cache = SelfCache(shape, like.dtype, like.device)
        transposed = like.device.type == "cpu" and like.dtype in EXACT
        size, length = weights.head_size, self.sources
        matrix = (size, length) if transposed else (length, size)
        keys, values = (like.new_zeros((*shape[:3], *matrix)) for _ in range(2))
        self.cross = (Transposed if transposed else Natural)(weights.cross_kv, keys, values)

    def release(self) -> None:
        self.cache = self.cross = None

    @torch.inference_mode()
    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        return self.prefill_stacked(rows, tokens, self.stacked(encoder_states), nodes)

    @torch.inference_mode()
    def prefill_stacked(
        self, rows: Tensor, tokens: Tensor, states: Tensor, nodes: Tensor | None = None
    ) -> Prefilled:
        """See `StackedModel.prefill_stacked`."""
        cache, at = self._allocated(), self.prompt_places(tokens)
        cache.clear(rows, tokens.shape[1])
        assert self.cross is not None
        admit = self.cross.admit

        def attend(layer: int, qkv: Tensor) -> Tensor:
            cache.write_prompt(layer, rows, qkv[1:])
            return _attention(qkv[0], qkv[1:], at.mask)

        def cross(layer: int, queries: Tensor) -> Tensor:
            return admit(layer, rows, states, queries)

        layers = self._layers(tokens.shape, attend, cross)
        hidden, taps = self._hidden(self._embedded(tokens, at), tokens.shape, layers)
        return Prefilled(self.head(self.chosen(hidden, nodes)), taps)

    def _embedded(self, tokens: Tensor, at: Places) -> Tensor:
        """The states `[B N, D]` that enter the first layer."""
        weights = self.weights
        x = embedding(tokens, weights.embedding) + embedding(at.positions, weights.positions)
        return x.view(-1, weights.width)

    def _round(self, tokens: Tensor, at: Places, reach: int) -> tuple[Tensor, Tensor | None]:
        cache, (rows, nodes) = self._allocated(), tokens.shape
        assert self.cross is not None
        index, readable = cache.index(at.slots), cache.readable(rows, reach, nodes)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            cache.write(layer, index, qkv[1:])
            return _attention(qkv[0], readable[layer], at.mask)

        layers = self._layers(tokens.shape, attend, self.cross.attend)
        return self._hidden(self._embedded(tokens, at), tokens.shape, layers)

    def _layers(self, shape: Sequence[int], attend: Run, cross: Run) -> Run:
        """The layers over tokens of this shape, `(B, N)`. `attend` writes keys and values of a layer and
        reads them, `[3, B, H, N, d]` -> `[B, H, N, d]`; `cross` reads its encoder states, `[B, N, H, d]` ->
        `[B N, D]`."""
        weights, heads = self.weights, (*shape, -1, self.weights.head_size)

        def run(index: int, x: Tensor) -> Tensor:
            layer = weights.layers[index]
            qkv = layer.qkv(self._norm(x, layer.self_norm)).view(*shape, 3, -1, heads[3])
            read = attend(index, qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2).reshape(x.shape)
            x = x + layer.out(read)
            queries = layer.cross_q(self._norm(x, layer.cross_norm)).view(heads)
            x = x + layer.cross_out(cross(index, queries))
            inner = self.activate(layer.up(self._norm(x, layer.ffn_norm)))
            return x + layer.down(inner)

        return run

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return layer_norm(x, x.shape[1:], norm.weight, norm.bias, self.weights.eps)


class LeanCausalDecoder(CausalModel, LeanDecoder):
    """A Llama-like causal LM; arguments and errors as `CausalModel`."""

    weights: CausalWeights

    def prepare(self, stored: torch.dtype) -> None:
        gap = causal_gap(self.model)
        if gap is not None:
            raise LoadError(f"{self.config.model_type} has no lean form: {gap}")
        self.weights = weights = CausalWeights.of(self.model)
        self.activate = activation(weights.activation)
        self.groups = weights.heads // weights.kv_heads
        self._angles: tuple[Tensor, Tensor] | None = None  # [slots, d] each

    def allocate(self, batch: int, slots: int) -> None:
        weights = self.weights
        shape = len(weights.layers), batch, weights.kv_heads, slots, weights.head_size
        self.cache = SelfCache(shape, self.dtype, self.device)
        cos, sin = weights.angles(min(slots, self.max_positions))
        # x is rotated to x * cos + swapped(x) * sin, with its halves swapped: the sign is that of the sine.
        self._angles = (
            torch.cat([cos, cos], 1).to(self.dtype),
            torch.cat([-sin, sin], 1).to(self.dtype),
        )

    def release(self) -> None:
        self.cache = self._angles = None

    @torch.inference_mode()
    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        """Skips the head where no `nodes` are asked for: returns logits `[K, 0, V]`."""
        cache, at = self._allocated(), self.prompt_places(tokens)
        cache.clear(rows, tokens.shape[1])

        def attend(layer: int, queries: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
            cache.write_prompt(layer, rows, kv)
            return _attention(queries, kv, mask, self.weights.scale)

        x = self._embedded(tokens, self.embedded(tokens, encoder_states))
        hidden, taps = self._hidden(x, tokens.shape, self._layers(tokens.shape, at, attend))
        if nodes is not None:
            return Prefilled(self.head(self.chosen(hidden, nodes)), taps)
        return Prefilled(torch.empty((len(tokens), 0, self.vocab_size), device=self.device), taps)

    def _embedded(self, tokens: Tensor, given: Tensor | None = None) -> Tensor:
        """The states `[B N, D]` that enter the first layer: of embeddings `given [B, N, D]`, or those of the
        tokens."""
        x, scale = given, self.weights.embedding_scale
        if x is None:
            x = embedding(self.known_tokens(tokens), self.weights.embedding)
        return (x if scale == 1 else x * scale).flatten(0, 1)

    def _round(self, tokens: Tensor, at: Places, reach: int) -> tuple[Tensor, Tensor | None]:
        cache, (rows, nodes) = self._allocated(), tokens.shape
        index, readable = cache.index(at.slots), cache.readable(rows, reach, nodes)

        def attend(layer: int, queries: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
            cache.write(layer, index, kv)
            return _attention(queries, readable[layer], mask, self.weights.scale)

        layers = self._layers(tokens.shape, at, attend)
        return self._hidden(self._embedded(tokens), tokens.shape, layers)

    def _layers(self, shape: torch.Size, at: Places, attend: Attention) -> Run:
        """The layers over tokens of this shape, `(B, N)`, at these places."""
        assert self._angles is not None
        weights = self.weights
        # Queries in groups are rows of one product, in the order group, token.
        masks = {
            kind: mask.repeat(1, 1, self.groups, 1) if self.groups > 1 else mask
            for kind, mask in self.masks(at.mask, at.positions).items()
        }
        cos, sin = (embedding(at.positions, table)[:, :, None] for table in self._angles)

        def run(index: int, x: Tensor) -> Tensor:
            layer = weights.layers[index]
            mask = masks[FULL if layer.window is None else SLIDING]
            heads = self._heads(x, layer, shape, (cos, sin))
            return self._layer(index, layer, x, heads, mask, attend)

        return run

    def _heads(
        self, x: Tensor, layer: CausalLayer, shape: torch.Size, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Queries, keys and values `[B, N, H + 2 K, d]`, the first two normalised and rotated."""
        weights = self.weights
        qkv = layer.qkv(self._norm(x, layer.input_norm))
        heads = qkv.view(*shape, -1, weights.head_size)
        asked = heads[:, :, : weights.heads + weights.kv_heads]
        plain = asked
        if layer.qk_norm is not None:
            plain = rms_norm(asked, asked.shape[3:], None, weights.eps) * layer.qk_norm
        if layer.rotary:
            cos, sin = angles
            turned = plain.roll(weights.head_size // 2, -1)
            torch.mul(plain, cos, out=asked)
            asked.addcmul_(turned, sin)
        elif plain is not asked:
            asked.copy_(plain)
        return heads

    def _layer(
        self,
        index: int,
        layer: CausalLayer,
        x: Tensor,
        heads: Tensor,
        mask: Tensor,
        attend: Attention,
    ) -> Tensor:
        """One layer over `x [B N, D]`."""
        weights, (batch, nodes, _, size) = self.weights, heads.shape
        queries = heads[:, :, : weights.heads].unflatten(2, (weights.kv_heads, self.groups))
        queries = queries.permute(0, 2, 3, 1, 4).reshape(batch, weights.kv_heads, -1, size)
        kv = heads[:, :, weights.heads :].unflatten(2, (2, weights.kv_heads))
        read = attend(index, queries, kv.permute(2, 0, 3, 1, 4), mask)
        read = read.view(batch, weights.kv_heads, self.groups, nodes, size).permute(0, 3, 1, 2, 4)
        scale = weights.residual_scale
        x = torch.add(x, layer.out(read.reshape(batch * nodes, -1)), alpha=scale)
        gate, up = layer.gate_up(self._norm(x, layer.post_norm)).chunk(2, -1)
        return torch.add(x, layer.down(self.activate(gate) * up), alpha=scale)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, x.shape[1:], norm.weight, self.weights.eps)


def _attention(queries: Tensor, kv: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
    """`queries [B, H, N, d]` and `kv [2, B, H, R, d]` -> `[B, H, N, d]`."""
    return scaled_dot_product_attention(queries, kv[0], kv[1], attn_mask=mask, scale=scale)


class Sources(ABC):
    """Keys and values of encoder states for `layers` layers and `batch` rows of S states.

    `weights` is `WhisperWeights.cross_kv`. Queries are `[B, N, H, d]` and carry the scale.
    """

    def __init__(self, weights: Linear, keys: Tensor, values: Tensor) -> None:
        assert weights.bias is not None
        self.keys, self.values = keys, values  # [L, B, ...]
        layers, width = len(keys), weights.weight.shape[1]
        self.weight = weights.weight.view(layers, 2, width, width)
        self.bias = weights.bias.view(layers, 2, width)

    @abstractmethod
    def admit(self, layer: int, rows: Tensor, states: Tensor, queries: Tensor) -> Tensor:
        """Projects `states [K, S, D]` into `rows [K]` of a layer; `queries [K, P, H, d]` of the prompts read
        them: returns `[K P, D]`."""

    @abstractmethod
    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of `queries [B, N, H, d]` of the first B rows: returns `[B N, D]`."""


class Transposed(Sources):
    """See the top of the file."""

    def admit(self, layer: int, rows: Tensor, states: Tensor, queries: Tensor) -> Tensor:
        width = states.shape[2]
        read = []
        for row, own, asked in zip(rows.tolist(), states, queries, strict=True):
            keys, values = self.keys[layer, row], self.values[layer, row]  # [H, d, S]
            torch.mm(self.weight[layer, 0], own.t(), out=keys.view(width, -1))
            bias = self.bias[layer, 1][:, None]
            torch.addmm(bias, self.weight[layer, 1], own.t(), out=values.view(width, -1))
            read.append(_products(asked[None], keys, values))
        return torch.cat(read)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        rows = len(queries)
        keys, values = self.keys[layer, :rows], self.values[layer, :rows]
        return _products(queries, keys.flatten(0, 1), values.flatten(0, 1))


SPLITTING = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Kernels by preference where rows are few: flash attention divides the keys of a head between
multiprocessors, which cuDNN's kernel for several queries does not."""


class Natural(Sources):
    """See the top of the file."""

    def __init__(self, weights: Linear, keys: Tensor, values: Tensor) -> None:
        super().__init__(weights, keys, values)
        self.multiprocessors = multiprocessors(keys.device)

    def admit(self, layer: int, rows: Tensor, states: Tensor, queries: Tensor) -> Tensor:
        count, length, width = states.shape
        both = torch.addmm(
            self.bias[layer].flatten(), states.flatten(0, 1), self.weight[layer].flatten(0, 1).t()
        )
        kv = both.view(count, length, 2, *queries.shape[2:]).permute(2, 0, 3, 1, 4)
        self.keys[layer].index_copy_(0, rows, kv[0])
        self.values[layer].index_copy_(0, rows, kv[1])
        return _fused(queries, kv[0], kv[1])

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        rows, nodes, heads, _ = queries.shape
        # On an H100 with 20 heads, cuDNN's kernel and flash attention take 20 and 12 us for one row of five
        # queries, 55 and 77 for 16 rows; with one query cuDNN's is the faster one at every number of rows.
        split = nodes > 1 and rows * heads < 2 * self.multiprocessors
        with sdpa_kernel(SPLITTING, set_priority=True) if split else nullcontext():
            return _fused(queries, self.keys[layer, :rows], self.values[layer, :rows])


def multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; 0 of others."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _products(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`queries [B, N, H, d]`, keys and values `[B H, d, S]` -> `[B N, D]`."""
    batch, nodes, heads, size = queries.shape
    asked = queries.transpose(1, 2).reshape(batch * heads, nodes, size)
    weights = torch.bmm(asked, keys).softmax(-1)
    read = torch.bmm(weights, values.transpose(1, 2))  # [B H, N, d]
    return read.view(batch, heads, nodes, size).transpose(1, 2).reshape(batch * nodes, -1)


def _fused(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`queries [B, N, H, d]`, keys and values `[B, H, S, d]` -> `[B N, D]`."""
    read = scaled_dot_product_attention(queries.transpose(1, 2), keys, values, scale=1.0)
    return read.transpose(1, 2).reshape(queries.shape[0] * queries.shape[1], -1)
