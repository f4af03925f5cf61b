"""Matrices of 8-bit integers: models that compute with them, and folders that store them.

    w[n, k] = scale[n] q[n, k]       scale[n] = max |w[n]| / 127
    x[r, k] ~ s[r] i[r, k]           s[r]     = max |x[r]| / 127

An output is `(sum over k of q[n, k] i[r, k]) (s[r] scale[n])`, the arithmetic that all engines share. Sums
are exact 32-bit integers, so a row's output has the same bits at every batch size, number of tokens and
number of threads. One scale for all rows, as in torch's dynamic quantisation, would make a row depend on the
rows beside it, its own drafts included.

Folders hold a tensor as `<name>` (int8, `[N, ...]`) and `<name>_scale` (float, `[N]`), as the bundled models
do: half of float16's bytes. Of the positions of Whisper's encoder the scales suffice: they are sinusoids
(Radford et al. 2022, section 2.2; openai/whisper `model.py`). Decoding uses the floats, in the number format
of the device; `--quantize int8` rounds a projection to the same integers again. The folder of a draft may
also leave out the embeddings, which are its target's.

Knows `torch.nn.Linear` and where Whisper's and causal models' projections are; nothing of engines.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

from ..errors import LoadError
from .checkpoint import (
    CONFIG,
    GENERATION,
    POSITIONS,
    SCALE,
    check_size,
    in_integers,
    quiet,
    read_model,
    tensor_names,
    weight_files,
)

WIDTH = "model.encoder.layer_norm.weight"
"""A weight of a Whisper that is as long as its encoder's states."""

LARGEST = 127
NOTHING = 2.0**-100
"""Rows of smaller magnitude count as zeros: 127 divided by it must be a number."""

BORROWED = ("model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight")
"""Weights that a Whisper draft has from its target where its own files lack them: `distill` keeps them."""


def quantize_whisper(model: Any) -> None:
    """Rounds the decoder of a Whisper and its head to int8, in place; the head is `balanced` before. The
    projections of encoder states to keys and values keep their format: they run once for a window. The
    encoder's modules keep theirs too, as a draft's encoder is compared with it; native kernels pack
    `int8_encoder`."""
    decoder = model.model.decoder
    for layer in decoder.layers:
        _quantize(layer, keep=(layer.encoder_attn.k_proj, layer.encoder_attn.v_proj))
    decoder.layer_norm, head = balanced(decoder.layer_norm, model.proj_out)
    model.proj_out = Int8Linear.of(head)


def balanced(
    norm: torch.nn.LayerNorm, linear: torch.nn.Linear
) -> tuple[torch.nn.LayerNorm, torch.nn.Linear]:
    """The same function, in new modules: columns of the projection times a power of two, and the norm before
    it divided by it, so that a column's share of an output's step is as that of the norm's row (SmoothQuant,
    Xiao et al. 2023, section 4, with alpha 0.5 and the norm's weights instead of recordings). Powers of two
    are exact in every number format."""
    weight, bias, columns = (t.detach().float() for t in (norm.weight, norm.bias, linear.weight))
    read, largest = weight.hypot(bias), columns.abs().amax(0)
    factor = (read.clamp_min(NOTHING) / largest.clamp_min(NOTHING)).sqrt()
    factor = torch.exp2((factor / factor.median()).log2().round().clamp(-6, 6))
    norm, linear = copy.copy(norm), copy.copy(linear)
    for module, name, times in (
        (norm, "weight", 1 / factor),
        (norm, "bias", 1 / factor),
        (linear, "weight", factor),
    ):
        module._parameters = dict(module._parameters)
        tensor = getattr(module, name).detach()
        setattr(module, name, torch.nn.Parameter(tensor * times.to(tensor.dtype), False))
    return norm, linear


def int8_encoder(encoder: Any) -> Any:
    """A `WhisperEncoder` whose layers' projections are those of `encoder` rounded to int8; what is not
    rounded is shared. Convolutions, norms and attention keep their format."""

    def copied(module: torch.nn.Module) -> Any:
        made = copy.copy(module)
        made._modules = dict(module._modules)
        return made

    made = copied(encoder)
    made.layers = torch.nn.ModuleList(copied(layer) for layer in encoder.layers)
    for layer in made.layers:
        layer.self_attn = copied(layer.self_attn)
    _quantize(made.layers)
    return made


def quantize_causal(model: Any) -> None:
    """Rounds all projections of a causal LM and its head to int8, in place; embeddings keep their format.
    Raises LoadError for a model without layers of `torch.nn.Linear`."""
    if not any(type(module) is torch.nn.Linear for module in model.base_model.modules()):
        kind = model.config.model_type
        raise LoadError(
            f"--quantize int8 needs projections of torch.nn.Linear, and {kind} has none"
        )
    _quantize(model)


def is_int8(model: Any) -> bool:
    """Whether a model's projections are 8-bit integers."""
    return Int8Linear in map(type, model.modules())


class Int8Linear(torch.nn.Module):
    """`weight [N, K]` of int8 with `scale [N]` and `bias [N]`: see `int8_product`."""

    weight: torch.nn.Parameter
    scale: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        for name, tensor in (("weight", weight), ("scale", scale), ("bias", bias)):
            held = None if tensor is None else torch.nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(name, held)

    @classmethod
    def of(cls, linear: torch.nn.Linear) -> Int8Linear:
        """A projection rounded to int8; its bias is shared."""
        bias = None if linear.bias is None else linear.bias.detach()
        return cls(*quantized(linear.weight), bias)

    def forward(self, x: Tensor) -> Tensor:
        return int8_product(x, self.weight, self.scale, self.bias)


def int8_product(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """`x [..., K]` times `weight [N, K]` of int8, in the dtype of `x`: `[..., N]`. K is 2 or more: torch's
    product of integers leaves its result unwritten where it is 1."""
    integers, rows = rounded(x.reshape(-1, x.shape[-1]).float())
    sums: Tensor = torch._int_mm(integers, weight.t())
    out = sums.float() * (rows[:, None] * scale)
    if bias is not None:
        out = out + bias.float()
    return out.to(x.dtype).view(*x.shape[:-1], -1)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`weight [N, K]` as int8 `[N, K]` and the scale of each output, float32 `[N]`."""
    return rounded(weight.detach().float())


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[R, K]` of float32 as int8, to the nearest (even at ties), and their scales `[R]`."""
    top = rows.abs().amax(1, keepdim=True)
    zero = top < NOTHING
    factor = (LARGEST / top).masked_fill(zero, 0.0)
    scale = (top / LARGEST).masked_fill(zero, 0.0)
    return (rows * factor).round().to(torch.int8), scale[:, 0]


def float_model(
    kind: Any,
    folder: Path,
    config: Any,
    dtype: torch.dtype,
    lent: Mapping[str, Tensor] | None = None,
) -> Any:
    """The model of a folder, of a class of transformers. Weights of 8-bit integers become floats, and those
    that the files lack are `lent`.

    Raises ValueError for weights that do not fit the configuration, and for integers without scales.
    """
    from transformers import GenerationConfig

    check_size(folder, config.to_dict())
    held = tensor_names(folder)
    if not in_integers(folder) and not (held and (lent or {}).keys() - held):
        return read_model(kind, folder, dtype=dtype)
    kind, config = _class_of(kind, config)
    state = float_weights(folder, lent)
    model = read_model(kind, None, config=config, state_dict=state, dtype=dtype)
    if (folder / GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def float_weights(
    folder: Path, lent: Mapping[str, Tensor] | None = None, prefixes: tuple[str, ...] = ("",)
) -> dict[str, Tensor]:
    """`stored_weights`, those of integers as float32; of `lent` those that the files lack. Raises ValueError
    as `floats` does."""
    return {**(lent or {}), **floats(stored_weights(folder, prefixes))}


def stored_weights(folder: Path, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors of a folder's safetensors files, or else of PyTorch's, by name, as far as it begins with
    one of the `prefixes`. Raises what safetensors and torch raise for damaged files."""
    from safetensors.torch import load_file

    stored: dict[str, Tensor] = {}
    for path in weight_files(folder) or sorted(folder.glob("pytorch_model*.bin")):
        found: dict[str, Tensor]
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        stored |= {n: t for n, t in found.items() if n.startswith(prefixes)}
    return stored


def floats(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stored tensors stand for: those of integers as float32, the others as they are.

    Raises ValueError for integers without scales, and for scales of another length.
    """
    weights = {}
    if POSITIONS not in stored and POSITIONS + SCALE in stored and WIDTH in stored:
        length, width = len(stored[POSITIONS + SCALE]), len(stored[WIDTH])
        integers, _ = rounded(sinusoids(length, width))
        stored = {**stored, POSITIONS: integers}
    for name, tensor in stored.items():
        scale = stored.get(name + SCALE)
        if tensor.dtype is torch.int8:
            if scale is None:
                raise ValueError(f"its tensor {name} is of type I8 without scales")
            if scale.shape != tensor.shape[:1]:
                raise ValueError(
                    f"{name} has {len(tensor)} rows, and its scales are {list(scale.shape)}"
                )
            tensor = tensor.float().mul_(scale.float().view(-1, *[1] * (tensor.dim() - 1)))
        elif name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            continue
        weights[name] = tensor
    return weights


def sinusoids(length: int, width: int) -> Tensor:
    """The positions `[length, width]` of Whisper's encoder: sines, then cosines, with periods from 2 pi to
    20,000 pi, in float16 as published, as float32. In double precision: OpenAI's are those to the bit."""
    if width < 4 or width % 2:
        return torch.zeros(length, width)
    count = width // 2
    periods = torch.exp(-math.log(10_000) / (count - 1) * torch.arange(count, dtype=torch.float64))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * periods
    return torch.cat([angles.sin(), angles.cos()], 1).half().float()


def as_floats(folder: Path, out: Path, lent: Path | None = None) -> Path:
    """A folder that transformers alone can load, with the same numbers in float32: this one, or `out`, which
    is written where the weights are 8-bit integers. `lent` is the folder of a draft's target, for the
    embeddings that the draft's own lacks.

    Raises ValueError as `floats` does.
    """
    from safetensors.torch import save_file

    if not in_integers(folder):
        return folder
    weights = float_weights(folder)
    if lent is not None:
        borrowed = float_weights(lent)
        weights |= {name: borrowed[name] for name in BORROWED if name not in weights}
    out.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copyfile(path, out / path.name)
    config = json.loads((out / CONFIG).read_text(encoding="utf-8"))
    (out / CONFIG).write_text(json.dumps(config | {"dtype": "float32"}), encoding="utf-8")
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out


def _quantize(root: torch.nn.Module, *, keep: tuple[torch.nn.Module, ...] = ()) -> None:
    for parent in list(root.modules()):
        for name, child in parent.named_children():
            if type(child) is torch.nn.Linear and not any(child is each for each in keep):
                setattr(parent, name, Int8Linear.of(child))


def _class_of(kind: Any, config: Any) -> tuple[Any, Any]:
    """The class, with its own configuration, that one of transformers' Auto classes chooses: these take
    folders alone."""
    if not hasattr(kind, "from_config"):
        return kind, config
    with torch.device("meta"), quiet():
        model = kind.from_config(copy.deepcopy(config))
    return type(model), model.config
