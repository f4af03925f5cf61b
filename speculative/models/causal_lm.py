"""Text LLMs under the core's `Model` protocol, over unmodified transformers classes.

Llama, Qwen, Gemma, Mistral, GPT-2 and every other decoder whose attention is full, a sliding window or
in chunks: the mask alone determines what a layer reads, so families need no code of their own. A window
saves no memory here, as the cache holds all positions, but the tokens are exact.

What a configuration does not contain is tested on the model itself: see `speculative.models.agreement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import ModuleList
from transformers.cache_utils import Cache, DynamicCache

from ..drafts import Prefilled, Scores
from ..errors import LoadError
from .cache import LayerShape, SlotCache
from .cut_head import with_cut_head
from .families.causal_config import SLIDING
from .families.causal_model import CausalModel
from .families.module_taps import layers_of, reading
from .slot_model import ModuleModel


class CausalDecoder(CausalModel, ModuleModel):
    """A causal LM that runs transformers' modules; see `CausalModel`.

    Raises LoadError for layers that cache something other than plain keys and values (recurrent,
    compressed) too.
    """

    engine = "modules"

    def prepare(self) -> None:
        self.layers = _shapes(self.model, self.config.model_type)
        self.layer_list = ModuleList()
        self.drafting = with_cut_head(self.model, self.listed)

    def tap(self, layers: tuple[int, ...]) -> None:
        super().tap(layers)
        self.layer_list = layers_of(self.model.base_model, self.depth) if layers else ModuleList()

    def new_cache(self, batch: int, slots: int) -> SlotCache:
        return SlotCache(
            batch=batch, slots=slots, layers=self.layers, dtype=self.dtype, device=self.device
        )

    @torch.inference_mode()
    def prefill(
        self,
        rows: Tensor,
        tokens: Tensor,
        encoder_states: Sequence[Any],
        nodes: Tensor | None = None,
    ) -> Prefilled:
        """Skips the head where no `nodes` are asked for: returns logits `[K, 0, V]`."""
        cache, at = self._allocated().prefill(rows), self.prompt_places(tokens)
        if nodes is not None:
            scores = self.forward(tokens, at.positions, at.mask, cache, None)
            return Prefilled(self.chosen(scores.logits, nodes), scores.taps)
        inputs = self._inputs(tokens, at.positions, at.mask, cache)
        # Of some families the base model is the whole one, whose head is then read from instead.
        with reading(self.layer_list, self.taps, self.model.get_output_embeddings()) as states:
            read = self.model.base_model(**inputs)
        if -1 in self.taps and -1 not in states:
            states[-1] = read.last_hidden_state
        none = torch.empty((len(tokens), 0, self.vocab_size), device=self.device)
        return Prefilled(none, self.tapped(states))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Cache,
        encoder_states: Tensor | None,
    ) -> Scores:
        inputs = self._inputs(tokens, positions, mask, cache)
        with reading(self.layer_list, self.taps, self.drafting.get_output_embeddings()) as states:
            logits = self.drafting(**inputs).logits
        return Scores(self.own_vocabulary(logits), self.tapped(states))

    def _inputs(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache
    ) -> dict[str, Any]:
        masks = self.masks(mask, positions)
        by_kind = bool(self.kinds) and len(masks) > 1
        return {
            "input_ids": self.known_tokens(tokens),
            "position_ids": positions,
            "attention_mask": masks if by_kind else masks.get(SLIDING, mask),
            "past_key_values": cache,
            "use_cache": True,
        }


@torch.inference_mode()
def _shapes(model: Any, name: str) -> list[LayerShape]:
    """Heads and sizes of each layer's keys and values, from those of one token: configurations define them
    in a dozen ways."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    refusal = LoadError(f"{name}: its layers do not cache plain keys and values")
    try:
        cache = model(input_ids=token, use_cache=True).past_key_values
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        line = " ".join(str(error).split())[:150]
        raise LoadError(
            f"{name} keeps no keys and values that a cache could hold ({type(error).__name__}: {line})"
        ) from error
    shapes = []
    for layer in cache.layers if isinstance(cache, DynamicCache) else ():
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
            raise refusal
        if keys.dim() != 4 or keys.shape[:3] != values.shape[:3] or keys.shape[2] != 1:
            raise refusal
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[3]))
    if not shapes:
        raise refusal
    return shapes
