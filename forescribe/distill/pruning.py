"""Drafts of some of a target's own layers, chosen by the angle by which each block turns the hidden states.

`d(l, n) = mean arccos(cos(h_l, h_{l+n})) / pi` over tokens (Gromov et al. 2024, arXiv 2403.17887), measured
on labelled rows: the block of n layers with the least of it is what a model misses least. The models are
unmodified classes of transformers with a configuration of fewer layers, everything else copied. Knows
pairs, rows and layers; nothing of the command.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from forescribe.asr.errors import UsageError
from forescribe.speculative.models.checkpoint import loading

from .files import put_bytes, writing
from .labels import LabelRow, collate
from .pair import DraftPair

Choice = Literal["angular", "single", "spacing"]
"""All but one block of layers, those that turn most by themselves, or layers as far apart as possible."""

ROWS = 32
"""Rows that are measured: thousands of tokens, of which hundreds already give the same order."""

_LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")


def pruned_folder(
    pair: DraftPair, rows: Sequence[LabelRow], output: Path, *, layers: int, choose: Choice
) -> PruneReport:
    """Write a draft with this many of the target's layers, chosen as `choose` says. Raises UsageError
    for a number that the model does not have, or without rows to measure; OutputError."""
    depth = len(pair.layers(pair.target))
    distances = measured_distances(pair, rows) if rows else None
    kept = spaced(layers, depth)
    if choose != "spacing":
        if distances is None:
            raise UsageError(
                "layers are compared on data, and this data has neither speech nor text"
            )
        kept = distances.chosen(layers, choose)
    draft = pair.pruned(kept)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        pair.save(draft, output)
    return PruneReport(kept, depth, distances)


def keep_report(output: Path, report: PruneReport) -> None:
    """Write `prune.json` beside the draft. Raises OutputError."""
    put_bytes(output / "prune.json", report.to_json().encode())


@dataclass(frozen=True)
class PruneReport:
    """The layers that were kept of `depth`, and the distances of all blocks, where they were measured."""

    kept: tuple[int, ...]
    depth: int
    distances: AngularDistances | None

    def lines(self) -> list[str]:
        """The least distance of each block length, for people."""
        if self.distances is None:
            return []
        found = [
            f"angular distances over {self.distances.tokens:,} tokens (0: no change, 1: reversed)"
        ]
        for length in range(1, self.depth):
            row = self.distances.of[length]
            first = min(range(len(row)), key=lambda start: row[start])
            found.append(
                f"  without {length} of {self.depth}: layers {first} to {first + length - 1}, "
                f"{row[first]:.3f}"
            )
        return found

    def to_json(self) -> str:
        data = {
            "kept": self.kept,
            "depth": self.depth,
            "tokens": None if self.distances is None else self.distances.tokens,
            "distances": None
            if self.distances is None
            else {str(n): [round(d, 5) for d in row] for n, row in self.distances.of.items()},
        }
        return json.dumps(data, indent=1) + "\n"


def measured_distances(pair: DraftPair, rows: Sequence[LabelRow]) -> AngularDistances:
    """Between all layers of the target, at the tokens of the answers and what is before them."""
    passes = []
    for row in rows[:ROWS]:
        batch = collate([row]).to(pair.device.torch)
        count = len(row.tokens) - 1
        place = torch.arange(count, device=batch.tokens.device)
        forward = partial(pair.target_logits, batch, torch.tensor([row.begin], device=place.device))
        passes.append((forward, torch.zeros_like(place), place))
    return angular_distances(pair.layers(pair.target), passes)


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


def spaced(layers: int, depth: int) -> tuple[int, ...]:
    """As far apart as possible, the first and the last included (Distil-Whisper, arXiv 2311.00430). Raises
    UsageError for a number that the model does not have."""
    _check(layers, depth)
    if layers == 1:
        return (0,)
    return tuple(round(i * (depth - 1) / (layers - 1)) for i in range(layers))


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
    check_layers(kept, len(causal_layers(model)))
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


def causal_layers(model: Any) -> Any:
    """The layers of a causal language model. Raises UsageError for a family that cannot be pruned."""
    found = getattr(getattr(model, "model", None), "layers", None)
    if found is None:
        raise UsageError(
            f"{model.config.model_type} models cannot be pruned: their layers are not `model.layers`, as in "
            "Llama, Qwen, Mistral and their like"
        )
    return found


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


def _check(layers: int, depth: int) -> None:
    if not 0 < layers < depth:
        raise UsageError(f"--layers {layers}: from 1 to {depth - 1} of the model's {depth}")


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
