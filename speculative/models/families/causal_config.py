"""What a causal LM's configuration says about positions and windows, and which it excludes.

Knows configurations of transformers; no tensors and no model.
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import LoadError

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""The name in a configuration of each kind's width."""

OTHERS = "take a model of another family (docs/text.md lists those that were tested)"

_WIDTH = re.compile(r"window(_size|_len)?$|^index_")


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


def cache_numbers(config: Any) -> int:
    """Numbers that the caches keep for a position of one row: keys and values of all layers, none of which
    is taken to be shorter than the text."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    plain = config.hidden_size // config.num_attention_heads
    latent = getattr(config, "qk_nope_head_dim", 0) + getattr(config, "qk_rope_head_dim", 0)
    size = max(getattr(config, "head_dim", None) or plain, latent)
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size)


def strange_windows(config: Any, limit: int) -> str:
    """A width that our masks do not implement, as `window_size 256`: GPT-Neo's local layers, Doge's choice
    of keys, indexed attention. Shorter texts are computed correctly, so no short comparison finds it."""
    for name, value in config.to_dict().items():
        number = isinstance(value, int) and not isinstance(value, bool)
        if _WIDTH.search(name) and name not in WINDOWS.values() and number and 0 < value < limit:
            return f"{name} {value}"
    return ""


def _ropes(parameters: Any) -> list[dict[str, Any]]:
    """The settings of rotary positions: one set, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return []
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return [parameters, *nested]


def special_tokens(*configs: Any) -> set[int]:
    """Special tokens: image placeholders, padding."""
    found: set[int] = set()
    for config in configs:
        for name, value in config.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                found.update(i for i in (value if isinstance(value, list) else [value])
                             if isinstance(i, int))  # fmt: skip
    return found
