"""The weights of decoders and of Whisper's encoder as plain tensors, read from transformers' modules.

Projections that read the same input are one matrix, and a draft's head may have the rows of some tokens alone
(`cut`): a draft is only a guess, so a head without the rare tokens changes no text. (Frequency-ranked drafts:
Zhao et al. 2025, 2502.14856.) Nothing here computes but `Linear`: the lean decoders do, and native kernels
pack these records.

Letters: D width, H heads, K heads of keys and values, d size of a head, F inner width, L layers, P positions,
V vocabulary; of the encoder M mel bins, S positions of a window. A matrix is `[out, in]`, as
`torch.nn.functional.linear` takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu

from .quantized import Int8Linear, int8_product

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "relu": relu,
    "silu": silu,
    "swish": silu,
}
"""The activations of most models by transformers' names; `activation` knows the others too."""


@dataclass(frozen=True, eq=False)
class Norm:
    """Weight `[D]` of a normalisation; an RMS norm has no bias."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Linear:
    """Weight `[out, in]` and bias `[out]` of a projection; in int8, the scale `[out]` of each output."""

    weight: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`x [..., in]` -> `[..., out]`."""
        if self.scale is not None:
            return int8_product(x, self.weight, self.scale, self.bias)
        return linear(x, self.weight, self.bias)

    def rows(self, outputs: Tensor | slice) -> Linear:
        """The projection to these outputs alone."""
        rest = (None if x is None else x[outputs] for x in (self.bias, self.scale))
        return Linear(self.weight[outputs], *rest)


@dataclass(frozen=True, eq=False)
class WhisperWeights:
    """A Whisper decoder. `cross_kv` gives the cross-attention keys and values of all layers in one product:
    its rows are the keys of layer 0, its values, the keys of layer 1, ..."""

    embedding: Tensor  # [V, D]
    positions: Tensor  # [P, D]
    layers: tuple[WhisperLayer, ...]
    norm: Norm
    head: Linear  # [V, D] or [C, D]; the embedding itself where they are tied
    cross_kv: Linear  # [L 2 D, D]
    heads: int
    activation: str  # transformers' name of it
    eps: float  # of every layer norm

    @property
    def width(self) -> int:
        return self.embedding.shape[1]

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @classmethod
    def of(cls, model: Any, listed: Tensor | None = None) -> WhisperWeights:
        """The weights of a `WhisperForConditionalGeneration` or `WhisperForCausalLM`; of the head the rows of
        the `listed` tokens `[C]` (None: all). The model's modules share them; only queries are copies, as
        their scale is part of them."""
        decoder = model.model.decoder
        cross = [p for x in decoder.layers for p in (x.encoder_attn.k_proj, x.encoder_attn.v_proj)]
        return cls(
            embedding=decoder.embed_tokens.weight.detach(),
            positions=decoder.embed_positions.weight.detach(),
            layers=tuple(_whisper_layer(layer) for layer in decoder.layers),
            norm=norm_of(decoder.layer_norm),
            head=head_of(model.proj_out, listed),
            cross_kv=fused(cross),
            heads=model.config.decoder_attention_heads,
            activation=model.config.activation_function,
            eps=decoder.layer_norm.eps,
        )


@dataclass(frozen=True, eq=False)
class WhisperLayer:
    """One layer of Whisper's decoder. Both query projections contain attention's scale, `d ** -0.5`."""

    self_norm: Norm
    qkv: Linear  # [3 D, D]; the keys' bias is zero
    out: Linear  # [D, D]
    cross_norm: Norm
    cross_q: Linear  # [D, D]
    cross_out: Linear  # [D, D]
    ffn_norm: Norm
    up: Linear  # [F, D]
    down: Linear  # [D, F]


@dataclass(frozen=True, eq=False)
class CausalWeights:
    """A Llama-like decoder: RMS norms, rotary positions, a gated feed-forward.

    The angle of position p is `p * inv_freq`, for both halves of a head; cosine and sine are multiplied by
    `rotary_scale`. Scores are multiplied by `scale`.
    """

    embedding: Tensor  # [V, D]
    layers: tuple[CausalLayer, ...]
    norm: Norm
    head: Linear  # [V, D] or [C, D]
    inv_freq: Tensor  # [d / 2] float32
    rotary_scale: float
    heads: int
    kv_heads: int
    head_size: int
    scale: float
    activation: str  # transformers' name of it
    eps: float

    def angles(self, positions: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[positions, d / 2]` of every position, in float32."""
        places = torch.arange(positions, device=self.inv_freq.device).float()
        half = places[:, None] * self.inv_freq
        return half.cos() * self.rotary_scale, half.sin() * self.rotary_scale

    @classmethod
    def of(cls, model: Any) -> CausalWeights:
        """The weights of a causal LM that `coverage.causal_gap` finds no fault with. The model's modules
        share them, and compute as before."""
        body, config = model.base_model, model.config
        first = body.layers[0].self_attn
        return cls(
            embedding=body.embed_tokens.weight.detach(),
            layers=tuple(_causal_layer(layer, config, i) for i, layer in enumerate(body.layers)),
            norm=norm_of(body.norm),
            head=linear_of(model.lm_head),
            inv_freq=body.rotary_emb.inv_freq.float(),
            rotary_scale=float(body.rotary_emb.attention_scaling),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=first.head_dim,
            scale=float(first.scaling),
            activation=config.hidden_act,
            eps=body.norm.variance_epsilon,
        )


@dataclass(frozen=True, eq=False)
class CausalLayer:
    """One layer of a Llama-like decoder."""

    input_norm: Norm
    qkv: Linear  # [(H + 2 K) d, D]
    q_norm: Norm | None  # [d], of every head, before the rotation
    k_norm: Norm | None
    qk_norm: Tensor | None  # [H + K, d], both for all heads
    out: Linear  # [D, H d]
    post_norm: Norm
    gate_up: Linear  # [2 F, D]
    down: Linear  # [D, F]
    window: int | None  # a query reads this many positions, itself included; None: all
    rotary: bool  # False: this layer knows no positions


@dataclass(frozen=True, eq=False)
class EncoderWeights:
    """A Whisper encoder. Convolutions read three frames at a time."""

    conv1: Linear  # [D, M, 3]
    conv2: Linear  # [D, D, 3]
    positions: Tensor  # [S, D]
    layers: tuple[EncoderLayer, ...]
    norm: Norm
    heads: int
    activation: str  # transformers' name of the layers' activation
    eps: float  # of every layer norm

    @property
    def width(self) -> int:
        return self.positions.shape[1]

    @property
    def mels(self) -> int:
        return self.conv1.weight.shape[1]

    @classmethod
    def of(cls, encoder: Any) -> EncoderWeights:
        """The weights of a `WhisperEncoder`, which shares them; only queries are copies. Those of its layers
        may be in int8."""
        return cls(
            conv1=linear_of(encoder.conv1),
            conv2=linear_of(encoder.conv2),
            positions=encoder.embed_positions.weight.detach(),
            layers=tuple(_encoder_layer(layer) for layer in encoder.layers),
            norm=norm_of(encoder.layer_norm),
            heads=encoder.config.encoder_attention_heads,
            activation=encoder.config.activation_function,
            eps=encoder.layer_norm.eps,
        )


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """One layer. The query projection contains attention's scale, `d ** -0.5`."""

    attention_norm: Norm
    query: Linear  # [D, D], as the next three
    key: Linear
    value: Linear
    out: Linear
    ffn_norm: Norm
    up: Linear  # [F, D]
    down: Linear  # [D, F]


def decoder_only(config: Any) -> bool:
    """Whether a folder with this configuration holds a `WhisperForCausalLM`: a draft, never a target."""
    return "WhisperForCausalLM" in (config.architectures or [])


def encoder_of(model: Any) -> Any:
    """The encoder of a `WhisperForConditionalGeneration`; None for the decoder-only class."""
    return getattr(model.model, "encoder", None)


def decoder_parameters(model: Any) -> list[Tensor]:
    """The weights of a Whisper's decoder and of its head, a tied one once."""
    return list(
        {
            id(p): p for part in (model.model.decoder, model.proj_out) for p in part.parameters()
        }.values()
    )


def same_encoder(model: Any, other: Any) -> bool:
    """True where both encoders hold equal weights, so that one's output serves both; else False."""
    encoder, second = encoder_of(model), encoder_of(other)
    if encoder is None or second is None:
        return second is None
    weights, others = encoder.state_dict(), second.state_dict()
    return weights.keys() == others.keys() and all(
        torch.equal(weights[name], others[name]) for name in weights
    )


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by transformers' name of it."""
    known = ACTIVATIONS.get(name)
    if known is not None:
        return known
    from transformers.activations import ACT2FN

    found: Callable[[Tensor], Tensor] = ACT2FN[name]
    return found


def norm_of(module: Any) -> Norm:
    """The weights of a normalisation."""
    return Norm(*_tensors(module))


def linear_of(module: Any) -> Linear:
    """The weights of a `torch.nn.Linear`, or of its form in int8."""
    scale = getattr(module, "scale", None)
    return Linear(*_tensors(module), None if scale is None else scale.detach())


def fused(modules: Sequence[Any], scales: Sequence[float] | None = None) -> Linear:
    """Projections of one input as one matrix, each multiplied by its scale; a missing bias is zero where
    another has one.

    The modules' own weights become parts of that matrix, equal as before, so that no second copy remains:
    query, key, value and feed-forward are most of a model. Only those with a scale are kept apart. In int8
    it is a part of the outputs' scales.
    """
    factors = scales or [1.0] * len(modules)
    parts = [linear_of(module) for module in modules]
    own = [p.scale * s for p, s in zip(parts, factors, strict=True) if p.scale is not None]
    if len(own) == len(parts):
        scales = None
    weight = _joined([part.weight for part in parts]) if scales is None else None
    if weight is None:
        scaled = [p.weight if own else p.weight * s for p, s in zip(parts, factors, strict=True)]
        weight = torch.cat(scaled)
        for module, view, factor in zip(
            modules, weight.split([*map(_rows, parts)]), factors, strict=True
        ):
            if own or factor == 1:
                module.weight.data = view
    joined = torch.cat(own) if own else None
    if all(p.bias is None for p in parts):
        return Linear(weight, None, joined)
    like = next(p.bias for p in parts if p.bias is not None)
    biases = [
        like.new_zeros(_rows(p)) if p.bias is None else p.bias * s
        for p, s in zip(parts, factors, strict=True)
    ]
    return Linear(weight, torch.cat(biases), joined)


def head_of(module: Any, tokens: Tensor | None) -> Linear:
    """The weights of a head, those of these tokens `[C]`; None: all."""
    head = linear_of(module)
    return head if tokens is None else head.rows(tokens)


def cut(head: torch.nn.Linear | Int8Linear, tokens: Tensor | None) -> torch.nn.Module:
    """A head with the rows of these tokens `[C]`; None: the head itself."""
    if tokens is None:
        return head
    if isinstance(head, Int8Linear):
        return head.rows(tokens)
    with torch.device("meta"):
        made = torch.nn.Linear(head.in_features, len(tokens), bias=head.bias is not None)
    made.weight = torch.nn.Parameter(head.weight.detach()[tokens], requires_grad=False)
    if head.bias is not None:
        made.bias = torch.nn.Parameter(head.bias.detach()[tokens], requires_grad=False)
    return made


def _tensors(module: Any) -> tuple[Tensor, Tensor | None]:
    bias = getattr(module, "bias", None)
    return module.weight.detach(), None if bias is None else bias.detach()


def _rows(part: Linear) -> int:
    return len(part.weight)


def _joined(weights: Sequence[Tensor]) -> Tensor | None:
    """The matrix that these are consecutive parts of, as an earlier call has left them, or None."""
    first, end = weights[0], weights[0].data_ptr()
    for weight in weights:
        same = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or weight.data_ptr() != end or not weight.is_contiguous():
            return None
        end += weight.numel() * weight.element_size()
    rows = sum(map(len, weights))
    return first.as_strided((rows, first.shape[1]), first.stride(), first.storage_offset())


def _whisper_layer(layer: Any) -> WhisperLayer:
    attention, cross = layer.self_attn, layer.encoder_attn
    scale = attention.scaling
    return WhisperLayer(
        self_norm=norm_of(layer.self_attn_layer_norm),
        qkv=fused([attention.q_proj, attention.k_proj, attention.v_proj], (scale, 1, 1)),
        out=linear_of(attention.out_proj),
        cross_norm=norm_of(layer.encoder_attn_layer_norm),
        cross_q=fused([cross.q_proj], (cross.scaling,)),
        cross_out=linear_of(cross.out_proj),
        ffn_norm=norm_of(layer.final_layer_norm),
        up=linear_of(layer.fc1),
        down=linear_of(layer.fc2),
    )


def _causal_layer(layer: Any, config: Any, index: int) -> CausalLayer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (
        norm_of(module) if (module := getattr(attention, name, None)) is not None else None
        for name in ("q_norm", "k_norm")
    )
    kinds = getattr(config, "layer_types", None)
    slides = kinds[index] == "sliding_attention" if kinds else True
    window = getattr(config, "sliding_window", None) if slides else None
    return CausalLayer(
        input_norm=norm_of(layer.input_layernorm),
        qkv=fused([attention.q_proj, attention.k_proj, attention.v_proj]),
        q_norm=q_norm,
        k_norm=k_norm,
        qk_norm=_of_all_heads(q_norm, k_norm, config),
        out=linear_of(attention.o_proj),
        post_norm=norm_of(layer.post_attention_layernorm),
        gate_up=fused([mlp.gate_proj, mlp.up_proj]),
        down=linear_of(mlp.down_proj),
        window=window,
        rotary=bool(getattr(attention, "use_rope", True)),
    )


def _of_all_heads(q_norm: Norm | None, k_norm: Norm | None, config: Any) -> Tensor | None:
    """The weights of both norms, one row for each head of queries and then of keys."""
    if q_norm is None or k_norm is None:
        return None
    queries = q_norm.weight.expand(config.num_attention_heads, -1)
    return torch.cat([queries, k_norm.weight.expand(config.num_key_value_heads, -1)])


def _encoder_layer(layer: Any) -> EncoderLayer:
    attention = layer.self_attn
    return EncoderLayer(
        attention_norm=norm_of(layer.self_attn_layer_norm),
        query=_scaled(linear_of(attention.q_proj), attention.scaling),
        key=linear_of(attention.k_proj),
        value=linear_of(attention.v_proj),
        out=linear_of(attention.out_proj),
        ffn_norm=norm_of(layer.final_layer_norm),
        up=linear_of(layer.fc1),
        down=linear_of(layer.fc2),
    )


def _scaled(linear: Linear, factor: float) -> Linear:
    """A projection whose outputs are multiplied by a factor; in int8 the outputs' scales are."""
    bias = None if linear.bias is None else linear.bias * factor
    if linear.scale is None:
        return Linear(linear.weight * factor, bias)
    return Linear(linear.weight, bias, linear.scale * factor)


def version(parameters: Iterable[Tensor]) -> object:
    """What changes with weights: where they are, and how often they were written to."""
    return [(p.data_ptr(), None if p.is_inference() else p._version) for p in parameters]
