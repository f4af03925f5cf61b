"""Whisper as modules of plain torch, under the names that transformers gives them.

They hold the weights of a folder for the engines; where no kernels do, they encode, tell languages and
compute what words are timed by. What they compute has the bits of transformers' modules, whose import takes
longer than loading a small model. They keep no cache and are not trained. Where kernels have packed the
weights, the modules let go of theirs (`PlainWhisper.release`).

Knows tensors and the settings of a configuration; nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention, silu

from ..errors import LoadError
from .checkpoint import check_complete

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "relu": relu,
    "silu": silu,
    "swish": silu,
}
"""The activations of most models by transformers' names; `activation` knows the others too."""

EMBEDDING = "model.decoder.embed_tokens.weight"

FEW, MANY = 16, 512  # queries at most, keys at least
EXACT = frozenset({torch.float32, torch.float64})  # below, the fused kernel sums in float32 itself


class Settings(SimpleNamespace):
    """A configuration by attributes."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class States(NamedTuple):
    """What encoder and decoder return."""

    last_hidden_state: Tensor  # [B, N, D]


class PlainWhisper(nn.Module):
    """As `WhisperForConditionalGeneration`, or, without an encoder, `WhisperForCausalLM`. Its weights have no
    memory until `take` gives them theirs."""

    def __init__(self, config: Settings, *, encoder: bool) -> None:
        super().__init__()
        self.config = config
        self.generation_config = Settings()
        with torch.device("meta"):
            self.model = nn.Module()
            if encoder:
                self.model.encoder = Encoder(config)
            self.model.decoder = Decoder(config)
            self.proj_out = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.requires_grad_(False).eval()

    def take(
        self,
        part: str,
        weights: Mapping[str, Tensor],
        placed: Callable[[Tensor], Tensor] = lambda weight: weight,
    ) -> None:
        """Gives the `encoder`, or the `decoder` and the output layer, their `weights` by transformers' names,
        each where `placed` puts it. The output layer is the embedding, unless it has weights of its own.
        Raises ValueError as `check_complete`."""
        stack = getattr(self.model, part)
        named = dict(stack.named_parameters(prefix=f"model.{part}"))
        both = named.keys() & weights.keys()
        check_complete(
            named.keys() - both,
            [name for name in both if weights[name].shape != named[name].shape],
            weights.keys() - both,
            named,
        )
        read = {name: placed(weights[name]) for name in named}
        head = weights.get("proj_out.weight")
        self.load_state_dict(read, strict=False, assign=True)
        if part == "decoder":
            self.proj_out.weight = stack.embed_tokens.weight
            own = head is not None and not torch.equal(head, weights[EMBEDDING])
            if head is not None and own:
                self.proj_out.weight = nn.Parameter(placed(head), requires_grad=False)
        self.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        return self.proj_out.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.proj_out.weight.device

    def release(self, part: str) -> None:
        """Lets go of the weights of a part, which take memory beside what kernels have packed of them. It
        cannot compute any more."""
        stack = getattr(self.model, part)
        for weight in decoder_parameters(self) if part == "decoder" else stack.parameters():
            # NaN, so that nothing computes with it unnoticed.
            weight.data = torch.full((), float("nan")).to(weight.dtype).expand(weight.shape)
        stack.released = True

    def use_products(self) -> None:
        """Attention of few queries becomes `products`."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.products = True


class Stack(nn.Module):
    """What a `PlainWhisper` has as its encoder and its decoder."""

    released = False

    def _held(self) -> None:
        if self.released:
            raise LoadError(
                "these weights are packed for native kernels alone: load with --engine lean"
            )


class Encoder(Stack):
    """Features `[B, M, 2 S]` to states `[B, S, D]`."""

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config, width = config, config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = _embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList(
            Layer(config, config.encoder_attention_heads, config.encoder_ffn_dim)
            for _ in range(config.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> States:
        self._held()
        x = gelu(self.conv2(gelu(self.conv1(features)))).permute(0, 2, 1)
        x = x + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
            if x.dtype is torch.float16:
                limit = torch.finfo(x.dtype).max - 1000
                x = x.clamp(-limit, limit)
        return States(self.layer_norm(x))


class Decoder(Stack):
    """Tokens `[B, N]` from position 0 on, and encoder states `[B, S, D]`, to states `[B, N, D]`."""

    def __init__(self, config: Settings) -> None:
        super().__init__()
        width, heads = config.d_model, config.decoder_attention_heads
        self.embed_tokens = _embedding(config.vocab_size, width)
        self.embed_positions = _embedding(config.max_target_positions, width)
        self.layers = nn.ModuleList(
            Layer(config, heads, config.decoder_ffn_dim, cross=True)
            for _ in range(config.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, use_cache: bool = False
    ) -> States:
        self._held()
        x = self.embed_tokens(input_ids) + self.embed_positions.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x, encoder_hidden_states)
        return States(self.layer_norm(x))


class Layer(nn.Module):
    """A layer of the encoder, or with `cross` of the decoder."""

    def __init__(self, config: Settings, heads: int, inner: int, *, cross: bool = False) -> None:
        super().__init__()
        width = config.d_model
        self.self_attn = Attention(width, heads, causal=cross)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        if cross:
            self.encoder_attn = Attention(width, heads)
            self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)
        self.activate = activation(config.activation_function)

    def forward(self, x: Tensor, states: Tensor | None = None) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        if states is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), states)
        inner: Tensor = self.fc2(self.activate(self.fc1(self.final_layer_norm(x))))
        return x + inner


class Attention(nn.Module):
    """Attention of `x [B, N, D]` over itself, or over states `[B, S, D]`."""

    products = False

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"its config.json says {heads} attention heads for a width of {width}")
        self.head_dim, self.is_causal = width // heads, causal
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj, self.q_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, states: Tensor | None = None) -> Tensor:
        source = x if states is None else states
        query, key, value = (
            part.view(len(part), part.shape[1], -1, self.head_dim).transpose(1, 2)
            for part in (self.q_proj(x) * self.scaling, self.k_proj(source), self.v_proj(source))
        )
        # A GPU's kernels read the heads where the projections wrote them: copies took a tenth of large-v3's
        # encoder. On a CPU copies give the bits of transformers, and cost nothing.
        if x.device.type == "cpu":
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        causal = self.is_causal and x.shape[1] > 1
        if self.products and not causal and few(query, key):
            read = products(query, key, value)
        else:
            read = scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)
        out: Tensor = self.out_proj(read.transpose(1, 2).reshape(x.shape))
        return out


def _embedding(count: int, width: int) -> nn.Embedding:
    # Given its weight: filling one without memory would import torch's compiler.
    return nn.Embedding(count, width, _weight=torch.empty(count, width))


def few(query: Tensor, key: Tensor) -> bool:
    """Whether queries `[B, heads, N, D]` and keys `[B, heads, T, D]` are better read by `products`."""
    shapes = query.shape[2] <= FEW and key.shape[2] >= MANY and key.shape[1] == query.shape[1]
    return shapes and query.dtype in EXACT


def products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention `[B, heads, N, D]` as two matrix products; queries carry the scale, `mask` is additive.

    A round of speculation asks G + 1 queries of 1,500 encoder positions, and PyTorch's fused CPU kernel is
    made for many queries: it took 1.7 times as long for six. GPUs keep their own kernels.
    """
    scores = torch.matmul(query, key.transpose(2, 3))
    if mask is not None:
        scores += mask
    return torch.matmul(scores.softmax(-1), value)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by transformers' name of it."""
    known = ACTIVATIONS.get(name)
    if known is not None:
        return known
    from transformers.activations import ACT2FN

    found: Callable[[Tensor], Tensor] = ACT2FN[name]
    return found


def decoder_parameters(model: Any) -> list[Tensor]:
    """The weights of a Whisper's decoder and of its head, a tied one once."""
    return list(nn.ModuleList([model.model.decoder, model.proj_out]).parameters())
