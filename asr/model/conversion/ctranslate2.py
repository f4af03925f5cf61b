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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.speculative.models.checkpoint import missing

from ...errors import ModelError
from .converting import (
    Content,
    MappedFile,
    Settings,
    Source,
    check_text_tokens,
    convert_once,
    described,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Variables = Mapping[str, NDArray[Any]]

WEIGHTS = "model.bin"
VERSION = 6
SPEC = "WhisperSpec"
KINDS = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
LONGEST = 1 << 16
"""More names than this are a damaged file."""

TOKENIZER, CONFIG, FEATURES = "tokenizer.json", "config.json", "preprocessor_config.json"
"""What is read beside the weights; the last need not be there."""


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder holds CTranslate2 weights and no others."""
    return (folder / WEIGHTS).is_file() and missing(folder) == "weights"


def lacks(folder: Path) -> str | None:
    """What a folder lacks of a Whisper model in either form; None where nothing."""
    if is_ctranslate2(folder):
        return None if (folder / TOKENIZER).is_file() else TOKENIZER
    return missing(folder)


def usable(folder: Path) -> Path:
    """A folder that transformers can load: this one, or its conversion. Raises ModelError."""
    return converted(folder) if is_ctranslate2(folder) else folder


def converted(folder: Path) -> Path:
    """The conversion of a CTranslate2 folder; made once, again where one of its files has changed.

    Raises ModelError for weights that are damaged, not complete, rounded to integers, or not Whisper's; for a
    cache that cannot be written, see `convert_once`.
    """
    beside = tuple(folder / name for name in (TOKENIZER, CONFIG, FEATURES))
    source = Source(folder / WEIGHTS, folder.resolve().name, "CTranslate2", beside)
    return convert_once(source, partial(_read, folder))


def read_variables(path: Path) -> dict[str, NDArray[Any]]:
    """The variables of a `model.bin` by name, mapped from the file. Raises ValueError where it is damaged or
    of another version."""
    file = MappedFile(path)

    def text() -> str:
        return file.take(file.number("H"))[:-1].tobytes().decode()  # it ends with a zero byte

    version = file.number("I")
    if version != VERSION:
        raise ValueError(f"version {version} of the format; {VERSION} can be read")
    spec = text()
    if spec != SPEC:
        raise ValueError(f"it holds a {spec!r}")
    file.number("I")  # the revision of the specification
    variables: dict[str, NDArray[Any]] = {}
    for _ in range(file.count("I", LONGEST, "variables")):
        name = text()
        shape = [file.number("I") for _ in range(file.number("B"))]
        kind, size = file.number("B"), file.number("I")
        if kind not in KINDS:
            raise ValueError(f"{name} has the unknown number format {kind}")
        variables[name] = file.take(size).view(KINDS[kind]).reshape(shape)
    for _ in range(file.count("I", LONGEST, "other names")):
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
    settings = _settings(folder, len(state["model.decoder.embed_tokens.weight"]))
    files = described(state, settings)
    tokenizer = {
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
        "tokenizer_class": "WhisperTokenizer",
        "model_max_length": len(state["model.decoder.embed_positions.weight"]),
        "add_prefix_space": False,
        "errors": "replace",
    }
    files["tokenizer_config.json"] = json.dumps(tokenizer, indent=1).encode()
    for name in (TOKENIZER, FEATURES):
        if (folder / name).is_file():
            files[name] = (folder / name).read_bytes()
    return Content(state, files)


def _settings(folder: Path, size: int) -> Settings:
    """What the files beside the weights say of a model with `size` tokens. Raises ModelError for a file that
    is damaged, and for another model's tokenizer."""
    ours = _object(folder / CONFIG)
    try:
        added = _object(folder / TOKENIZER)["added_tokens"]
        tokens = {str(token["content"]): int(token["id"]) for token in added}
        end = tokens["<|endoftext|>"]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"its {TOKENIZER} is none of Whisper's (no {error})") from error
    check_text_tokens(size, end, f"its {TOKENIZER}")
    if max(tokens.values()) >= size:
        raise ModelError(
            f"its {TOKENIZER} has the token {max(tokens.values())}, its weights have {size} tokens: take the "
            "tokenizer of the same model"
        )
    return Settings(
        tokens,
        ours.get("suppress_ids"),
        ours.get("suppress_ids_begin"),
        ours.get("alignment_heads"),
    )


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError that names it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"the {path.name} beside it is damaged ({error})") from error
    if not isinstance(found, dict):
        raise ModelError(f"the {path.name} beside it holds no settings")
    return found
