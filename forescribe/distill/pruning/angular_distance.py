"""The angle by which a block of layers turns the hidden states, measured on data.

`d(l, n) = mean arccos(cos(h_l, h_{l+n})) / pi` over tokens (Gromov et al. 2024, arXiv 2403.17887): the block
of n layers with the least of it is what a model misses least. Knows layers and hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from forescribe.asr.errors import UsageError

Choice = Literal["angular", "single", "spacing"]
"""All but one block of layers, those that turn most by themselves, or layers as far apart as possible."""


@dataclass(frozen=True)
class AngularDistances:
    """`of[n][l]` is d(l, n), 0 to 1: between the states that enter layer l and those that enter layer l + n,
    or that leave the last layer."""

    of: Mapping[int, tuple[float, ...]]
    tokens: int

    def kept(self, layers: int) -> tuple[int, ...]:
        """The layers of a draft with this many: all but the consecutive ones with the least distance, the
        later of equals. Raises UsageError for a number that the model does not have."""
        depth = max(self.of)
        _check(layers, depth)
        block = depth - layers
        row = self.of[block]
        first = min(range(len(row)), key=lambda start: (row[start], -start))
        return tuple(i for i in range(depth) if not first <= i < first + block)

    def most_turning(self, layers: int) -> tuple[int, ...]:
        """The layers of a draft with this many: those with the greatest d(l, 1), the earlier of equals, which
        need not lie together. Raises UsageError as `kept`."""
        depth = max(self.of)
        _check(layers, depth)
        ranked = sorted(range(depth), key=lambda layer: (-self.of[1][layer], layer))
        return tuple(sorted(ranked[:layers]))

    def chosen(self, layers: int, how: Choice) -> tuple[int, ...]:
        """As `how` says."""
        if how == "spacing":
            return spaced(layers, max(self.of))
        return self.kept(layers) if how == "angular" else self.most_turning(layers)


def _check(layers: int, depth: int) -> None:
    if not 0 < layers < depth:
        raise UsageError(f"--layers {layers}: from 1 to {depth - 1} of the model's {depth}")


def spaced(layers: int, depth: int) -> tuple[int, ...]:
    """As far apart as possible, the first and the last included (Distil-Whisper, arXiv 2311.00430). Raises
    UsageError for a number that the model does not have."""
    _check(layers, depth)
    if layers == 1:
        return (0,)
    return tuple(round(i * (depth - 1) / (layers - 1)) for i in range(layers))


class _Sums:
    """Sums of angles by block, over tokens."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.totals = torch.zeros(depth + 1, depth + 1, dtype=torch.float64)
        self.tokens = 0

    def add(self, states: Sequence[Tensor]) -> None:
        """States [N, D] that enter each layer, and those that leave the last one."""
        unit = torch.stack([s.double() / s.double().norm(dim=-1, keepdim=True) for s in states])
        for first in range(self.depth):
            cosines = (unit[first + 1 :] * unit[first]).sum(-1).clamp(-1, 1)  # [later, N]
            self.totals[first, first + 1 :] += cosines.arccos().sum(-1) / torch.pi
        self.tokens += unit.shape[1]

    def mean(self) -> AngularDistances:
        means = (self.totals / max(1, self.tokens)).tolist()
        return AngularDistances(
            {
                n: tuple(means[start][start + n] for start in range(self.depth - n + 1))
                for n in range(1, self.depth + 1)
            },
            self.tokens,
        )


@torch.no_grad()
def angular_distances(
    layers: Any, passes: Sequence[tuple[Callable[[], object], Tensor, Tensor]]
) -> AngularDistances:
    """Run each of `passes`, a forward and the row and place [N] of the tokens that count, and measure between
    all `layers` (a ModuleList)."""
    depth, sums = len(layers), _Sums(len(layers))
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
            sums.add([seen[i][row, place] for i in range(depth + 1)])
    finally:
        for hook in hooks:
            hook.remove()
    return sums.mean()
