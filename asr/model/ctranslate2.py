"""CTranslate2 folders, as faster-whisper uses them, to ordinary Hugging Face folders.

    folder = converted(Path("~/models/faster-whisper-base"))   # in the user's cache, once

The numbers are copied as they are (float32, float16); only names, the joined projections of attention and
the files around them change. Nothing of the folder is executed. Weights that were rounded to integers are
refused: their scales belong to CTranslate2's kernels, and the words would be other ones than it writes.

Format: OpenNMT/CTranslate2, `python/ctranslate2/specs/model_spec.py` (binary version 6) and
`specs/whisper_spec.py`. Import is light.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.speculative.models.checkpoint_files import missing

from ..errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Variables = Mapping[str, NDArray[Any]]

WEIGHTS = "model.bin"
VERSION = 6
SPEC = "WhisperSpec"
KINDS = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
LONGEST = 1 << 16
"""More names than this are a damaged file."""

HEAD = 64
"""Width of an attention head in all of Whisper's sizes."""


def is_ctranslate2(folder: Path) -> bool:
    """Whether a folder holds CTranslate2 weights and no others."""
    return (folder / WEIGHTS).is_file() and missing(folder) == "weights"


def lacks(folder: Path) -> str | None:
    """What a folder lacks of a Whisper model in either form; None where nothing."""
    if is_ctranslate2(folder):
        return None if (folder / "tokenizer.json").is_file() else "tokenizer.json"
    return missing(folder)


def usable(folder: Path) -> Path:
    """A folder that transformers can load: this one, or its conversion. Raises ModelError."""
    return converted(folder) if is_ctranslate2(folder) else folder


def cache_folder() -> Path:
    """Where conversions are kept: FORESCRIBE_CACHE, or `forescribe` in the user's cache."""
    own = os.environ.get("FORESCRIBE_CACHE")
    if own:
        return Path(own)
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (
        Path(root) if os.path.isabs(root) else Path(os.path.expanduser("~/.cache"))
    ) / "forescribe"


def converted(folder: Path) -> Path:
    """The conversion of a CTranslate2 folder; made once, again where the weights have changed.

    Raises ModelError for weights that are damaged, not complete, rounded to integers, or not Whisper's.
    """
    source = (folder / WEIGHTS).resolve()
    found = source.stat()
    key = hashlib.sha256(f"{source}\0{found.st_size}\0{found.st_mtime_ns}".encode()).hexdigest()[
        :16
    ]
    made = cache_folder() / "converted" / f"{folder.resolve().name}-{key}"
    if missing(made) is None:
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=made.parent, prefix=".converting-"))
    try:
        try:
            _convert(folder, scratch)
        except ModelError:
            raise
        except OSError as error:
            raise ModelError(f"{folder} cannot be converted: {error}") from error
        except Exception as error:  # any part of a damaged file
            raise ModelError(
                f"{folder}: {WEIGHTS} is damaged, not complete, or no Whisper model of CTranslate2 "
                f"({type(error).__name__}: {' '.join(str(error).split())[:150]})"
            ) from error
        with suppress(OSError):  # another process was faster
            scratch.rename(made)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return made


def read_variables(path: Path) -> dict[str, NDArray[Any]]:
    """The variables of a `model.bin` by name, mapped from the file. Raises ValueError and struct.error
    where it is damaged or of another version."""
    import numpy as np

    data = np.memmap(path, np.uint8, "r")
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if at + size > len(data):
            raise ValueError(f"it ends after {len(data)} bytes")
        part = bytes(data[at : at + size])
        at += size
        return part

    def number(kind: str) -> int:
        (value,) = struct.unpack("<" + kind, take(struct.calcsize("<" + kind)))
        return int(value)

    def text() -> str:
        return take(number("H"))[:-1].decode()  # it ends with a zero byte

    version = number("I")
    if version != VERSION:
        raise ValueError(f"version {version} of the format; {VERSION} can be read")
    spec = text()
    if spec != SPEC:
        raise ValueError(f"it holds a {spec!r}")
    number("I")  # the revision of the specification
    variables: dict[str, np.ndarray[Any, Any]] = {}
    for _ in range(_count(number("I"))):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = number("B"), number("I")
        if kind not in KINDS:
            raise ValueError(f"{name} has the unknown number format {kind}")
        if at + size > len(data):
            raise ValueError(f"it ends after {len(data)} bytes, within {name}")
        variables[name] = data[at : at + size].view(KINDS[kind]).reshape(shape)
        at += size
    for _ in range(_count(number("I"))):
        alias = text()
        variables[alias] = variables[text()]
    return variables


def _count(number: int) -> int:
    if number > LONGEST:
        raise ValueError(f"it claims {number} variables")
    return number


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


def _convert(folder: Path, out: Path) -> None:
    """Write the Hugging Face folder of a CTranslate2 folder."""
    import torch
    from safetensors.torch import save_file

    variables = read_variables(folder / WEIGHTS)
    try:
        state = state_of(variables)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error
    tensors = {name: torch.from_numpy(values.copy()) for name, values in state.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    tokens = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in tokens["added_tokens"]}
    ours = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    files = {
        "config.json": _config(state, added, ours),
        "generation_config.json": _generation_config(state, added, ours),
        "tokenizer_config.json": {
            **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
            "tokenizer_class": "WhisperTokenizer",
            "model_max_length": len(state["model.decoder.embed_positions.weight"]),
            "add_prefix_space": False,
            "errors": "replace",
        },
    }
    shutil.copyfile(folder / "tokenizer.json", out / "tokenizer.json")
    if (folder / "preprocessor_config.json").is_file():
        shutil.copyfile(folder / "preprocessor_config.json", out / "preprocessor_config.json")
    else:
        from transformers import WhisperFeatureExtractor

        bands = state["model.encoder.conv1.weight"].shape[1]
        WhisperFeatureExtractor(feature_size=bands).save_pretrained(out)
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _config(state: Variables, added: Mapping[str, int], ours: Mapping[str, Any]) -> dict[str, Any]:
    width, bands = state["model.encoder.conv1.weight"].shape[:2]
    vocabulary = len(state["model.decoder.embed_tokens.weight"])
    end = added["<|endoftext|>"]
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": vocabulary,
        "num_mel_bins": bands,
        "d_model": width,
        "max_source_positions": len(state["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(state["model.decoder.embed_positions.weight"]),
        "decoder_start_token_id": added["<|startoftranscript|>"],
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "begin_suppress_tokens": ours.get("suppress_ids_begin"),
        "dtype": "float16"
        if state["model.encoder.conv1.weight"].dtype.itemsize == 2
        else "float32",
    }
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers."
        layers = {
            name.removeprefix(prefix).split(".")[0] for name in state if name.startswith(prefix)
        }
        config[f"{side}_layers"] = len(layers)
        config[f"{side}_attention_heads"] = width // HEAD
        config[f"{side}_ffn_dim"] = len(state[f"{prefix}0.fc1.weight"])
    return config


def _generation_config(
    state: Variables, added: Mapping[str, int], ours: Mapping[str, Any]
) -> dict[str, Any]:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    end = added["<|endoftext|>"]
    languages = {f"<|{c}|>": added[f"<|{c}|>"] for c in LANGUAGES if f"<|{c}|>" in added}
    # English-only models have one special token less, and only the places of the languages.
    multilingual = len(state["model.decoder.embed_tokens.weight"]) >= 51865
    generation: dict[str, Any] = {
        "alignment_heads": ours.get("alignment_heads"),
        "suppress_tokens": ours.get("suppress_ids"),
        "begin_suppress_tokens": ours.get("suppress_ids_begin"),
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": added["<|startoftranscript|>"],
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": len(state["model.decoder.embed_positions.weight"]),
        "no_timestamps_token_id": added["<|notimestamps|>"],
        "prev_sot_token_id": added["<|startofprev|>"],
    }
    if multilingual:
        generation["lang_to_id"] = languages
        tasks = ("transcribe", "translate")
        generation["task_to_id"] = {task: added[f"<|{task}|>"] for task in tasks}
    return {key: value for key, value in generation.items() if value is not None}
