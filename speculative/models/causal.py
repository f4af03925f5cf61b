"""The base of the adapters of causal LMs: limits, windows, and the draft's vocabulary.

What a model's configuration says about positions and windows, and which it excludes, is read here; what it
does not contain is tested on the model itself (`agreement`). Knows a model's configuration; nothing of how an
adapter computes.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import LoadError
from .slot_model import SlotModel, chunk_mask, window_mask

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""The name in a configuration of each kind's width."""

OTHERS = "take a model of another family (docs/text.md lists those that were tested)"

_WIDTH = re.compile(r"window(_size|_len)?$|^index_")


class CausalModel(SlotModel):
    """A transformers causal LM, e.g. of `AutoModelForCausalLM.from_pretrained`.

    `positions` bounds the rows, and the cache is allocated for it; None takes the model's own limit.
    `vocab` is the target's number of tokens where this model is a draft: models of one family pad the same
    vocabulary to different sizes, and tokens that only one of them has are never proposed. `stored` is
    as of `WhisperModel`.

    Raises LoadError, with the model's type, for layers that the adapter cannot run, and for more positions
    than the model has.
    """

    def __init__(
        self,
        model: Any,
        positions: int | None = None,
        vocab: int | None = None,
        *,
        stored: torch.dtype | None = None,
    ) -> None:
        config = model.config.get_text_config()
        limit = positions_of(config)
        if positions is not None and positions > limit:
            raise LoadError(f"{config.model_type} has {limit} positions, not {positions}")
        kinds = kinds_of(config)
        strange = strange_windows(config, limit)
        if strange:
            raise LoadError(
                f"{config.model_type} is not supported: beyond {strange} of its config.json its layers "
                f"select what they read by other rules; {OTHERS}"
            )
        self.model, self.config, self.kinds = model, config, kinds
        self.widths = widths_of(config, kinds)
        super().__init__(
            device=model.device,
            dtype=model.dtype,
            vocab_size=vocab or config.vocab_size,
            positions=limit,
            layers=config.num_hidden_layers,
        )
        self.room = config.vocab_size - self.vocab_size  # for tokens that the target does not have
        self._positions = positions or limit
        self.prepare(stored or self.dtype)

    @abstractmethod
    def prepare(self, stored: torch.dtype) -> None:
        """Reads from the model what the adapter needs. Raises LoadError where it lacks that."""

    def known_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens without an embedding are read as another one: drafts are guesses."""
        return tokens if self.room >= 0 else tokens.clamp_max(self.vocab_size + self.room - 1)

    def own_vocabulary(self, logits: Tensor) -> Tensor:
        """Logits `[B, N, config.vocab_size]` as those of `vocab_size` tokens, in float32."""
        logits = logits.float()
        if self.room < 0:
            return pad(logits, (0, -self.room), value=float("-inf"))
        return logits if self.room == 0 else logits[..., : self.vocab_size].contiguous()

    def embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.model.get_input_embeddings()(self.known_tokens(tokens))
        return embedded

    def head(self, states: Tensor) -> Tensor:
        return self.own_vocabulary(self.model.get_output_embeddings()(states))

    def masks(self, mask: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """The masks of each kind of layer; `mask [B, 1, N, length]` is that of full attention."""
        masks = {FULL: mask}
        if SLIDING in self.widths:
            masks[SLIDING] = window_mask(mask, positions, self.widths[SLIDING])
        if CHUNKED in self.widths:
            masks[CHUNKED] = chunk_mask(mask, positions, self.widths[CHUNKED])
        return masks


def positions_of(config: Any) -> int:
    """The number of positions at which a token's computation depends only on the tokens before it.

    Rotary frequencies of the type "longrope" change for all texts of a batch once one is longer than
    those of the training ("dynamic" ones do so behind `max_position_embeddings`): keys of one text
    would be rotated by different frequencies. Llama 4 scales its queries by a count that it takes from
    the cache. Raises LoadError for a model without a limit.
    """
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise LoadError(
            f"{config.model_type} does not define how many positions it has "
            "(max_position_embeddings): models with other position encodings are not supported"
        )
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        if rope.get("rope_type") == "longrope":
            trained = rope.get("original_max_position_embeddings")
            limit = min(limit, trained if isinstance(trained, int) else limit)
    scale = getattr(config, "floor_scale", None)
    if getattr(config, "attn_temperature_tuning", False) and scale:
        limit = min(limit, int(scale) - 1)
    return limit


def kinds_of(config: Any) -> set[str]:
    """The kinds of attention that a configuration names for its layers. Raises LoadError for others than
    those of `WINDOWS` and full attention."""
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = kinds - {FULL, *WINDOWS}
    if unknown:
        raise LoadError(
            f"{config.model_type}: layers of {', '.join(sorted(unknown))} are not supported"
        )
    return kinds


def widths_of(config: Any, kinds: set[str]) -> dict[str, int]:
    """The width of each kind of layer that has one."""
    return {
        kind: width
        for kind, name in WINDOWS.items()
        if (width := getattr(config, name, None)) is not None
        # Without layer types a window is every layer's; with them it is of those that say so.
        and (kind in kinds or (kind == SLIDING and not kinds))
    }


def strange_windows(config: Any, limit: int) -> str:
    """A width that our masks do not implement, as `window_size 256`: GPT-Neo's local layers, Doge's choice
    of keys, indexed attention. Shorter texts are computed correctly, so no short comparison finds it."""
    for name, value in config.to_dict().items():
        number = isinstance(value, int) and not isinstance(value, bool)
        if _WIDTH.search(name) and name not in WINDOWS.values() and number and 0 < value < limit:
            return f"{name} {value}"
    return ""


def cache_numbers(config: Any) -> int:
    """Numbers that the caches keep for a position of one row: keys and values of all layers, none of which
    is taken to be shorter than the text."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    plain = config.hidden_size // config.num_attention_heads
    latent = getattr(config, "qk_nope_head_dim", 0) + getattr(config, "qk_rope_head_dim", 0)
    size = max(getattr(config, "head_dim", None) or plain, latent)
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size)


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    """The settings of rotary positions: one set, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters, *nested]
