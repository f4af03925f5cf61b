"""Convert the checkpoint of Resemblyzer to the speaker encoder of diarize/.

    uv pip install --no-deps --target training/made/resemblyzer resemblyzer==0.1.4
    python -m training.speakers.encoder training/made/resemblyzer/resemblyzer/pretrained.pt

Without `--no-deps` the package requires webrtcvad, which needs a C compiler. The package is not imported;
its checkpoint is read as tensors only. The result has no mean yet, which training.speakers.plda adds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from forescribe.diarize.engines.voice_encoder import DIMENSION, NAME
from forescribe.speculative.models.quantized import stored_int8
from training.paths import BUNDLED

FOLDER = BUNDLED / "speakers"
SOURCE = "Resemblyzer 0.1.4, pretrained.pt"
LICENCE = "Apache-2.0"
HALVES = frozenset({"lstm.weight_ih_l0"})
"""Weights that stay in float16. These read mel power without logarithm, whose range 8 bits do not cover: with
them in 8 bits vectors have a cosine of 0.91 to 0.96 with those of float16, otherwise 0.998."""


def save(tensors: dict[str, torch.Tensor], name: str, digest: str) -> None:
    """Save the weights in 8 bits, as `stored_int8` does, but for `HALVES`, with their source."""
    told = {"name": name, "source": SOURCE, "sha256": digest, "licence": LICENCE}
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file(
        stored_int8(tensors, HALVES), FOLDER / NAME, metadata={"forescribe": json.dumps(told)}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    path = parser.parse_args().checkpoint
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    tensors = {key: state[key] for key in state if key.startswith(("lstm.", "linear."))}
    tensors["mean"] = torch.zeros(DIMENSION)
    save(tensors, "ge2e", hashlib.sha256(path.read_bytes()).hexdigest())
    print(f"{sum(t.numel() for t in tensors.values()):,} parameters in {FOLDER / NAME}")


if __name__ == "__main__":
    main()
