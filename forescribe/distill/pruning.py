"""Drafts of some of a Whisper's own decoder layers, chosen by the angle by which blocks turn hidden states.

`d(l, n) = mean arccos(cos(h_l, h_{l+n})) / pi` over tokens (Gromov et al. 2024, arXiv 2403.17887), measured
on labelled rows: the block of n layers with the least of it is what a model misses least. Knows layers and
states; nothing of files.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from forescribe.asr.errors import UsageError
from forescribe.speculative.models.checkpoint import loading

_LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")

Pass = tuple[Callable[[], object], Tensor, Tensor]
"""A forward, and the row and place [N] of the tokens that count."""


def check_layers(layers: int, depth: int) -> None:
    """Raises UsageError for a number that the model does not have."""
    if not 0 < layers < depth:
        raise UsageError(f"--layers {layers}: from 1 to {depth - 1} of the model's {depth}")


def kept_layers(angles: Tensor, layers: int) -> list[int]:
    """The layers of a draft with this many: all but the consecutive ones that turn the states least, the
    later of equals. `angles [L + 1, L + 1]` are between the states that enter two layers, or leave the
    last."""
    depth = len(angles) - 1
    check_layers(layers, depth)
    block = depth - layers
    first = min(range(layers + 1), key=lambda start: (float(angles[start, start + block]), -start))
    return [i for i in range(depth) if not first <= i < first + block]


@torch.no_grad()
def angular_distances(layers: Any, passes: Sequence[Pass]) -> Tensor:
    """Run each of `passes` and measure d between all `layers` (a ModuleList) `[L + 1, L + 1]`."""
    depth, count = len(layers), 0
    totals = torch.zeros(depth + 1, depth + 1, dtype=torch.float64)
    seen: dict[int, Tensor] = {}

    def entering(index: int) -> Callable[..., None]:
        def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[index] = args[0] if args else kwargs["hidden_states"]

        return note

    def leaving(module: Any, args: tuple[Any, ...], output: Any) -> None:
        seen[depth] = output[0] if isinstance(output, tuple) else output

    hooks = [
        layer.register_forward_pre_hook(entering(i), with_kwargs=True)
        for i, layer in enumerate(layers)
    ]
    hooks.append(layers[-1].register_forward_hook(leaving))
    try:
        for forward, row, place in passes:
            forward()
            states = torch.stack([seen[i][row, place].double() for i in range(depth + 1)])
            unit = torch.nn.functional.normalize(states, dim=-1)  # [L + 1, N, D]
            for first in range(depth):
                cosines = (unit[first + 1 :] * unit[first]).sum(-1).clamp(-1, 1)  # [later, N]
                totals[first, first + 1 :] += cosines.arccos().sum(-1).cpu() / torch.pi
            count += len(row)
    finally:
        for hook in hooks:
            hook.remove()
    return totals / max(1, count)


@loading()
def pruned_whisper(model: Any, layers: Iterable[int]) -> Any:
    """A `WhisperForCausalLM` with these decoder layers of a Whisper, in float32, everything else copied."""
    from transformers import WhisperForCausalLM

    numbers = {old: new for new, old in enumerate(layers)}
    config = copy.deepcopy(model.config)
    config.decoder_layers = len(numbers)
    weights: dict[str, Tensor] = {}
    for name, value in model.model.decoder.state_dict().items():
        match = _LAYER.match(name)
        if match is None:
            weights[name] = value.float()
        elif int(match[2]) in numbers:
            weights[f"{match[1]}{numbers[int(match[2])]}{match[3]}"] = value.float()
    made = WhisperForCausalLM(config).float()
    made.model.decoder.load_state_dict(weights)
    made.tie_weights()
    return made
