"""CTranslate2 folders, as faster-whisper uses them, to ordinary Hugging Face folders.

    folder = converted(Path("~/models/faster-whisper-base"))   # in the user's cache, once

The numbers are copied as they are (float32, float16); only names, the joined projections of attention and
the files around them change. Nothing of the folder is executed. Weights that were rounded to integers are
refused: their scales belong to CTranslate2's kernels, and the words would be other ones than it writes.

Format: OpenNMT/CTranslate2, `python/ctranslate2/specs/model_spec.py` (binary version 6) and
`specs/whisper_spec.py`. Import is light.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from .converting import FEATURES, TOKENIZER, Content, Settings, convert_once, token_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Variables = Mapping[str, NDArray[Any]]

WEIGHTS, CONFIG = "model.bin", "config.json"
VERSION = 6
SPEC = "WhisperSpec"
KINDS = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}


def lacks(folder: Path) -> str | None:
    """What a folder without other weights lacks; None where nothing."""
    if not (folder / WEIGHTS).is_file():
        return "weights"
    return None if (folder / TOKENIZER).is_file() else TOKENIZER


def converted(folder: Path) -> Path:
    """The conversion of a folder, made once and again where one of its files has changed. Raises ModelError,
    also for weights that are rounded to integers; see `convert_once`."""
    beside = [folder / name for name in (TOKENIZER, CONFIG, FEATURES)]
    name = folder.resolve().name
    return convert_once(folder / WEIGHTS, name, beside, partial(_read, folder))


def read_variables(path: Path) -> dict[str, NDArray[Any]]:
    """The variables of a `model.bin` by name, mapped from the file. Raises ValueError where it is damaged or
    of another version."""
    import numpy as np

    data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    at = 0

    def take(size: int) -> NDArray[np.uint8]:
        nonlocal at
        at += size
        if at > len(data):
            raise ValueError(f"it ends after {len(data)} bytes, within {size} bytes of data")
        return data[at - size : at]

    def number(kind: str) -> int:
        """The next number, in a format of `struct`, little-endian."""
        return int(struct.unpack(f"<{kind}", take(struct.calcsize(f"<{kind}")).tobytes())[0])

    def text() -> str:
        return take(number("H"))[:-1].tobytes().decode()  # it ends with a zero byte

    version, spec = number("I"), text()
    if (version, spec) != (VERSION, SPEC):
        raise ValueError(f"it holds a {spec!r:.80} of version {version}, not {SPEC} of {VERSION}")
    number("I")  # the revision of the specification
    variables: dict[str, NDArray[Any]] = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        if kind not in KINDS:
            raise ValueError(f"{name} has the unknown number format {kind}")
        variables[name] = take(size).view(KINDS[kind]).reshape(shape)
    for _ in range(number("I")):
        alias = text()
        variables[alias] = variables[text()]
    return variables


def state_of(variables: Variables) -> dict[str, NDArray[Any]]:
    """Weights by the names of `WhisperForConditionalGeneration`. Raises KeyError for a missing one and
    ModelError for integers."""
    state: dict[str, NDArray[Any]] = {}

    def take(name: str) -> NDArray[Any]:
        values = variables[name]
        if values.dtype.kind != "f":
            raise ModelError(
                f"the weights are rounded to {8 * values.dtype.itemsize}-bit integers ({name}); take a "
                "folder in float16 or float32, and --quantize int8 if they are to be rounded"
            )
        return values

    def norm(there: str, here: str) -> None:
        state[f"{here}.weight"], state[f"{here}.bias"] = (
            take(f"{there}/gamma"),
            take(f"{there}/beta"),
        )

    def linear(there: str, *here: str) -> None:
        """One projection, or several that were joined along their outputs."""
        weight, bias = take(f"{there}/weight"), take(f"{there}/bias")
        rows = len(weight) // len(here)
        for i, name in enumerate(here):
            state[f"{name}.weight"] = weight[i * rows : (i + 1) * rows]
            if not name.endswith("k_proj"):  # Whisper's keys have no bias: zeros were joined
                state[f"{name}.bias"] = bias[i * rows : (i + 1) * rows]

    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_positions.weight"] = take(f"{side}/position_encodings/encodings")
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for i in range(_layers(variables, side)):
            there, here = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            norm(f"{there}/self_attention/layer_norm", f"{here}.self_attn_layer_norm")
            own = [f"{here}.self_attn.{part}_proj" for part in "qkv"]
            linear(f"{there}/self_attention/linear_0", *own)
            linear(f"{there}/self_attention/linear_1", f"{here}.self_attn.out_proj")
            if side == "decoder":
                norm(f"{there}/attention/layer_norm", f"{here}.encoder_attn_layer_norm")
                linear(f"{there}/attention/linear_0", f"{here}.encoder_attn.q_proj")
                both = [f"{here}.encoder_attn.{part}_proj" for part in "kv"]
                linear(f"{there}/attention/linear_1", *both)
                linear(f"{there}/attention/linear_2", f"{here}.encoder_attn.out_proj")
            norm(f"{there}/ffn/layer_norm", f"{here}.final_layer_norm")
            linear(f"{there}/ffn/linear_0", f"{here}.fc1")
            linear(f"{there}/ffn/linear_1", f"{here}.fc2")
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            state[f"model.encoder.{conv}.{part}"] = take(f"encoder/{conv}/{part}")
    state["model.decoder.embed_tokens.weight"] = take("decoder/embeddings/weight")
    return state


def _layers(variables: Variables, side: str) -> int:
    parts = (name.split("/") for name in variables if name.startswith(f"{side}/layer_"))
    return len({part[1] for part in parts if part[1].removeprefix("layer_").isdigit()})


def _read(folder: Path) -> Content:
    """The content of a CTranslate2 folder, under Hugging Face's names."""
    import torch

    state = {
        name: torch.from_numpy(values.copy())
        for name, values in state_of(read_variables(folder / WEIGHTS)).items()
    }
    tokens = token_ids(folder / TOKENIZER, len(state["model.decoder.embed_tokens.weight"]))
    try:
        ours = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        stated = [ours.get(k) for k in ("suppress_ids", "suppress_ids_begin", "alignment_heads")]
    except (ValueError, AttributeError) as error:
        raise ModelError(f"the {CONFIG} beside it is damaged ({error})") from error
    found = (folder / name for name in (TOKENIZER, FEATURES))
    files = {path.name: path.read_bytes() for path in found if path.is_file()}
    return Content(state, Settings(tokens, *stated), files)
