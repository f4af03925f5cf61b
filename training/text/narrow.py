"""A text draft of chosen layers of its target, with narrower feed-forward blocks.

    python -m training.text.narrow out/narrow --layers 0 4 8 12 --inner 128 --labels LABELS

The target was grown from four layers, of which the others are nearly copies: those four alone follow it in
99.9 % of the tokens, but are larger than the draft should be. Of every block the inner neurons that matter
most are kept: by the mean size of their activations on labelled texts, times that of their output weights.
The labels are those of `forescribe distill --keep-labels`.
"""

from __future__ import annotations

import argparse
import copy
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from forescribe.distill.labels import LabelStore, collate
from forescribe.distill.text import TextPair
from forescribe.speculative.device import choose
from forescribe.text.language_model import load
from training.paths import BUNDLED

ROWS = 96


@torch.no_grad()
def importance(pair: TextPair, model: Any, labels: Path) -> list[Tensor]:
    """For each layer, how much every inner neuron adds to its output [F]."""
    rows = LabelStore(labels).rows()
    random.Random(1).shuffle(rows)
    sums = [torch.zeros(layer.mlp.down_proj.in_features) for layer in model.model.layers]

    def note(index: int) -> Any:
        def hook(module: Any, args: tuple[Tensor, ...]) -> None:
            sums[index] += args[0].abs().flatten(0, 1).sum(0)

        return hook

    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(note(i))
        for i, layer in enumerate(model.model.layers)
    ]
    for row in rows[:ROWS]:
        pair.logits(model, collate([row]))
    for made in hooks:
        made.remove()
    weights = [layer.mlp.down_proj.weight.norm(dim=0) for layer in model.model.layers]
    return [s * w for s, w in zip(sums, weights, strict=True)]


def narrowed(model: Any, scores: list[Tensor], inner: int) -> LlamaForCausalLM:
    """The model with the `inner` neurons of highest score in each block."""
    config = copy.deepcopy(model.config)
    config.intermediate_size = inner
    weights = dict(model.state_dict())
    for number, score in enumerate(scores):
        kept = score.topk(inner).indices.sort().values
        name = f"model.layers.{number}.mlp"
        for part in ("gate_proj", "up_proj"):
            weights[f"{name}.{part}.weight"] = weights[f"{name}.{part}.weight"][kept]
        weights[f"{name}.down_proj.weight"] = weights[f"{name}.down_proj.weight"][:, kept]
    made = LlamaForCausalLM(config)
    made.load_state_dict(weights)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 4, 8, 12])
    parser.add_argument("--inner", type=int, default=128)
    parser.add_argument("--labels", type=Path, required=True)
    options = parser.parse_args()
    device = choose("cpu")
    pair = TextPair(load(BUNDLED / "text", device), device)
    model = pair.pruned(options.layers)
    made = narrowed(model, importance(pair, model, options.labels), options.inner)
    options.folder.mkdir(parents=True, exist_ok=True)
    pair.save(made, options.folder)


if __name__ == "__main__":
    main()
