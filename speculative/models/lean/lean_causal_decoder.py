"""Llama-like decoders as one function over plain tensors, under the core's `Model` protocol.

RMS norms, rotary positions, grouped queries, a gated feed-forward; biases, norms of queries and keys, sliding
windows and layers without positions where a model has them. One product gives query, key and value, one the
two halves of the feed-forward; angles come from a table. The queries that share a key are rows of one
product, so no key is repeated. `coverage.causal_gap` says which models have this form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention
from transformers.activations import ACT2FN

from ...drafts import Prefilled, Scores, Topology
from ...errors import LoadError
from ..cut_head import rows_of
from ..families.causal_config import FULL, SLIDING
from ..families.causal_model import CausalModel
from ..slot_model import Places, path_slots
from .coverage import causal_gap
from .self_cache import SelfCache
from .weights import CausalLayer, CausalWeights, Norm

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Writes and reads a layer: layer, queries `[B, K, G N, d]`, keys and values `[2, B, K, N, d]`, mask
`[B, 1, G N, R]` -> `[B, K, G N, d]`."""


class LeanCausalDecoder(CausalModel):
    """A Llama-like causal LM; arguments and errors as `CausalModel`."""

    engine = "lean"
    weights: CausalWeights
    cache: SelfCache | None = None

    def prepare(self) -> None:
        gap = causal_gap(self.model)
        if gap is not None:
            raise LoadError(f"{self.config.model_type} has no lean form: {gap}")
        weights = CausalWeights.of(self.model)
        self.weights = weights = replace(weights, head=rows_of(weights.head, self.listed))
        self.activate = ACT2FN[weights.activation]
        self.groups = weights.heads // weights.kv_heads
        self._angles: tuple[Tensor, Tensor] | None = None  # [slots, d] each

    def allocate(self, batch: int, slots: int) -> None:
        weights = self.weights
        self.cache = SelfCache(
            layers=len(weights.layers),
            batch=batch,
            heads=weights.kv_heads,
            slots=slots,
            size=weights.head_size,
            dtype=self.dtype,
            device=self.device,
        )
        self._angles = weights.angles(min(slots, self._positions), self.dtype)

    def release(self) -> None:
        self.cache = self._angles = None

    def _allocated(self) -> SelfCache:
        if self.cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self.cache

    @torch.inference_mode()
    def prefill(
        self,
        rows: Tensor,
        tokens: Tensor,
        encoder_states: Sequence[Any],
        nodes: Tensor | None = None,
    ) -> Prefilled:
        """Skips the head where no `nodes` are asked for: returns logits `[K, 0, V]`."""
        cache, at = self._allocated(), self.prompt_places(tokens)
        cache.clear(rows, tokens.shape[1])

        def attend(layer: int, queries: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
            cache.write_prompt(layer, rows, kv)
            return self._attention(queries, kv, mask)

        hidden, taps = self._hidden(tokens, at, attend)
        if nodes is not None:
            return Prefilled(self._logits(self.chosen(hidden, nodes)), taps)
        return Prefilled(torch.empty((len(tokens), 0, self.vocab_size), device=self.device), taps)

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        at = self.places(tokens, start, reach, topology)
        hidden, taps = self._hidden(tokens, at, self._cached(at, reach))
        return Scores(self._logits(hidden), taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """See `NodeModel.score_at`."""
        at = self.places(tokens, start, reach, None)
        hidden, _ = self._hidden(tokens, at, self._cached(at, reach))
        one = node[:, None, None].expand(-1, 1, hidden.shape[2])
        return self._logits(hidden.gather(1, one))

    def commit(self, start: Tensor, path: Tensor) -> None:
        self._allocated().move(*path_slots(start, path))

    def _cached(self, at: Places, reach: int) -> Attention:
        """Attention of a forward at these places, which reads below `reach`."""
        cache = self._allocated()
        index, readable = (
            cache.index(at.slots),
            cache.readable(len(at.slots), reach, at.slots.shape[1]),
        )

        def attend(layer: int, queries: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
            cache.write(layer, index, kv)
            return self._attention(queries, readable[layer], mask)

        return attend

    def _attention(self, queries: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
        scale = self.weights.scale
        return scaled_dot_product_attention(queries, kv[0], kv[1], attn_mask=mask, scale=scale)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.own_vocabulary(self.weights.head(hidden))

    def _hidden(
        self, tokens: Tensor, at: Places, attend: Attention
    ) -> tuple[Tensor, Tensor | None]:
        """The last hidden states `[B, N, D]` of `tokens [B, N]`, and the taps."""
        assert self._angles is not None
        weights = self.weights
        x = embedding(self.known_tokens(tokens), weights.embedding).flatten(0, 1)
        # Queries in groups are rows of one product, in the order group, token.
        masks = {
            kind: mask.repeat(1, 1, self.groups, 1) if self.groups > 1 else mask
            for kind, mask in self.masks(at.mask, at.positions).items()
        }
        cos, sin = (embedding(at.positions, table)[:, :, None] for table in self._angles)
        states = {}
        for index, layer in enumerate(weights.layers):
            if index in self.taps:
                states[index] = x.view(*tokens.shape, -1)
            mask = masks[FULL if layer.window is None else SLIDING]
            heads = self._heads(x, layer, tokens.shape, (cos, sin))
            x = self._layer(index, layer, x, heads, mask, attend)
        states[-1] = self._norm(x, weights.norm).view(*tokens.shape, -1)
        return states[-1], self.tapped(states)

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
            turned = plain.roll(
                weights.head_size // 2, -1
            )  # sin carries the sign of the first half
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
        x = x + layer.out(read.reshape(batch * nodes, -1))
        gate, up = layer.gate_up(self._norm(x, layer.post_norm)).chunk(2, -1)
        return x + layer.down(self.activate(gate) * up)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, x.shape[1:], norm.weight, self.weights.eps)
