"""The weights of decoders and of Whisper's encoder as plain tensors, read from transformers' modules.

Projections that read the same input are one matrix, and a draft's head may have the rows of some tokens alone
(`listed`): a draft is only a guess, so a head without the rare tokens changes no text. (Frequency-ranked
drafts: Zhao et al. 2025, 2502.14856.) Nothing here computes but `Linear`: the lean decoders do, and native
kernels pack these records. Anything that they do not know keeps a model from being read so: another module,
quantised projections, hooks; `whisper_gap`, `encoder_gap` and `causal_gap` return the reason.

Letters: D width, H heads, K heads of keys and values, d size of a head, F inner width, L layers, P positions,
V vocabulary; of the encoder M mel bins, S positions of a window. A matrix is `[out, in]`, as
`torch.nn.functional.linear` takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from . import plain
from .quantized import Int8Linear, int8_product

CAUSAL = frozenset(
    {"cwm", "granite", "llama", "ministral", "mistral", "qwen2", "qwen3", "seed_oss", "smollm3"}
)
"""Types whose modules differ from Llama's only in biases, norms of queries and keys, windows, layers without
positions, and Granite's factors."""

FIXED_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary frequencies that do not depend on a text's length."""


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
        bias = None if self.bias is None else self.bias[outputs]
        scale = None if self.scale is None else self.scale[outputs]
        return Linear(self.weight[outputs], bias, scale)


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
            layers=tuple(map(_whisper_layer, decoder.layers)),
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
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and feed-forward add
    logits_scale: float = 1.0

    def angles(self, positions: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine `[positions, d / 2]` of every position, in float32."""
        places = torch.arange(positions, device=self.inv_freq.device).float()
        half = places[:, None] * self.inv_freq
        return half.cos() * self.rotary_scale, half.sin() * self.rotary_scale

    @classmethod
    def of(cls, model: Any) -> CausalWeights:
        """The weights of a causal LM that `causal_gap` finds no fault with. The model's modules
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
            embedding_scale=float(getattr(config, "embedding_multiplier", 1)),
            residual_scale=float(getattr(config, "residual_multiplier", 1)),
            logits_scale=1 / getattr(config, "logits_scaling", 1),
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
            layers=tuple(map(_encoder_layer, encoder.layers)),
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


def same_encoder(model: Any, other: Any) -> bool:
    """True where both encoders hold equal weights, so that one's output serves both; else False."""
    encoder, second = encoder_of(model), encoder_of(other)
    if encoder is None or second is None:
        return second is None
    weights, others = encoder.state_dict(), second.state_dict()
    return weights.keys() == others.keys() and all(
        torch.equal(weights[name], others[name]) for name in weights
    )


def norm_of(module: Any) -> Norm:
    """The weights of a normalisation."""
    part = linear_of(module)
    return Norm(part.weight, part.bias)


def linear_of(module: Any) -> Linear:
    """The weights of a `torch.nn.Linear`, or of its form in int8."""
    bias, scale = getattr(module, "bias", None), getattr(module, "scale", None)
    return Linear(
        module.weight.detach(),
        None if bias is None else bias.detach(),
        None if scale is None else scale.detach(),
    )


def fused(modules: Sequence[Any], scales: Sequence[float] | None = None) -> Linear:
    """Projections of one input as one matrix, each multiplied by its scale; a missing bias is zero where
    another has one.

    The modules' own weights become parts of that matrix, equal as before, so that no second copy remains:
    query, key, value and feed-forward are most of a model. Only those with a scale are kept apart. In int8
    it is a part of the outputs' scales.
    """
    parts = scaled = [linear_of(module) for module in modules]
    if scales is not None:
        scaled = [_scaled(part, scale) for part, scale in zip(parts, scales, strict=True)]
    own = [part.weight is given.weight for part, given in zip(scaled, parts, strict=True)]
    weight = _joined([part.weight for part in scaled]) if all(own) else None
    if weight is None:
        weight = torch.cat([part.weight for part in scaled])
        views = weight.split([len(part.weight) for part in parts])
        for module, view, shared in zip(modules, views, own, strict=True):
            if shared:
                module.weight.data = view
    steps = [part.scale for part in scaled if part.scale is not None]
    scale = torch.cat(steps) if steps else None
    held = [part.bias for part in scaled if part.bias is not None]
    if not held:
        return Linear(weight, None, scale)
    biases = [
        held[0].new_zeros(len(part.weight)) if part.bias is None else part.bias for part in scaled
    ]
    return Linear(weight, torch.cat(biases), scale)


def head_of(module: Any, tokens: Tensor | None) -> Linear:
    """The weights of a head, those of these tokens `[C]`; None: all."""
    head = linear_of(module)
    return head if tokens is None else head.rows(tokens)


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
        cross_q=_scaled(linear_of(cross.q_proj), cross.scaling),
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
    """A projection whose outputs are multiplied by a factor; in int8 the outputs' scales are. Shares its
    weights where they do not change."""
    if factor == 1:
        return linear
    bias = None if linear.bias is None else linear.bias * factor
    if linear.scale is None:
        return Linear(linear.weight * factor, bias)
    return Linear(linear.weight, bias, linear.scale * factor)


def version(parameters: Iterable[Tensor]) -> object:
    """What changes with weights: where they are, and how often they were written to."""
    return [(p.data_ptr(), None if p.is_inference() else p._version) for p in parameters]


def whisper_gap(model: Any) -> str | None:
    """Why a Whisper has no lean form."""
    decoder = model.model.decoder
    if not isinstance(decoder, plain.Decoder):
        from transformers.models.whisper.modeling_whisper import WhisperDecoder, WhisperDecoderLayer

        if {type(decoder), *map(type, decoder.layers)} != {WhisperDecoder, WhisperDecoderLayer}:
            return f"its decoder is a {type(decoder).__name__}, or has other layers than Whisper's"
    return _foreign([decoder, model.proj_out])


def encoder_gap(encoder: Any) -> str | None:
    """Why a Whisper's encoder has no form of plain weights."""
    if not (isinstance(encoder, plain.Encoder) and len(encoder.layers)):
        from transformers.models.whisper.modeling_whisper import WhisperEncoder, WhisperEncoderLayer

        if {type(encoder), *map(type, encoder.layers)} != {WhisperEncoder, WhisperEncoderLayer}:
            return f"it is a {type(encoder).__name__}, or has other layers than Whisper's"
    return _foreign([encoder])


def causal_gap(model: Any) -> str | None:
    """Why a causal LM has no lean form."""
    config, body = model.config.get_text_config(), model.base_model
    if config.model_type not in CAUSAL:
        return f"{config.model_type} has none"
    if config is not model.config or not hasattr(model, "lm_head"):
        return "it is a part of another model"
    rotation = getattr(body.rotary_emb, "rope_type", None)
    if not isinstance(rotation, str) or rotation not in FIXED_ROTATIONS:
        return f"its rotary positions are {rotation}"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        return f"it has layers of {', '.join(sorted(kinds))}"
    return _foreign([body, model.lm_head])


def _foreign(roots: Iterable[torch.nn.Module]) -> str | None:
    """What a plain reading of the weights would miss: hooks, quantised or scattered weights."""
    kinds: set[str] = set()
    formats: set[tuple[torch.dtype, torch.device]] = set()
    for module in chain(*map(torch.nn.Module.modules, roots)):
        name = type(module).__name__
        if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
            return f"hooks are registered on its {name}"
        int8 = isinstance(module, Int8Linear)
        if name.endswith(("Linear", "Conv1D")) and not int8 and type(module) is not torch.nn.Linear:
            return f"its projections are {name}"
        for weight in module.parameters(recurse=False):
            kinds.add(type(weight).__name__)
            if not int8 or weight is module.bias:  # integers and scales have formats of their own
                formats.add((weight.dtype, weight.device))
    if kinds - {"Parameter"}:  # torchao replaces weights and keeps the modules
        return f"its weights are {', '.join(sorted(kinds - {'Parameter'}))}"
    if len(formats) != 1:
        return "its weights have several dtypes or devices"
    return None
