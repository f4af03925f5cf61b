"""Text LLMs under the core's `Model` protocol, over unmodified transformers classes.

Llama, Qwen, Gemma, Mistral, GPT-2 and every other decoder whose attention is full or a sliding
window: what a layer reads is said by its mask, so nothing else tells the families apart. A window
saves no memory here, strips hold all positions; it is exact, which is what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicCache

from speculative.cache import SlotCache, chain_mask, window_mask
from speculative.models.slots import SlotModel
from speculative.types import Scores

FULL, SLIDING = "full_attention", "sliding_attention"


class CausalDecoder(SlotModel):
    """A transformers causal LM, e.g. of `AutoModelForCausalLM.from_pretrained`.

    `positions` bounds the rows (strips are allocated for it): None takes the model's own limit.
    `vocab` is the target's number of tokens where this model is a draft: one vocabulary is padded to
    different sizes in models of one family, and what only one of them has room for is never proposed.
    Raises ValueError, with the model's type, for layers whose memory is no plain keys and values
    (recurrent, compressed, of different shapes), and for more positions than the model has.
    """

    def __init__(self, model: Any, positions: int | None = None, vocab: int | None = None) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        if kinds - {FULL, SLIDING}:
            unknown = ", ".join(sorted(kinds - {FULL, SLIDING}))
            raise ValueError(f"{config.model_type}: layers of {unknown} are not supported")
        limit = config.max_position_embeddings
        if positions is not None and positions > limit:
            raise ValueError(f"{config.model_type} has {limit} positions, not {positions}")
        self.model = model
        self.window: int | None = getattr(config, "sliding_window", None)
        self.mixed = SLIDING in kinds
        # Without layer types a window is every layer's; with them it is of those that say so.
        self.sliding = self.window is not None and not kinds
        super().__init__(
            device=model.device,
            dtype=model.dtype,
            vocab_size=vocab or config.vocab_size,
            positions=positions or limit,
        )
        self.room = config.vocab_size - self.vocab_size  # for tokens that the other does not have
        self.layers, self.heads, self.head_dim = _shape(model, config.model_type)

    def new_cache(self, batch: int, slots: int) -> SlotCache:
        return SlotCache(
            batch=batch,
            slots=slots,
            layers=self.layers,
            heads=self.heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def prefill(self, rows: Tensor, tokens: Tensor, memory: Sequence[Any]) -> Tensor:
        """Without the head, whose logits nobody reads: `[K, 0, V]`."""
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        mask = chain_mask(slots, tokens.shape[1], self.dtype)
        cache = self._allocated().prefill(rows)
        self._run(self.model.base_model, tokens, self._positions_at(slots), mask, cache)
        return torch.empty((len(tokens), 0, self.vocab_size), device=self.device)

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache, memory: Tensor | None
    ) -> Scores:
        logits = self._run(self.model, tokens, positions, mask, cache).logits.float()
        if self.room < 0:
            logits = pad(logits, (0, -self.room), value=float("-inf"))
        return Scores(logits[..., : self.vocab_size])

    def _run(self, part: Any, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Any:
        if self.room < 0:  # a token without an embedding is read as another: drafts are guesses
            tokens = tokens.clamp_max(self.vocab_size + self.room - 1)
        return part(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self._masks(mask, positions),
            past_key_values=cache,
            use_cache=True,
        )

    def _masks(self, mask: Tensor, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """What each kind of layer reads; `mask [B, 1, N, length]` is that of full attention."""
        if self.window is None or not (self.mixed or self.sliding):
            return mask
        near = window_mask(mask, positions, self.window)
        return {FULL: mask, SLIDING: near} if self.mixed else near


@torch.inference_mode()
def _shape(model: Any, name: str) -> tuple[int, int, int]:
    """Layers, heads and head size of the keys and values, from those of one token: configurations
    have a dozen ways to say it."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    cache = model(input_ids=token, use_cache=True).past_key_values
    layers = cache.layers if isinstance(cache, DynamicCache) else ()
    shapes = {
        tuple(strip.shape) if isinstance(strip, Tensor) else None
        for layer in layers
        for strip in (getattr(layer, "keys", None), getattr(layer, "values", None))
    }
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None or len(shape) != 4:
        raise ValueError(f"{name}: its layers' memory is not plain keys and values of one shape")
    return len(layers), shape[1], shape[3]
