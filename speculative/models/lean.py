"""Whisper's decoder and Llama-like decoders as functions over plain tensors.

They compute what transformers' modules compute. Whisper's takes a quarter of their operators: one product for
query, key and value, one mask for all layers, keys of encoder states in the layout of the product, no cache
objects. The Llama-like one has RMS norms, rotary positions, grouped queries, a gated feed-forward; biases,
norms of queries and keys, sliding windows and layers without positions where a model has them. One product
gives query, key and value, one the two halves of the feed-forward; angles come from a table. The queries that
share a key are rows of one product, so no key is repeated. Anything that a form does not know keeps it
from being used: another module, quantised projections, hooks; `whisper_gap`, `encoder_gap` and `causal_gap`
return the reason.

Shapes depend on the batch, the number of tokens and `reach` only, so a forward can be captured as a graph.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, rms_norm, scaled_dot_product_attention

from ..errors import LoadError
from ..types import Prefilled, Scores
from . import plain
from .caches import SelfCache, Sources, sources_for
from .causal import FULL, SLIDING, CausalModel
from .quantized import Int8Linear
from .slot_model import Places, SlotModel, WhisperModel, at_node
from .weights import (
    CausalLayer,
    CausalWeights,
    Norm,
    WhisperWeights,
    activation,
)

CAUSAL = frozenset(
    {"cwm", "llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3"}
)
"""Types whose modules differ from Llama's only in biases, norms of queries and keys, windows, and layers
without positions."""

FIXED_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary frequencies that do not depend on a text's length."""

_BODY = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"input_layernorm", "mlp", "post_attention_layernorm", "self_attn"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}

Run = Callable[[int, Tensor], Tensor]
"""One layer, by its index, over `x [B N, D]`."""

SelfAttention = Callable[[int, Tensor], Tensor]
"""Writes keys and values of a layer and reads them: `[3, B, H, N, d]` -> `[B, H, N, d]`."""
CrossAttention = Callable[[int, Tensor], Tensor]
"""Reads the encoder states of a layer: `[B, N, H, d]` -> `[B N, D]`."""

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Writes and reads a layer: layer, queries `[B, K, G N, d]`, keys and values `[2, B, K, N, d]`, mask
`[B, 1, G N, R]` -> `[B, K, G N, d]`."""


class LeanDecoder(SlotModel):
    """What the decoders share: forwards over a `SelfCache`, layer by layer."""

    engine = "lean"
    weights: Any
    cache: SelfCache | None = None

    @abstractmethod
    def _embedded(self, tokens: Tensor, at: Places) -> Tensor:
        """The states `[B N, D]` that enter the first layer."""

    @abstractmethod
    def _round(self, tokens: Tensor, at: Places, reach: int) -> tuple[Tensor, Tensor | None]:
        """States and taps, as `_hidden`, of a forward that writes at these places and reads below `reach`."""

    @abstractmethod
    def _norm(self, x: Tensor, norm: Norm) -> Tensor: ...

    def score(self, tokens: Tensor, start: Tensor, *, reach: int) -> Scores:
        hidden, taps = self._round(tokens, self.places(tokens, start, reach), reach)
        return Scores(self.head(hidden), taps)

    def score_at(self, tokens: Tensor, start: Tensor, node: Tensor, *, reach: int) -> Tensor:
        """See `NodeModel.score_at`."""
        hidden, _ = self._round(tokens, self.places(tokens, start, reach), reach)
        return self.head(at_node(hidden, node))

    def _hidden(self, tokens: Tensor, at: Places, layer: Run) -> tuple[Tensor, Tensor | None]:
        """The last hidden states `[B, N, D]` of `tokens [B, N]`, and the taps."""
        x, states = self._embedded(tokens, at), {}
        for index in range(self.depth):
            if index in self.taps:
                states[index] = x.view(*tokens.shape, -1)
            x = layer(index, x)
        states[-1] = self._norm(x, self.weights.norm).view(*tokens.shape, -1)
        return states[-1], self.tapped(states)


class LeanWhisperDecoder(WhisperModel, LeanDecoder):
    """The decoder of a Whisper model; arguments as `WhisperModel`."""

    weights: WhisperWeights
    cross: Sources | None = None

    def prepare(self, model: Any, stored: torch.dtype) -> None:
        self.weights = WhisperWeights.of(model, self.listed)
        self.output, self.activate = self.weights.head, activation(self.weights.activation)

    def allocate(self, batch: int, slots: int) -> None:
        weights, layers = self.weights, len(self.weights.layers)
        like, heads = weights.embedding, weights.heads
        self.cache = SelfCache(
            layers=layers,
            batch=batch,
            heads=heads,
            slots=slots,
            size=weights.head_size,
            dtype=like.dtype,
            device=like.device,
        )
        self.cross = sources_for(
            weights.cross_kv,
            layers=layers,
            batch=batch,
            heads=heads,
            length=self.sources,
            like=like,
        )

    def release(self) -> None:
        self.cache = self.cross = None

    @torch.inference_mode()
    def prefill(
        self,
        rows: Tensor,
        tokens: Tensor,
        encoder_states: Sequence[Any],
        nodes: Tensor | None = None,
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

        hidden, taps = self._hidden(tokens, at, self._layers(tokens.shape, attend, cross))
        return Prefilled(self.head(self.chosen(hidden, nodes)), taps)

    def _embedded(self, tokens: Tensor, at: Places) -> Tensor:
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
        return self._hidden(tokens, at, layers)

    def _layers(self, shape: Sequence[int], attend: SelfAttention, cross: CrossAttention) -> Run:
        """The layers over tokens of this shape, `(B, N)`."""
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
        self.cache = SelfCache(
            layers=len(weights.layers),
            batch=batch,
            heads=weights.kv_heads,
            slots=slots,
            size=weights.head_size,
            dtype=self.dtype,
            device=self.device,
        )
        cos, sin = weights.angles(min(slots, self._positions))
        # x is rotated to x * cos + swapped(x) * sin, with its halves swapped: the sign is that of the sine.
        self._angles = (
            torch.cat([cos, cos], 1).to(self.dtype),
            torch.cat([-sin, sin], 1).to(self.dtype),
        )

    def release(self) -> None:
        self.cache = self._angles = None

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
            return _attention(queries, kv, mask, self.weights.scale)

        hidden, taps = self._hidden(tokens, at, self._layers(tokens.shape, at, attend))
        if nodes is not None:
            return Prefilled(self.head(self.chosen(hidden, nodes)), taps)
        return Prefilled(torch.empty((len(tokens), 0, self.vocab_size), device=self.device), taps)

    def head(self, states: Tensor) -> Tensor:
        return self.own_vocabulary(self.weights.head(states))

    def _embedded(self, tokens: Tensor, at: Places) -> Tensor:
        return embedding(self.known_tokens(tokens), self.weights.embedding).flatten(0, 1)

    def _round(self, tokens: Tensor, at: Places, reach: int) -> tuple[Tensor, Tensor | None]:
        cache, (rows, nodes) = self._allocated(), tokens.shape
        index, readable = cache.index(at.slots), cache.readable(rows, reach, nodes)

        def attend(layer: int, queries: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
            cache.write(layer, index, kv)
            return _attention(queries, readable[layer], mask, self.weights.scale)

        return self._hidden(tokens, at, self._layers(tokens.shape, at, attend))

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
        x = x + layer.out(read.reshape(batch * nodes, -1))
        gate, up = layer.gate_up(self._norm(x, layer.post_norm)).chunk(2, -1)
        return x + layer.down(self.activate(gate) * up)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, x.shape[1:], norm.weight, self.weights.eps)


def _attention(queries: Tensor, kv: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
    """`queries [B, H, N, d]` and `kv [2, B, H, R, d]` -> `[B, H, N, d]`."""
    return scaled_dot_product_attention(queries, kv[0], kv[1], attn_mask=mask, scale=scale)


def whisper_gap(model: Any) -> str | None:
    """Why a Whisper has no lean form."""
    decoder = model.model.decoder
    if isinstance(decoder, plain.Decoder):
        return _foreign([decoder, model.proj_out])
    from transformers.models.whisper.modeling_whisper import WhisperDecoder, WhisperDecoderLayer

    if type(decoder) is not WhisperDecoder:
        return f"its decoder is a {type(decoder).__name__}"
    strange = {type(layer).__name__ for layer in decoder.layers} - {WhisperDecoderLayer.__name__}
    if strange:
        return f"its layers are {', '.join(sorted(strange))}"
    return _foreign([decoder, model.proj_out])


def encoder_gap(encoder: Any) -> str | None:
    """Why a Whisper's encoder has no form of plain weights."""
    if isinstance(encoder, plain.Encoder) and len(encoder.layers):
        return _foreign([encoder])
    from transformers.models.whisper.modeling_whisper import WhisperEncoder, WhisperEncoderLayer

    if type(encoder) is not WhisperEncoder:
        return f"it is a {type(encoder).__name__}"
    kinds = {type(layer) for layer in encoder.layers} - {WhisperEncoderLayer}
    kinds |= {type(conv) for conv in (encoder.conv1, encoder.conv2)} - {torch.nn.Conv1d}
    if kinds or not len(encoder.layers):
        return f"it is made of {', '.join(sorted(kind.__name__ for kind in kinds)) or 'no layers'}"
    return _foreign([encoder])


def causal_gap(model: Any) -> str | None:
    """Why a causal LM has no lean form."""
    config, body = model.config.get_text_config(), model.base_model
    if config.model_type not in CAUSAL:
        return f"{config.model_type} has none"
    if config is not model.config or not _named(body, _BODY) or not hasattr(model, "lm_head"):
        return "its body is not Llama's"
    rotation = getattr(body.rotary_emb, "rope_type", None)
    if not isinstance(rotation, str) or rotation not in FIXED_ROTATIONS:
        return f"its rotary positions are {rotation}"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        return f"it has layers of {', '.join(sorted(kinds))}"
    for layer in body.layers:
        optional = {n for n in ("q_norm", "k_norm") if hasattr(layer.self_attn, n)}
        if not (
            _named(layer, _LAYER)
            and _named(layer.self_attn, _PROJECTIONS | optional)
            and _named(layer.mlp, _MLP)
        ):
            return "its layers are not Llama's"
    if not hasattr(body.norm, "variance_epsilon"):
        return f"its norms are {type(body.norm).__name__}"
    return _foreign([body, model.lm_head])


def _named(module: Any, names: set[str]) -> bool:
    return {name for name, _ in module.named_children()} == names


def _in_the_models_dtype(module: torch.nn.Module) -> Iterable[torch.nn.Parameter]:
    """A module's own parameters, but for the integers and scales of int8."""
    if isinstance(module, Int8Linear):
        return () if module.bias is None else (module.bias,)
    return module.parameters(recurse=False)


def _foreign(roots: Iterable[torch.nn.Module]) -> str | None:
    """What a plain reading of the weights would miss: hooks, quantised or scattered weights."""
    modules = [module for root in roots for module in root.modules()]
    for module in modules:
        name = type(module).__name__
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return f"hooks are registered on its {name}"
        if name.endswith(("Linear", "Conv1D")) and type(module) not in (
            torch.nn.Linear,
            Int8Linear,
        ):
            return f"its projections are {name}"
    wrapped = {
        type(weight).__name__ for module in modules for weight in module.parameters(recurse=False)
    }
    if wrapped - {"Parameter"}:  # torchao replaces weights and keeps the modules
        return f"its weights are {', '.join(sorted(wrapped - {'Parameter'}))}"
    weights = [weight for module in modules for weight in _in_the_models_dtype(module)]
    if len({(weight.dtype, weight.device) for weight in weights}) != 1:
        return "its weights have several dtypes or devices"
    return None
