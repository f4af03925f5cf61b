"""Whisper and text LLMs under the core's `Model` protocol, over unmodified transformers classes.

`WhisperForConditionalGeneration` (OpenAI's and distil-whisper's checkpoints) and the decoder-only
`WhisperForCausalLM` both hold the same decoder. A request's encoder states are the encoder's output for its
window; the cross-attention keys and values are computed once, when the request is admitted.

Llama, Qwen, Gemma, Mistral, GPT-2 and every other decoder whose attention is full, a sliding window or in
chunks: the mask alone determines what a layer reads, so families need no code of their own. A window saves no
memory here, as the cache holds all positions, but the tokens are exact.

Tapped states are read by hooks that last as long as one forward: transformers' own `output_hidden_states`
leaves hooks in a model for good, which other adapters of the same model refuse.

Keys and values lie in a `SlotCache`, a transformers `Cache` without their notion of one common length: the
caller says into which slots a forward writes (`slots [B, N]`) and masks what a query may read, so rolling
back a rejected draft needs no work: the next round overwrites it. Two views share the tensors:

    decode   every row, writing at `slots`, reading whole rows
    prefill  the `rows [K]` being admitted, writing from slot 0, reading only what it wrote

On CPUs attention of a few queries over many keys is two matrix products (`use_products`; why: `products`).
transformers looks such a function up by name, so the models stay unmodified.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import ModuleList
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import LoadError, one_line
from ..types import Paths, Prefilled, Scores, States
from .causal import SLIDING, CausalModel, check
from .plain import few, products
from .quantized import is_int8
from .slot_model import LayerShape, Places, SlotModel, WhisperModel
from .weights import linear_of

NAME = "products"

_checked: WeakKeyDictionary[Any, torch.dtype] = WeakKeyDictionary()
"""The models that have been compared, and their dtype then."""

Entering = dict[int, Tensor]
"""By layer, the states `[B, N, D]` that enter it."""


class ModuleModel(SlotModel):
    """A decoder made of transformers' modules: knows slots, positions and masks; a family's adapter knows how
    its decoder is called."""

    engine = "modules"
    cache: SlotCache | None = None

    @abstractmethod
    def forward(self, tokens: Tensor, at: Places, cache: Cache) -> Scores:
        """The decoder over `tokens [B, N]`."""

    def score(self, tokens: Tensor, start: Tensor, *, reach: int) -> Scores:
        cache, at = self._allocated(), self.places(tokens, start, reach)
        return self.forward(tokens, at, cache.decode(at.slots, reach))

    def score_paths(self, tokens: Tensor, paths: Paths, *, reach: int) -> Tensor:
        cache, at = self._allocated(), self.path_places(paths, reach)
        return self.forward(tokens, at, cache.decode(at.slots, reach)).logits


class WhisperDecoder(WhisperModel, ModuleModel):
    """The decoder of a Whisper model; arguments as `WhisperModel`."""

    def prepare(self, model: Any, stored: torch.dtype) -> None:
        self.decoder, head = model.model.decoder, model.proj_out
        self.output = head if self.listed is None else linear_of(head).rows(self.listed)
        # Cross-attention is entered only if encoder states are given; with the cache filled, their
        # content is never read.
        self._seen = torch.empty((1, 0, self.config.d_model), device=self.device, dtype=self.dtype)

    def allocate(self, batch: int, slots: int) -> None:
        heads = self.config.decoder_attention_heads
        size = self.config.d_model // heads
        self.cache = SlotCache(
            batch=batch,
            slots=slots,
            layers=[LayerShape(heads, size, size)] * self.depth,
            dtype=self.dtype,
            device=self.device,
            cross_slots=self.sources,
        )

    @torch.inference_mode()
    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        cache, at = self._allocated().prefill(rows), self.prompt_places(tokens)
        scores = self.forward(tokens, at, cache, self.stacked(encoder_states))
        return Prefilled(self.chosen(scores.logits, nodes), scores.taps)

    def forward(
        self, tokens: Tensor, at: Places, cache: Cache, encoder_states: Tensor | None = None
    ) -> Scores:
        """As `ModuleModel.forward`; a prefill brings the encoder states, for cross-attention."""
        with reading(self.decoder.layers, self.taps) as states:
            states[-1] = self.decoder(
                input_ids=tokens,
                position_ids=at.positions,
                attention_mask=at.mask,
                encoder_hidden_states=self._seen if encoder_states is None else encoder_states,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
        return Scores(self.head(states[-1]), self.tapped(states))


class CausalDecoder(CausalModel, ModuleModel):
    """A causal LM that runs transformers' modules; see `CausalModel`.

    The first one of a model compares itself with its plain forward (`causal.check`): any family may come.
    Raises LoadError where they differ, and for layers that cache something other than plain keys and values
    (recurrent, compressed) too.
    """

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        if _checked.get(model) != self.dtype and not is_int8(model):  # in int8 it is a draft
            check(self)
            _checked[model] = self.dtype

    def prepare(self, stored: torch.dtype) -> None:
        self.layers = _shapes(self.model, self.config.model_type)
        self.layer_list = ModuleList()

    def tap(self, layers: tuple[int, ...]) -> None:
        super().tap(layers)
        self.layer_list = layers_of(self.model.base_model, self.depth) if layers else ModuleList()

    def allocate(self, batch: int, slots: int) -> None:
        self.cache = SlotCache(
            batch=batch, slots=slots, layers=self.layers, dtype=self.dtype, device=self.device
        )

    @torch.inference_mode()
    def prefill(
        self, rows: Tensor, tokens: Tensor, encoder_states: States, nodes: Tensor | None = None
    ) -> Prefilled:
        """Skips the head where no `nodes` are asked for: returns logits `[K, 0, V]`."""
        cache, at = self._allocated().prefill(rows), self.prompt_places(tokens)
        embedded = self.embedded(tokens, encoder_states)
        if nodes is not None:
            scores = self.forward(tokens, at, cache, embedded)
            return Prefilled(self.chosen(scores.logits, nodes), scores.taps)
        inputs = self._inputs(tokens, at, cache, embedded)
        # Of some families the base model is the whole one, whose head is then read from instead.
        with reading(self.layer_list, self.taps, self.model.get_output_embeddings()) as states:
            read = self.model.base_model(**inputs)
        if -1 in self.taps and -1 not in states:
            states[-1] = read.last_hidden_state
        none = torch.empty((len(tokens), 0, self.vocab_size), device=self.device)
        return Prefilled(none, self.tapped(states))

    def forward(
        self, tokens: Tensor, at: Places, cache: Cache, embedded: Tensor | None = None
    ) -> Scores:
        """As `ModuleModel.forward`; with `embedded [B, N, D]` the tokens themselves are not read."""
        inputs = self._inputs(tokens, at, cache, embedded)
        with reading(self.layer_list, self.taps, self.model.get_output_embeddings()) as states:
            logits = self.model(**inputs).logits
        return Scores(self.own_vocabulary(logits), self.tapped(states))

    def _inputs(
        self, tokens: Tensor, at: Places, cache: Cache, embedded: Tensor | None
    ) -> dict[str, Any]:
        masks = self.masks(at.mask, at.positions)
        by_kind = bool(self.kinds) and len(masks) > 1
        read = {"input_ids": self.known_tokens(tokens)}
        return {
            **(read if embedded is None else {"inputs_embeds": embedded}),
            "position_ids": at.positions,
            "attention_mask": masks if by_kind else masks.get(SLIDING, at.mask),
            "past_key_values": cache,
            "use_cache": True,
        }


def use_products(model: Any) -> None:
    """Makes a transformers model compute all attention with `attend`."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """query `[B, heads, N, D]`, key and value `[B, heads, T, D]` -> `[B, N, heads, D]`.

    Everything but few queries over many keys goes to the fused kernel.
    """
    causal = attention_mask is None and query.shape[2] > 1 and getattr(module, "is_causal", True)
    if causal or dropout or not few(query, key):
        result: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    read = products(query if scale == 1 else query * scale, key, value, attention_mask)
    return read.transpose(1, 2).contiguous(), None


@contextmanager
def reading(
    layers: nn.ModuleList, taps: tuple[int, ...], head: nn.Module | None = None
) -> Iterator[Entering]:
    """Notes the states that enter the tapped layers in the forward that is run meanwhile. Layer -1 is what
    the `head` reads; without one it is left to the caller."""
    states: Entering = {}

    def note(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state = args[0] if args else kwargs["hidden_states"]
            states[index] = torch.as_tensor(state)

        return hook

    with ExitStack() as stack:
        for index in taps:
            module = layers[index] if index >= 0 else head
            if module is not None:
                handle = module.register_forward_pre_hook(note(index), with_kwargs=True)
                stack.callback(handle.remove)
        yield states


def layers_of(decoder: nn.Module, count: int) -> nn.ModuleList:
    """The list of a decoder's layers, whatever its name. Raises LoadError where there is no such list, or
    more than one."""
    found = [m for m in decoder.children() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(found) != 1:
        name = type(decoder).__name__
        raise LoadError(f"{name} has no single list of its {count} layers, so none can be tapped")
    return found[0]


@torch.inference_mode()
def _shapes(model: Any, name: str) -> list[LayerShape]:
    """Heads and sizes of each layer's keys and values, from those of one token: configurations define them
    in a dozen ways."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    try:
        cache = model(input_ids=token, use_cache=True).past_key_values
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise LoadError(
            f"{name} keeps no keys and values that a cache could hold ({type(error).__name__}: "
            f"{one_line(error)})"
        ) from error
    found = map(LayerShape.of, cache.layers if isinstance(cache, DynamicCache) else ())
    shapes = [shape for shape in found if shape is not None]
    if not shapes or len(shapes) < len(cache.layers):
        raise LoadError(f"{name}: its layers do not cache plain keys and values")
    return shapes


@dataclass
class Cursor:
    """Where the next forward writes and reads; one object shared by the layers of a cache."""

    slots: Tensor  # [B, N] int64
    reach: int  # slots from here on are not read


class _Layer(CacheLayerMixin):
    """The interface of a transformers cache layer besides `update`."""

    is_compileable = True
    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = keys, values  # [B, heads, T, head_dim]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise AssertionError("slot caches are allocated up front")

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        raise AssertionError("cross-attention keys are written by a prefill only")

    def get_seq_length(self) -> int:
        return 0  # positions are always passed explicitly

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0


class SlotLayer(_Layer):
    """Scatters a forward's keys and values to the cursor's slots; attention reads to its reach."""

    def __init__(self, keys: Tensor, values: Tensor, cursor: Cursor) -> None:
        super().__init__(keys, values)
        self.cursor = cursor

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        slots = self.cursor.slots[:, None, :, None]
        self.keys.scatter_(2, slots.expand_as(key_states), key_states)
        self.values.scatter_(2, slots.expand_as(value_states), value_states)
        rows, reach = len(key_states), self.cursor.reach
        return self.keys[:rows, :, :reach], self.values[:rows, :, :reach]


class PrefillLayer(_Layer):
    """Writes `[K, heads, P, head_dim]` to the first P slots of `rows`; attention reads what it wrote.

    The slots after P become zero: NaN of an earlier sequence must not reach the next one in its row.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        super().__init__(keys, values)
        self.rows = rows

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        length = key_states.shape[2]
        self.keys[self.rows, :, :length] = key_states
        self.values[self.rows, :, :length] = value_states
        self.keys[self.rows, :, length:] = 0
        self.values[self.rows, :, length:] = 0
        return key_states, value_states


class SlotCache:
    """Keys and values for the self-attention of each layer, and for cross-attention where there is one.

    Buffers start at zero: a masked slot still meets the softmax's zero weight, and 0 * NaN is NaN.
    """

    def __init__(
        self,
        *,
        batch: int,
        slots: int,
        layers: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        cross_slots: int | None = None,
    ) -> None:
        def buffers(length: int) -> list[tuple[Tensor, Tensor]]:
            def zeros(heads: int, dim: int) -> Tensor:
                return torch.zeros((batch, heads, length, dim), dtype=dtype, device=device)

            return [(zeros(s.heads, s.key_dim), zeros(s.heads, s.value_dim)) for s in layers]

        self.cursor = Cursor(torch.zeros((batch, 1), dtype=torch.int64, device=device), slots)
        self.layers = buffers(slots)
        self.cross = None if cross_slots is None else buffers(cross_slots)
        self._decode = {batch: self._decode_view(batch)}  # by the number of rows

    def decode(self, slots: Tensor, reach: int) -> Cache:
        """The view of the first B rows, set to write at `slots [B, N]` and to read below `reach`.

        Valid until the next call.
        """
        self.cursor.slots, self.cursor.reach = slots, reach
        rows = len(slots)
        if rows not in self._decode:
            self._decode[rows] = self._decode_view(rows)
        return self._decode[rows]

    def _decode_view(self, rows: int) -> Cache:
        layers: list[Any] = [SlotLayer(k, v, self.cursor) for k, v in self.layers]
        if self.cross is None:
            return Cache(layers=layers)
        cross: list[Any] = [_Layer(k[:rows], v[:rows]) for k, v in self.cross]
        view = EncoderDecoderCache(Cache(layers=layers), Cache(layers=cross))
        view.is_updated = dict.fromkeys(range(len(layers)), True)
        return view

    def prefill(self, rows: Tensor) -> Cache:
        """A view that writes prompts into `rows [K]`, and their cross-attention keys with them."""
        layers: list[Any] = [PrefillLayer(k, v, rows) for k, v in self.layers]
        if self.cross is None:
            return Cache(layers=layers)
        cross: list[Any] = [PrefillLayer(k, v, rows) for k, v in self.cross]
        view = EncoderDecoderCache(Cache(layers=layers), Cache(layers=cross))
        view.is_updated = dict.fromkeys(range(len(layers)), False)
        return view
