"""Models with some of another's decoder layers, everything else copied.

Unmodified classes of transformers, with a configuration of fewer layers. Knows no data.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.errors import UsageError
from forescribe.speculative.models.checkpoint import loading

_LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")


def check_layers(layers: Sequence[int], depth: int) -> None:
    """Raises UsageError for layers that are not in a model of this depth, or not in order."""
    if (
        not layers
        or list(layers) != sorted(set(layers))
        or not 0 <= layers[0] <= layers[-1] < depth
    ):
        raise UsageError(
            f"layers {', '.join(map(str, layers)) or 'none'}: from 0 to {depth - 1}, each once, in order"
        )


@loading()
def pruned_whisper(model: Any, layers: Iterable[int]) -> Any:
    """A `WhisperForCausalLM` with these decoder layers of a Whisper, in float32."""
    from transformers import WhisperForCausalLM

    kept = list(layers)
    check_layers(kept, len(model.model.decoder.layers))
    config = copy.deepcopy(model.config)
    config.decoder_layers = len(kept)
    made = WhisperForCausalLM(config).float()
    made.model.decoder.load_state_dict(_selected(model.model.decoder.state_dict(), kept))
    made.tie_weights()
    return made


@loading()
def pruned_causal(model: Any, layers: Iterable[int]) -> Any:
    """A causal language model of the same class with these layers, in float32. Raises UsageError for a
    family whose layers are not `model.layers`."""
    kept = list(layers)
    found = getattr(getattr(model, "model", None), "layers", None)
    if found is None:
        raise UsageError(
            f"{model.config.model_type} models cannot be pruned: their layers are not `model.layers`, as in "
            "Llama, Qwen, Mistral and their like"
        )
    check_layers(kept, len(found))
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = [model.config.layer_types[i] for i in kept]
    made = type(model)(config).float()
    missing, unknown = made.load_state_dict(_selected(model.state_dict(), kept), strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise UsageError(
            f"{model.config.model_type} models cannot be pruned: {[*missing, *unknown][0]} has no partner"
        )
    made.tie_weights()
    return made


def _selected(weights: Mapping[str, Tensor], kept: Sequence[int]) -> dict[str, Tensor]:
    """The weights of the kept layers, renumbered, and all that belong to none."""
    numbers = {old: new for new, old in enumerate(kept)}
    chosen: dict[str, Tensor] = {}
    for name, value in weights.items():
        match = _LAYER.match(name)
        if match is None:
            chosen[name] = value.to(torch.float32)
        elif int(match[2]) in numbers:
            chosen[f"{match[1]}{numbers[int(match[2])]}{match[3]}"] = value.to(torch.float32)
    return chosen
