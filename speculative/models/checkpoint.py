"""The files of a model's folder: what is missing or damaged, and how to load.

A process loads one model at a time (`loading`). transformers 5 changes global state while it builds a model,
and restores it afterwards: `PreTrainedModel.tie_weights` becomes a no-op (`initialization.no_tie_weights`),
torch's default dtype becomes the checkpoint's (`local_torch_dtype`), and `torch.nn.init.*` and
`torch.linspace` are replaced. Of two loads that overlap, the one that ends last restores the other's no-op
permanently: from then on no model of the process has its output layer tied, and each load fails with "its
weights lack proj_out.weight". Parameters created meanwhile have the wrong dtype. So every load takes this
lock: speech and text models, their drafts, tokenizers, diarizers, voice activity.

Knows file formats and how transformers loads. Import is light.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from logging import CRITICAL
from pathlib import Path, PurePath
from typing import Any

from ..errors import one_line

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
CONFIG, GENERATION = "config.json", "generation_config.json"
SCALE = "_scale"
"""What the name of a tensor's scales ends with, see `quantized`."""

GGUF = {".gguf": "a .gguf of llama.cpp"}
"""Single files that hold a language model, by suffix, with what they are."""

POSITIONS = "model.encoder.embed_positions.weight"
"""Of a Whisper these are sinusoids: where its file has nothing but their scales, they are computed
(`speculative.models.quantized`)."""

LAYERS = ("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model")
"""What configurations call the number of layers and the width of their states."""

_LAYER = re.compile(r"(.*?\.)\d+\.")
"""The beginning of the name of a layer's weight: its list of layers, and its number."""

_one = threading.RLock()
"""Reentrant: a load may be part of another."""


def missing(folder: Path) -> str | None:
    """What a folder lacks of a configuration and all files of its weights; None where nothing."""
    if not (folder / CONFIG).is_file():
        return CONFIG
    for name in WEIGHTS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return None
        if index.is_file():
            shards = _shards(index)
            lost = [shard for shard in shards if not (folder / shard).is_file()]
            if lost:
                return f"{lost[0]}, which {index.name} names"
            return None if shards else f"weights: {index.name} names none"
    return "weights"


def damaged(folder: Path) -> str | None:
    """The first file that cannot be read for what its name says, with the reason; None where all can."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return f"{path.name} is damaged: {one_line(error)}"
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except Exception as error:  # safetensors has an error class for every kind of damage
            return f"{path.name} is damaged or not complete: {one_line(error)}"
    return None


def tensor_names(folder: Path) -> frozenset[str]:
    """The names in a folder's safetensors files, of which only the headers are read. Empty where the weights
    have another form. Raises what safetensors raises for damaged files."""
    from safetensors import safe_open

    names = set[str]()
    for path in weight_files(folder):
        with safe_open(path, "np") as file:
            names.update(file.keys())
    return frozenset(names)


def in_integers(folder: Path) -> bool:
    """Whether a folder's safetensors files hold weights of 8-bit integers with scales. Raises as
    `tensor_names`."""
    names = tensor_names(folder)
    return not names.isdisjoint(name + SCALE for name in (*names, POSITIONS))


def weight_files(folder: Path) -> list[Path]:
    """A folder's safetensors files, in the order of their names."""
    index = folder / f"{WEIGHTS[0]}.index.json"
    if (folder / WEIGHTS[0]).is_file():
        return [folder / WEIGHTS[0]]
    if index.is_file():
        return [folder / name for name in _shards(index)]
    return sorted(folder.glob("*.safetensors"))


def check_size(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError for a configuration, or one within it, of more layers than a folder's weights can hold
    at one bit each, where a layer has at least the square of its width: they would be built for hours."""
    files = weight_files(folder) or folder.glob("pytorch_model*.bin")
    size = sum(path.stat().st_size for path in files)
    for part in (config, *(value for value in config.values() if isinstance(value, Mapping))):
        layers = max(part.get(key) or 0 for key in LAYERS)
        width = max(part.get(key) or 0 for key in WIDTHS)
        if layers * width**2 > 8 * size:
            raise ValueError(
                f"its config.json says {layers} layers of width {width}, more than its weights can hold"
            )


def check_complete(
    absent: Collection[str],
    mismatched: Collection[str],
    unexpected: Collection[str],
    model: Collection[str],
) -> None:
    """Raise ValueError that names a weight that is missing, of another shape, or of a layer that a list of
    layers of the `model`, by the names of its weights, does not have. Other weights that it has no use for
    are left out."""
    if absent:
        raise ValueError(f"its weights lack {min(absent)} ({len(absent)} in all)")
    if mismatched:
        raise ValueError(f"{min(mismatched)} has another shape than its config.json says")
    held = {found[0]: found[1] for name in model if (found := _LAYER.match(name))}
    lists = {*held.values()}
    for name in sorted(unexpected):
        found = _LAYER.match(name)
        if found and found[0] not in held and found[1] in lists:
            raise ValueError(f"its weights have {name}, a layer more than its config.json says")


def read_model(kind: Any, folder: Path | None, **source: Any) -> Any:
    """What `from_pretrained` of a class of transformers reads. Raises ValueError as `check_complete`."""
    with quiet():
        # Mismatches are allowed here, to be reported by name below.
        model, report = kind.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, **source
        )
    # MTP layers are numbered behind the others, and are no part of transformers' models.
    config = model.config.get_text_config()
    mtp = any(getattr(config, key, None) for key in ("num_nextn_predict_layers", "num_mtp_layers"))
    check_complete(
        report["missing_keys"],
        [key[0] for key in report["mismatched_keys"]],
        () if mtp else report["unexpected_keys"],
        [name for name, _ in model.named_parameters()],
    )
    return model


@contextmanager
def loading() -> Iterator[None]:
    """Waits until no other thread loads; also `@loading()` on a function."""
    with _one:
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Disables progress bars and the table of missing weights: our own messages have one line."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def method_of(config: Any) -> str | None:
    """The quantisation method of a checkpoint's configuration; None for plain weights."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return None
    method = given.get("quant_method") if isinstance(given, dict) else given.quant_method
    return str(getattr(method, "value", method))


def _shards(index: Path) -> list[str]:
    """The files that an index of weights names, without folders; none where it cannot be read."""
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({PurePath(name).name for name in named})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
