"""Text LLMs under the core's `Model` protocol, over unmodified transformers classes.

Llama, Qwen, Gemma, Mistral, GPT-2 and every other decoder whose attention is full or a sliding
window: what a layer reads is said by its mask, so nothing else tells the families apart. A window
saves no memory here, strips hold all positions; it is exact, which is what counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from speculative.cache import SlotCache, window_mask
from speculative.models.slots import SlotModel
from speculative.types import Scores

FULL, SLIDING = "full_attention", "sliding_attention"


class CausalDecoder(SlotModel):
    """A transformers causal LM, e.g. of `AutoModelForCausalLM.from_pretrained`.

    `positions` bounds the rows (strips are allocated for it): None takes the model's own limit.
    Raises ValueError, with the model's type, for layers whose memory is no plain keys and values
    (recurrent, compressed, of different shapes), and for more positions than the model has.
    """

    def __init__(self, model: Any, positions: int | None = None) -> None:
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
            vocab_size=config.vocab_size,
            positions=positions or limit,
        )
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

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache, memory: Tensor | None
    ) -> Scores:
        logits = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=self._masks(mask, positions),
            past_key_values=cache,
            use_cache=True,
        ).logits
        return Scores(logits.float())

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
