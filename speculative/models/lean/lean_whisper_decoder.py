"""Whisper's decoder as one function over plain tensors, under the core's `Model` protocol.

It computes what transformers' modules compute, with a quarter of their operators: one product for query, key
and value, one mask for all layers, keys of encoder states in the layout of the product, no cache objects.
Shapes depend on the batch, the number of tokens and `reach` only, so a forward can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention
from transformers.activations import ACT2FN

from ...drafts import Prefilled, Scores, Topology
from ..slot_model import Places, SlotModel, path_slots
from .self_cache import SelfCache
from .sources import Sources, sources_for
from .weights import Norm, WhisperLayer, WhisperWeights

SelfAttention = Callable[[int, Tensor], Tensor]
"""Writes keys and values of a layer and reads them: `[3, B, H, N, d]` -> `[B, H, N, d]`."""
CrossAttention = Callable[[int, Tensor], Tensor]
"""Reads the encoder states of a layer: `[B, N, H, d]` -> `[B N, D]`."""


class LeanWhisperDecoder(SlotModel):
    """The decoder of a Whisper model. Arguments as `models.whisper_decoder.WhisperDecoder`."""

    engine = "lean"

    def __init__(
        self,
        model: Any,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        config = model.config
        self.weights, self.pick = WhisperWeights.of(model), pick
        self.length = config.max_source_positions if sources is None else sources
        self.activate = ACT2FN[self.weights.activation]
        self.cache: WhisperCache | None = None
        super().__init__(
            device=self.weights.embedding.device,
            dtype=self.weights.embedding.dtype,
            vocab_size=config.vocab_size,
            positions=config.max_target_positions,
            layers=config.decoder_layers,
            listed=listed,
        )
        if self.listed is not None:
            self.weights = replace(self.weights, head=self.weights.head.rows(self.listed))

    def allocate(self, batch: int, slots: int) -> None:
        self.cache = WhisperCache(self.weights, batch, slots, self.length)

    def release(self) -> None:
        self.cache = None

    def _allocated(self) -> WhisperCache:
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
        cache, at = self._allocated(), self.prompt_places(tokens)
        states = torch.stack([self.pick(s) for s in encoder_states]).to(self.device, self.dtype)
        cache.own.clear(rows, tokens.shape[1])

        def attend(layer: int, qkv: Tensor) -> Tensor:
            cache.own.write_prompt(layer, rows, qkv[1:])
            return scaled_dot_product_attention(
                qkv[0], qkv[1], qkv[2], attn_mask=at.mask, scale=1.0
            )

        def cross(layer: int, queries: Tensor) -> Tensor:
            return cache.sources.admit(layer, rows, states, queries)

        hidden, taps = self._hidden(tokens, at.positions, attend, cross)
        return Prefilled(self.head(self.chosen(hidden, nodes)), taps)

    def score(
        self, tokens: Tensor, start: Tensor, *, reach: int, topology: Topology | None = None
    ) -> Scores:
        hidden, taps = self._round(tokens, self.places(tokens, start, reach, topology), reach)
        return Scores(self.head(hidden), taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """See `NodeModel.score_at`."""
        hidden, _ = self._round(tokens, self.places(tokens, start, reach, None), reach)
        one = node[:, None, None].expand(-1, 1, hidden.shape[2])
        return self.head(hidden.gather(1, one))

    def commit(self, start: Tensor, path: Tensor) -> None:
        self._allocated().own.move(*path_slots(start, path))

    def embed(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self.weights.embedding)

    def head(self, states: Tensor) -> Tensor:
        return self.whole(self.weights.head(states).float())

    def _round(self, tokens: Tensor, at: Places, reach: int) -> tuple[Tensor, Tensor | None]:
        cache = self._allocated()
        own = cache.own_attention(at, reach)
        return self._hidden(tokens, at.positions, own, cache.sources.attend)

    def _hidden(
        self, tokens: Tensor, positions: Tensor, attend: SelfAttention, cross: CrossAttention
    ) -> tuple[Tensor, Tensor | None]:
        """The last hidden states `[B, N, D]` of `tokens [B, N]`, and the taps."""
        weights, shape = self.weights, (*tokens.shape, -1, self.weights.head_size)
        x = embedding(tokens, weights.embedding) + embedding(positions, weights.positions)
        x = x.view(-1, weights.width)  # [B N, D]
        states = {}
        for index, layer in enumerate(weights.layers):
            if index in self.taps:
                states[index] = x.view(*tokens.shape, -1)
            x = self._layer(index, layer, x, shape, attend, cross)
        states[-1] = self._norm(x, weights.norm).view(*tokens.shape, -1)
        return states[-1], self.tapped(states)

    def _layer(
        self,
        index: int,
        layer: WhisperLayer,
        x: Tensor,
        shape: tuple[int, ...],
        attend: SelfAttention,
        cross: CrossAttention,
    ) -> Tensor:
        """One layer over `x [B N, D]`; `shape` is (B, N, -1, d)."""
        qkv = layer.qkv(self._norm(x, layer.self_norm)).view(*shape[:2], 3, -1, shape[3])
        read = attend(index, qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2).reshape(x.shape)
        x = x + layer.out(read)
        queries = layer.cross_q(self._norm(x, layer.cross_norm)).view(shape)
        x = x + layer.cross_out(cross(index, queries))
        inner = self.activate(layer.up(self._norm(x, layer.ffn_norm)))
        return x + layer.down(inner)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return layer_norm(x, x.shape[1:], norm.weight, norm.bias, self.weights.eps)


class WhisperCache:
    """Keys and values of `batch` rows: of `slots` tokens, and of `length` encoder states."""

    def __init__(self, weights: WhisperWeights, batch: int, slots: int, length: int) -> None:
        like, layers = weights.embedding, len(weights.layers)
        self.own = SelfCache(
            layers=layers,
            batch=batch,
            heads=weights.heads,
            slots=slots,
            size=weights.head_size,
            dtype=like.dtype,
            device=like.device,
        )
        self.sources: Sources = sources_for(
            weights.cross_kv,
            layers=layers,
            batch=batch,
            heads=weights.heads,
            length=length,
            like=like,
        )

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of self-attention, per layer."""
        return self.own.layers

    @property
    def cross(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the encoder states, per layer."""
        return self.sources.layers

    def own_attention(self, at: Places, reach: int) -> SelfAttention:
        """Self-attention of a forward at these places, which reads below `reach`."""
        rows, nodes = at.slots.shape
        index, readable = self.own.index(at.slots), self.own.readable(rows, reach, nodes)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            self.own.write(layer, index, qkv[1:])
            keys, values = readable[layer]
            return scaled_dot_product_attention(qkv[0], keys, values, attn_mask=at.mask, scale=1.0)

        return attend
