"""The base of the adapters: slots, positions and masks of a forward of any decoder, and keys and values.

Those of `modules` run transformers' modules over its cache; the decoders of `lean` run functions, and those
of `native` kernels, over a `SelfCache`. `WhisperModel` is the base of those of Whisper, `causal` has that of
text models.

No NaN of an earlier sequence reaches the next one in its row of a `SelfCache`. A masked key still meets a
weight of zero, and 0 * NaN is NaN, so a prompt clears the slots behind it. On a CPU these are those that a
forward may have written, which the host knows without reading the device (`_written`); slots beyond are zero
since the allocation, and take no memory: rows are allocated for the longest text, and most are far shorter.
Elsewhere they are all: forwards are captured or compiled there, and numbers that one changes are conditions
of the other compiled ones, which would be compiled again after every larger forward.

Knows nothing of how an adapter or a kernel computes.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..protocols import BeamModel, Model, NodeModel, SharedHeadModel
from ..types import Paths, States


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer's keys and values. Most models have one shape for all; compressed attention
    (DeepSeek) has wider keys than values, and some families vary their heads from layer to layer."""

    heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def of(cls, layer: Any) -> LayerShape | None:
        """Those of a layer of transformers' cache, which holds one token; None where it keeps something other
        than plain keys and values."""
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, Tensor) or not isinstance(values, Tensor) or keys.dim() != 4:
            return None
        if keys.shape[:3] != values.shape[:3] or keys.shape[2] != 1:
            return None
        return cls(keys.shape[1], keys.shape[3], values.shape[3])


class Places(NamedTuple):
    """Where the tokens of a forward are written, and what they read."""

    slots: Tensor  # [B, N]
    positions: Tensor  # [B, N]
    mask: Tensor  # [B, 1, N, reach], additive


class SlotModel(BeamModel, SharedHeadModel, ABC):
    """Implements the slots, positions and masks of a `Model`."""

    engine: ClassVar[str]
    """What runs the forward: a name of `engines.ModelEngine`."""

    cache: Any = None
    """Keys and values; None before `allocate`."""

    listed: Tensor | None
    """Of a draft with a cut head the only tokens `[C]` with finite logits, ascending; None: all have them."""

    def __init__(
        self,
        *,
        device: torch.device,
        dtype: torch.dtype,
        vocab_size: int,
        positions: int,
        layers: int,
        listed: Sequence[int] | None = None,
    ):
        self.depth = layers
        self.taps: tuple[int, ...] = ()
        self._tap_layers = torch.tensor([], dtype=torch.int64)
        self.device, self.dtype = device, dtype
        self.vocab_size, self.max_positions = vocab_size, positions
        self.listed = None
        if listed is not None:
            self.listed = torch.tensor(sorted(listed), dtype=torch.int64, device=device)

    def tap(self, layers: tuple[int, ...]) -> None:
        for layer in layers:
            if not -1 <= layer < self.depth:
                raise ValueError(
                    f"layer {layer} cannot be tapped: the model has {self.depth} layers"
                )
        self.taps = layers
        self._tap_layers = torch.tensor(layers, dtype=torch.int64)

    def tapped(self, states: Mapping[int, Tensor]) -> Tensor | None:
        """The taps `[B, N, H, D]`, of the states `[B, N, D]` that enter the tapped layers; None without
        taps."""
        if not self.taps:
            return None
        return torch.stack([states[layer] for layer in self.taps], dim=2)

    def release(self) -> None:
        """Frees the cache."""
        self.cache = None

    def known_tokens(self, tokens: Tensor) -> Tensor:
        """The tokens as they are read; of a draft, in place of those that it does not have, another one."""
        return tokens

    def prompt_places(self, tokens: Tensor) -> Places:
        """The places of prompts `[K, P]`, which read themselves only."""
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = chain_mask(slots, tokens.shape[1], self.dtype)
        return Places(slots, self._positions_at(slots), mask)

    def places(self, tokens: Tensor, start: Tensor, reach: int) -> Places:
        """The places of `tokens [B, N]`; node i is written to slot `start [B]` + i."""
        slots = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)  # [B, N]
        return Places(slots, self._positions_at(slots), chain_mask(slots, reach, self.dtype))

    def path_places(self, paths: Paths, reach: int) -> Places:
        """The places of the last tokens of paths."""
        slots, last = paths.slots, paths.lengths[..., None] - 1  # [B, N, T], [B, N, 1]
        own = slots.gather(2, last)  # [B, N, 1]
        counted = torch.arange(slots.shape[2], device=slots.device) <= last
        read = torch.where(counted, slots, own).clamp_max(reach - 1)  # of free rows, whatever it is
        shape = (*slots.shape[:2], reach)
        reads = torch.zeros(shape, dtype=torch.bool, device=slots.device).scatter_(2, read, True)
        positions = self._positions_at(last[..., 0])
        return Places(own[..., 0], positions, additive(reads, self.dtype))

    def whole(self, logits: Tensor) -> Tensor:
        """Logits of the listed tokens `[..., C]` as those of all `[..., V]`; of the others they are -inf."""
        if self.listed is None:
            return logits
        made = logits.new_full((*logits.shape[:-1], self.vocab_size), float("-inf"))
        return made.index_copy_(-1, self.listed, logits)

    @staticmethod
    def chosen(values: Tensor, nodes: Tensor | None) -> Tensor:
        """Values `[K, P, ...]` of `nodes [K, M]`; all of them for None."""
        if nodes is None:
            return values
        return values.gather(1, nodes[..., None].expand(-1, -1, values.shape[2]))

    def _allocated(self) -> Any:
        if self.cache is None:
            raise RuntimeError("allocate() comes before the first forward")
        return self.cache

    def _positions_at(self, slots: Tensor) -> Tensor:
        # Slots run past the last learned position by the drafts of a row that is about to end. Those
        # positions are clamped (their scores are cut off); their slots are not, or two would collide.
        return slots.clamp(0, self.max_positions - 1)


def score_at(model: Model, tokens: Tensor, start: Tensor, node: Tensor, reach: int) -> Tensor:
    """As `NodeModel.score_at`; of a model without such a pass, all nodes are computed."""
    if hasattr(model, "score_at"):
        return cast(NodeModel, model).score_at(tokens, start, node, reach=reach)
    return at_node(model.score(tokens, start, reach=reach).logits, node)


def at_node(values: Tensor, node: Tensor) -> Tensor:
    """`values [B, N, X]` of one node `[B]` of each row: `[B, 1, X]`."""
    return values.gather(1, node[:, None, None].expand(-1, 1, values.shape[2]))


def chain_mask(slots: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask `[B, 1, N, length]`: a query at slot s reads the slots up to s.

    Additive, because eager attention adds it; the dtype's lowest number rather than -inf, because a
    row of -inf alone would be NaN.
    """
    reads = torch.arange(length, device=slots.device) <= slots[..., None]  # [B, N, length]
    return additive(reads, dtype)


def window_mask(mask: Tensor, positions: Tensor, window: int) -> Tensor:
    """`mask [B, 1, N, length]` cut to a sliding window: a query at `positions [B, N]` reads the last
    `window` positions, itself included. Slots stand for positions."""
    near = torch.arange(mask.shape[-1], device=mask.device) > positions[..., None] - window
    return mask.masked_fill(~near[:, None], torch.finfo(mask.dtype).min)


def chunk_mask(mask: Tensor, positions: Tensor, chunk: int) -> Tensor:
    """`mask [B, 1, N, length]` cut to chunks: a query at `positions [B, N]` reads the slots of its own
    chunk of `chunk` positions. Slots stand for positions, as in `window_mask`."""
    slots = torch.arange(mask.shape[-1], device=mask.device)
    same = slots // chunk == (positions // chunk)[..., None]
    return mask.masked_fill(~same[:, None], torch.finfo(mask.dtype).min)


def additive(reads: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask `[B, 1, N, length]` of what queries read, `[B, N, length]`."""
    zero = torch.zeros((), dtype=dtype, device=reads.device)
    return torch.where(reads, zero, torch.finfo(dtype).min)[:, None]


class WhisperModel(SlotModel):
    """The decoder of a Whisper model: a `PlainWhisper`, or of transformers.

    `pick` selects this model's encoder states `[S, D]` from those of a request; `sources` is S where it is
    not the model's own. Native kernels store weights and caches in `stored`, None: in the model's dtype; the
    other engines have no storage of their own. Of a draft, `listed` are the only tokens that it proposes
    (None: all): its head has their rows alone. Raises LoadError for a model that the engine cannot run.
    """

    output: Callable[[Tensor], Tensor]
    """The output layer, with the rows of `listed` alone; set by `prepare`."""

    def __init__(
        self,
        model: Any,
        pick: Callable[[Any], Tensor] = lambda encoder_states: encoder_states,
        *,
        sources: int | None = None,
        stored: torch.dtype | None = None,
        listed: Sequence[int] | None = None,
    ) -> None:
        config = model.config
        self.config, self.pick = config, pick
        self.sources = config.max_source_positions if sources is None else sources
        self.model, weight = model, model.model.decoder.embed_tokens.weight
        super().__init__(
            device=weight.device,
            dtype=weight.dtype,
            vocab_size=config.vocab_size,
            positions=config.max_target_positions,
            layers=config.decoder_layers,
            listed=listed,
        )
        self.prepare(model, stored or self.dtype)

    @abstractmethod
    def prepare(self, model: Any, stored: torch.dtype) -> None:
        """Reads from the model what the adapter needs. Raises LoadError where it lacks that."""

    def embed(self, tokens: Tensor) -> Tensor:
        decoder = self.model.model.decoder
        return embedding(tokens, decoder.embed_tokens.weight.detach())

    def head(self, states: Tensor) -> Tensor:
        return self.whole(self.output(states).float())

    def stacked(self, encoder_states: States) -> Tensor:
        """The encoder states `[K, S, D]` of requests."""
        return torch.stack([self.pick(s) for s in encoder_states]).to(self.device, self.dtype)


class SelfCache:
    """Self-attention of all layers in one tensor: keys and values `[L, 2, B, K, T, d]`: for layer l, `[l, 0]`
    are the keys and `[l, 1]` the values, which one scatter writes."""

    def __init__(
        self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shape` is `(L, B, K, T, d)`."""
        layers, *others = shape
        self.kv = zeros((layers, 2, *others), dtype, device)
        self._tracked = device.type == "cpu"
        self._reach = self._nodes = 0  # the largest of all forwards so far, where tracked

    @property
    def _written(self) -> int:
        # A row wrote below the reach of the time, and one that has ended goes on to write from the slot
        # where it ended: with more nodes than then, past that reach by at most their number.
        slots = self.kv.shape[4]
        return min(self._reach + self._nodes, slots) if self._tracked else slots

    def clear(self, rows: Tensor, length: int) -> None:
        """Zeroes what earlier sequences of `rows [K]` left behind slot `length`."""
        self._reach = max(self._reach, length)
        self.kv[:, :, :, :, length : self._written].index_fill_(2, rows, 0)

    def write_prompt(self, layer: int, rows: Tensor, kv: Tensor) -> None:
        """Writes `kv [2, K, heads, P, d]` to the first P slots of `rows [K]`."""
        self.kv[layer, :, :, :, : kv.shape[3]].index_copy_(1, rows, kv)

    def readable(self, rows: int, reach: int, nodes: int) -> list[Tensor]:
        """Keys and values `[2, B, K, reach, d]` of every layer, for a forward of the first `rows` rows that
        writes `nodes` tokens."""
        if self._tracked:
            self._reach, self._nodes = max(self._reach, reach), max(self._nodes, nodes)
        return list(self.kv[:, :, :rows, :, :reach].unbind(0))

    def index(self, slots: Tensor) -> Tensor:
        """Where a forward that writes to `slots [B, N]` puts `kv [2, B, K, N, d]`."""
        _, two, _, heads, _, size = self.kv.shape
        return slots[None, :, None, :, None].expand(two, len(slots), heads, slots.shape[1], size)

    def write(self, layer: int, index: Tensor, kv: Tensor) -> None:
        self.kv[layer].scatter_(3, index, kv)


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As `torch.zeros`, which writes every page. On CPUs the tensor owns an anonymous mapping, whose pages
    are zero and take memory when they are first written. Raises MemoryError."""
    count = prod(shape)
    if device.type != "cpu" or count == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    size = count * dtype.itemsize
    try:
        # Private: shared memory would be a file's, with a limit of its own.
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"not enough memory for a cache of {size} bytes") from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)
