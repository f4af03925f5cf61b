"""The files of a model's folder: what is missing, damaged or contradicts the weights, and how to load.

The loaders' own messages rarely name the file, and they build what a configuration claims before they read
the weights: a million layers take minutes, a wide one all memory.

A process loads one model at a time (`loading`). transformers 5 changes global state while it builds a model,
and restores it afterwards: `PreTrainedModel.tie_weights` becomes a no-op (`initialization.no_tie_weights`),
torch's default dtype becomes the checkpoint's (`local_torch_dtype`), and `torch.nn.init.*` and
`torch.linspace` are replaced. Of two loads that overlap, the one that ends last restores the other's no-op
permanently: from then on no model of the process has its output layer tied, and each load fails with "its
weights lack proj_out.weight". Parameters created meanwhile have the wrong dtype. So every load takes this
lock: speech and text models, their drafts, tokenizers, diarizers, voice activity.

Checkpoints that were published in a quantised form need further packages (`check_library`). Knows file
formats and the names of transformers' quantisation methods. Import is light.
"""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import CRITICAL
from math import prod
from pathlib import Path, PurePath
from typing import Any, TypeGuard

from ..errors import LoadError, one_line

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
CONFIG, GENERATION = "config.json", "generation_config.json"
SCALE = "_scale"
"""What the name of a tensor's scales ends with, see `quantized`."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of a folder's tensors by name."""

LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

UNSTORED = 1 << 26
"""Numbers that a model may have besides its weights, at most: tables of positions and masks."""

PACKAGES = {
    "torchao": {"torchao": "torchao"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "gptq": {"optimum": "optimum", "gptqmodel": "gptqmodel"},
    "awq": {"gptqmodel": "gptqmodel"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
}
"""By method of a `quantization_config`: the modules that read it, with the names to install."""

GGUF = {".gguf": "a .gguf of llama.cpp"}
"""Single files that hold a language model, by suffix, with what they are."""

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
            return _missing_shard(folder, index)
    return "weights"


def damaged(folder: Path) -> str | None:
    """The first file that cannot be read for what its name says, with the reason; None where all can."""
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")])
    for path in paths:
        if not path.exists():  # as `cp -r` leaves relative links of another place
            return f"{path.name} is a link to {path.readlink()}, which is not there; `cp -rL` copies files"
    for path in (path for path in paths if path.suffix == ".json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return f"{path.name} is damaged: {one_line(error)}"
    for path in (path for path in paths if path.suffix == ".safetensors"):
        from safetensors import safe_open

        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except Exception as error:  # safetensors has an error class for every kind of damage
            return f"{path.name} is damaged or not complete: {one_line(error)}"
    return None


POSITIONS = "model.encoder.embed_positions.weight"
"""Of a Whisper these are sinusoids: where its file has nothing but their scales, they are computed
(`speculative.models.quantized`)."""

WIDTH = "model.encoder.layer_norm.weight"
"""A weight as long as the encoder's states."""


def shapes_in(folder: Path) -> Shapes:
    """The shapes of the tensors in a folder's safetensors files, of which only the headers are read. Empty
    where the weights have another form or cannot be read, which loading them will say."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for path in weight_files(folder):
            with safe_open(path, "np") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except Exception:  # safetensors has an error class for every kind of damage
        return {}
    if POSITIONS not in shapes and POSITIONS + SCALE in shapes and WIDTH in shapes:
        shapes[POSITIONS] = (*shapes[POSITIONS + SCALE], *shapes[WIDTH])
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """A folder's safetensors files, in the order of their names."""
    index = folder / f"{WEIGHTS[0]}.index.json"
    if (folder / WEIGHTS[0]).is_file():
        return [folder / WEIGHTS[0]]
    if index.is_file():
        weight_map = _object(index).get("weight_map")
        names = weight_map.values() if isinstance(weight_map, dict) else ()
        return [folder / name for name in sorted({PurePath(str(name)).name for name in names})]
    return sorted(folder.glob("*.safetensors"))


def integer_weights(folder: Path) -> tuple[bool, str | None]:
    """Whether a folder's safetensors files hold weights of 8-bit integers with scales, and what is wrong
    where a weight or bias holds integers without. Nothing is wrong where the files cannot be read."""
    from safetensors import safe_open

    kinds: dict[str, str] = {}
    with suppress(Exception):  # damaged, as in `shapes_in`
        for path in weight_files(folder):
            with safe_open(path, "np") as file:
                for name in file.keys():
                    stored = file.get_slice(name)
                    shape = stored.get_shape()
                    # GPT-Neo and GPT-NeoX store a causal mask, as bytes, under the name of a bias.
                    square = len(shape) == 4 and shape[2] == shape[3]
                    if not (square and shape[0] == shape[1] == 1):
                        kinds[name] = str(stored.get_dtype())
    scaled = False
    for name, kind in kinds.items():
        if not name.endswith(("weight", "bias")) or kind.startswith(("F", "BF")):
            continue
        if kind != "I8" or name + SCALE not in kinds:
            return (
                False,
                f"its tensor {name} is of type {kind} without scales, and weights are floats",
            )
        scaled = True
    return scaled, None


def miscounted(folder: Path, shapes: Shapes, parts: Mapping[str, str]) -> str | None:
    """Which count of a folder's config.json is not that of its weights; None where none is. `parts` has, by
    key, what precedes the number of a layer in the names of tensors."""
    config = _object(folder / CONFIG)
    for key, part in parts.items():
        numbered = re.compile(rf"{re.escape(part)}(\d+)\.")
        numbers = [int(found[1]) for name in shapes if (found := numbered.search(name))]
        count = max(numbers, default=-1) + 1
        claimed = config.get(key)
        if shapes and _whole(claimed) and claimed != count:
            lack = f"lack {part}{count}" if claimed > count else f"have {count}"
            return f"its config.json says {key} {claimed}, and its weights {lack}"
    return None


def overcounted(folder: Path, shapes: Shapes) -> str | None:
    """Which count of layers or experts in the config.json of a causal LM is more than its weights hold; None
    where none is. They may hold more layers: those that predict further tokens are not counted."""
    whole = _object(folder / CONFIG)
    inner = whole.get("text_config")
    sizes = {size for shape in shapes.values() for size in shape}
    numbers = (int(n) for name in shapes for n in re.findall(r"(?:^|\.)(\d+)(?=\.)", name))
    most = max(numbers, default=-1) + 1
    for config in (whole, inner if isinstance(inner, dict) else {}):
        for key in (*LAYERS, *EXPERTS):
            count = config.get(key)
            held = _whole(count) and (count <= most or (key in EXPERTS and count in sizes))
            if shapes and _whole(count) and not held:
                return f"its config.json says {key} {count}, and its weights have {most} at most"
    return None


def misshapen(shapes: Shapes, make: Callable[[], Any]) -> str | None:
    """How the weights differ from the model that `make` builds of their configuration, None where they do
    not: a tensor of another shape, or a model of far more numbers. It is built without memory for them."""
    if not shapes:
        return None
    import torch

    with torch.device("meta"):
        model = make()
    for name, tensor in model.state_dict().items():
        # Sorted: some families' weights are stored in another order, which their loader turns around.
        if sorted(shapes.get(name, tensor.shape)) != sorted(tensor.shape):
            return (
                f"{name} has another shape than its config.json says: {list(shapes[name])}, "
                f"not {list(tensor.shape)}"
            )
    made = sum(map(torch.Tensor.numel, (*model.parameters(), *model.buffers())))
    held = sum(map(prod, shapes.values()))
    if made > 2 * held + UNSTORED:  # tied weights are stored once
        return f"its config.json makes a model of {made:,} numbers, and its weights are {held:,}"
    return None


def strange_id(folder: Path, vocab_size: int, used: Mapping[str, Iterable[str]]) -> str | None:
    """The first token id in a folder's files that is none of `vocab_size` tokens, with file and key; None
    where there is none. `used` has the keys that are read, by file."""
    for name, keys in used.items():
        config = _object(folder / name)
        for key in keys:
            for value in _ids(config.get(key)):
                if not (_whole(value) and 0 <= value < vocab_size):
                    return (
                        f"its {name} says {key} {value!r:.60}, and its vocabulary has the ids 0 to "
                        f"{vocab_size - 1}"
                    )
    return None


def check_complete(report: Mapping[str, Any]) -> None:
    """Raise ValueError that names a weight that is missing, or of another shape, by transformers' report of
    loading: it is filled with random numbers."""
    absent = sorted(report["missing_keys"])
    mismatched = sorted(str(key[0]) for key in report["mismatched_keys"])
    if absent:
        raise ValueError(f"its weights lack {absent[0]} ({len(absent)} in all)")
    if mismatched:
        raise ValueError(f"{mismatched[0]} has another shape than its config.json says")


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


def check_library(config: Any) -> None:
    """Raises LoadError, with the packages to install, where a checkpoint is quantised by a method whose
    libraries are not here."""
    method = method_of(config)
    if method is None or method not in PACKAGES:  # transformers itself answers for the others
        return
    missing = [
        name
        for module, name in PACKAGES[method].items()
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise LoadError(
            f"its weights are quantised by {method}, which {' and '.join(missing)} "
            f"read{'s' if len(missing) == 1 else ''}: pip install {' '.join(missing)}, or take the plain "
            "weights"
        )


def check_gguf() -> None:
    """Raises LoadError where a package is missing with which transformers reads GGUF files."""
    missing = [m for m in ("gguf", "accelerate") if importlib.util.find_spec(m) is None]
    if missing:
        raise LoadError(
            "GGUF files are read with the packages gguf and accelerate: "
            f"pip install {' '.join(missing)}"
        )


def inexact(method: str, problem: str) -> LoadError:
    """The refusal of a quantised model whose adapter has a `problem`: formats that round activations too turn
    a difference in the last bit into one of a whole step."""
    return LoadError(
        f"its weights are quantised by {method}, and {problem}: drafts could change its text, as where "
        "activations are rounded too; take a form that rounds weights alone, or the plain weights with "
        "--quantize int8"
    )


def _missing_shard(folder: Path, index: Path) -> str | None:
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        lost = [shard for shard in shards if not (folder / shard).is_file()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"readable {index.name}"
    if not lost and shards:
        return None
    return f"{lost[0]}, which {index.name} names" if lost else f"weights: {index.name} names none"


def _ids(value: Any) -> Iterator[Any]:
    """The ids of a setting: one, several, or by name; of a pair of place and token, as forced tokens are
    given, the token."""
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _ids(item[1] if isinstance(item, list) and len(item) == 2 else item)
    elif value is not None:
        yield value


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _object(path: Path) -> dict[str, Any]:
    """A JSON file's object; empty where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
