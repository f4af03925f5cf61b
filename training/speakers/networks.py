"""Convert the published speaker networks to the files of bundled/speakers.

    python -m training.speakers.networks FOLDER

FOLDER holds `segmentation-3.0-pytorch_model.bin` (pyannote/segmentation-3.0, MIT) and
`campplus_cn_en_common.pt` (CAM++ zh-en common advanced of 3D-Speaker, Apache-2.0); their sums are checked.
Batch normalisations are folded into the convolutions before them. Matrices are rounded to integers whose
step is a share of the root mean square of their row, and the files are compressed: unlike steps of max / 127,
these leave few different integers, so the files shrink to 4.5 and 6 bits per weight. SincNet stays in
float32, as its filters are computed from a few numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from forescribe.diarize.engines import segmentation, voice_encoder
from training.paths import BUNDLED

FOLDER = BUNDLED / "speakers"
SEGMENTATION = (
    "segmentation-3.0-pytorch_model.bin",
    "da85c29829d4002daedd676e012936488234d9255e65e86dfab9bec6b1729298",
)
VOICES = (
    "campplus_cn_en_common.pt",
    "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
)
EPSILON = 1e-5
"""Of CAM++'s batch normalisations."""

STEPS = (
    ("lstm.", 0.12),
    ("linear.", 0.12),
    ("dense.0.", 0.15),
    ("dense.1.", 0.28),
    ("dense.2.", 0.28),
    ("", 0.1),
)
"""Steps of integers by the beginning of a name, as a share of the root mean square of a row. The deep layers
of CAM++ hold most of its weights and need the least precision."""

SMALL = 1000
"""Tensors with fewer numbers stay in float16."""


def checked(path: Path, digest: str) -> Path:
    """Return `path`. Exits if its sum is another one."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise SystemExit(f"{path}: SHA-256 {found}, expected {digest}")
    return path


def published_segmentation(folder: Path) -> dict[str, Tensor]:
    """The state of PyanNet, as published."""
    path = checked(folder / SEGMENTATION[0], SEGMENTATION[1])
    # The sum is that of the published file, so that its classes are known.
    stored: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return dict(stored["state_dict"])


def published_voices(folder: Path) -> dict[str, Tensor]:
    """The state of CAM++, as published."""
    path = checked(folder / VOICES[0], VOICES[1])
    return dict(torch.load(path, map_location="cpu", weights_only=True))


def folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """CAM++'s published state -> the weights of `VoiceEncoder`."""
    found: dict[str, Tensor] = {}

    def norm(name: str) -> tuple[Tensor, Tensor]:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        scale = (variance + EPSILON).rsqrt() * state.get(f"{name}.weight", torch.ones_like(mean))
        return scale, state.get(f"{name}.bias", torch.zeros_like(mean)) - mean * scale

    def fold(here: str, convolution: str, after: str, matrix: bool = False) -> None:
        weight, (scale, shift) = state[f"{convolution}.weight"], norm(after)
        weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
        found[f"{here}.weight"] = weight.flatten(1) if matrix else weight
        found[f"{here}.bias"] = shift

    def keep(here: str, there: str) -> None:
        found[f"{here}.scale"], found[f"{here}.shift"] = norm(there)

    fold("head.first", "head.conv1", "head.bn1")
    fold("head.last", "head.conv2", "head.bn2")
    for stage in (1, 2):
        for block in (0, 1):
            here, there = f"head.{stage}.{block}", f"head.layer{stage}.{block}"
            fold(f"{here}.first", f"{there}.conv1", f"{there}.bn1")
            fold(f"{here}.second", f"{there}.conv2", f"{there}.bn2")
        fold(
            f"head.{stage}.0.shortcut",
            f"head.layer{stage}.0.shortcut.0",
            f"head.layer{stage}.0.shortcut.1",
        )
    fold("time", "xvector.tdnn.linear", "xvector.tdnn.nonlinear.batchnorm")
    for block, (layers, _) in enumerate(voice_encoder.LAYERS):
        for layer in range(layers):
            here, there = f"dense.{block}.{layer}", f"xvector.block{block + 1}.tdnnd{layer + 1}"
            keep(here, f"{there}.nonlinear1.batchnorm")
            fold(f"{here}.reduce", f"{there}.linear1", f"{there}.nonlinear2.batchnorm", matrix=True)
            found[f"{here}.local.weight"] = state[f"{there}.cam_layer.linear_local.weight"]
            for part, name in (("narrow", "linear1"), ("wide", "linear2")):
                found[f"{here}.{part}.weight"] = state[f"{there}.cam_layer.{name}.weight"].flatten(
                    1
                )
                found[f"{here}.{part}.bias"] = state[f"{there}.cam_layer.{name}.bias"]
        there = f"xvector.transit{block + 1}"
        keep(f"dense.{block}.out", f"{there}.nonlinear.batchnorm")
        found[f"dense.{block}.out.weight"] = state[f"{there}.linear.weight"]
    keep("dense.out", "xvector.out_nonlinear.batchnorm")
    fold("output", "xvector.dense.linear", "xvector.dense.nonlinear.batchnorm", matrix=True)
    return found


def rounded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as integers with scales, SincNet in float32, other vectors in float16."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.startswith("sincnet."):
            found[name] = tensor.float().contiguous()
            continue
        if tensor.dim() < 2 or tensor.numel() < SMALL:
            found[name] = tensor.half().contiguous()
            continue
        rows = tensor.float().flatten(1)
        step = next(step for start, step in STEPS if name.startswith(start))
        scale = torch.maximum(step * rows.square().mean(1).sqrt(), rows.abs().amax(1) / 127)
        integers = (rows / scale.clamp(min=1e-12)[:, None]).round()
        found[name] = integers.to(torch.int8).view(tensor.shape).contiguous()
        found[f"{name}_scale"] = scale.half() if scale.min() > 1e-4 else scale
    return found


FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 2, "pb": 1}]
"""Numbers have four or fewer bytes, not the structure of text: 2 % smaller than the preset alone."""


def write(path: Path, tensors: Mapping[str, Tensor]) -> int:
    """Write a compressed safetensors file; returns its size."""
    data = lzma.compress(save(dict(tensors)), filters=FILTERS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    networks = {
        segmentation.NAME: rounded(published_segmentation(folder)),
        voice_encoder.NAME: rounded(folded(published_voices(folder))),
    }
    for name, tensors in networks.items():
        print(f"{name}: {write(FOLDER / name, tensors):,} bytes")


if __name__ == "__main__":
    main()
