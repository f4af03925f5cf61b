"""Conversions: weights of another program to a Hugging Face folder in the user's cache, made once.

A conversion has the name and the state of the files that it was made of, and is renamed into its place when
it is complete. Errors of reading are the file's, errors of writing the cache's. Knows Whisper's
configuration, and no format. Import is light.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.speculative.errors import one_line

from ...errors import CapacityError, ModelError, out_of_memory
from ..languages import LANGUAGES
from ..tokens import ENGLISH_ONLY

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 3
"""Increased when the conversions of older versions must be made again."""

ORIGIN = ".conversion"
"""The file that says what a conversion was made of. Fingerprints of weights do not include it, as its name
has no suffix."""

SCRATCH, DAY_S = ".converting-", 86400.0
HEAD = 64
"""Width of an attention head in all of Whisper's sizes."""

TEXT_TOKENS = {ENGLISH_ONLY: 50256, 51865: 50257, 51866: 50257}
"""Text tokens by the tokens in all, in OpenAI's models."""

TOKENIZER, FEATURES = "tokenizer.json", "preprocessor_config.json"


def cache_folder() -> Path:
    """Where conversions are kept: FORESCRIBE_CACHE, or `forescribe` in the user's cache."""
    own = os.environ.get("FORESCRIBE_CACHE")
    return Path(own) if own else user_cache() / "forescribe"


def user_cache() -> Path:
    """XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root) if os.path.isabs(root) else Path(os.path.expanduser("~/.cache"))


@dataclass(frozen=True)
class Settings:
    """What a model needs besides its weights: `tokens` are the ids of special tokens by name. None: its files
    do not say."""

    tokens: Mapping[str, int]
    suppress: Sequence[int] | None = None
    begin_suppress: Sequence[int] | None = None
    alignment_heads: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True)
class Content:
    """What a conversion writes: weights by the names of `WhisperForConditionalGeneration`, and files."""

    state: Mapping[str, Tensor]
    settings: Settings
    files: Mapping[str, bytes]


def convert_once(
    weights: Path, name: str, beside: Sequence[Path], read: Callable[[], Content]
) -> Path:
    """The folder of `weights`, which `read` reads where it is not there yet; again where they, or the files
    that are read `beside` them, have changed.

    Raises ModelError for what cannot be read and, as `unwritable_output` or `storage_full`, for a cache that
    cannot be written; CapacityError where memory runs out.
    """
    digest = hashlib.sha256(os.fsencode(f"{VERSION}\0{name}"))
    for path in (weights, *beside):
        found = path.stat() if path.is_file() else None
        state = found and (found.st_size, found.st_mtime_ns)
        digest.update(os.fsencode(f"\0{os.path.realpath(path)}\0{state}"))
    made = cache_folder() / "converted" / f"{name[:30]}-{digest.hexdigest()[:16]}"
    try:
        if made.is_dir():
            return made
        made.parent.mkdir(parents=True, exist_ok=True)
        for left in made.parent.glob(f"{SCRATCH}*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > DAY_S:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=made.parent, prefix=SCRATCH) as scratch:
            content, out = _read(weights, read), Path(scratch, "made")
            _write(out, content, weights)
            try:
                out.rename(made)
            except OSError:
                if not made.is_dir():  # else another process was faster
                    raise
    except (ModelError, CapacityError):
        raise
    except Exception as error:  # safetensors has a class of its own for a full disk
        number = _errno(error)
        if number is None:
            raise ModelError(
                f"{weights} cannot be converted ({type(error).__name__}: {one_line(error)})"
            ) from error
        full = number in (errno.ENOSPC, errno.EDQUOT)
        raise ModelError(
            f"{weights}: its conversion cannot be written to {made.parent}: {os.strerror(number)}; "
            f"{'free some space, or ' if full else ''}name another folder with FORESCRIBE_CACHE",
            code="storage_full" if full else "unwritable_output",
        ) from error
    return made


def origin(folder: Path) -> str:
    """A folder of weights for messages: of a conversion, also the file that it was made from, which is the
    one that a user knows."""
    with suppress(OSError):
        return f"{(folder / ORIGIN).read_text(encoding='utf-8')} (converted to {folder})"
    return str(folder)


def _read(weights: Path, read: Callable[[], Content]) -> Content:
    try:
        return read()
    except ModelError as error:
        raise ModelError(f"{weights}: {error}") from error
    except OSError as error:
        raise ModelError(f"{weights} cannot be read: {error}") from error
    except Exception as error:  # any part of a damaged file
        if out_of_memory(error):
            raise CapacityError(f"{weights}: there is not enough memory to convert it") from error
        raise ModelError(
            f"{weights} is damaged, not complete, or no Whisper model "
            f"({type(error).__name__}: {one_line(error)})"
        ) from error


def _errno(error: Exception) -> int | None:
    """The system's number of an error; libraries in Rust put it into their text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _write(out: Path, content: Content, weights: Path) -> None:
    from safetensors.torch import save_file

    state, settings = content.state, content.settings
    out.mkdir()
    save_file(dict(state), out / "model.safetensors", metadata={"format": "pt"})
    bands = state["model.encoder.conv1.weight"].shape[1]
    described = {
        "config.json": _config(state, settings),
        "generation_config.json": _generation_config(state, settings),
        "tokenizer_config.json": _tokenizer_config(state),
        FEATURES: {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": bands},
    }
    for name, found in described.items():
        (out / name).write_text(json.dumps(found, indent=1), encoding="utf-8")
    for name, data in content.files.items():
        (out / name).write_bytes(data)
    (out / ORIGIN).write_text(os.path.abspath(weights), encoding="utf-8")


def token_ids(tokenizer: Path, size: int) -> dict[str, int]:
    """The ids of the special tokens by name, of a tokenizer.json for a model with `size` tokens. Raises
    ModelError for a file that is damaged, and for another model's."""
    try:
        added = json.loads(tokenizer.read_text(encoding="utf-8"))["added_tokens"]
        tokens = {str(token["content"]): int(token["id"]) for token in added}
        end = tokens["<|endoftext|>"]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{tokenizer.name} is damaged, or none of Whisper's ({one_line(error)})"
        ) from error
    wanted = TEXT_TOKENS.get(size, end)
    if end != wanted or max(tokens.values()) >= size:  # all special tokens would mean others
        raise ModelError(
            f"{tokenizer.name} is another model's: it has {end} text tokens and the token "
            f"{max(tokens.values())}, and {size} tokens have {wanted} of text"
        )
    return tokens


def _config(state: Mapping[str, Tensor], settings: Settings) -> dict[str, Any]:
    conv, end = state["model.encoder.conv1.weight"], settings.tokens["<|endoftext|>"]
    width = conv.shape[0]
    if width % HEAD or width < HEAD:
        raise ModelError(f"its states have {width} numbers, which is no multiple of {HEAD}")
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": len(state["model.decoder.embed_tokens.weight"]),
        "num_mel_bins": conv.shape[1],
        "d_model": width,
        "max_source_positions": len(state["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(state["model.decoder.embed_positions.weight"]),
        "decoder_start_token_id": settings.tokens["<|startoftranscript|>"],
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "begin_suppress_tokens": settings.begin_suppress,
        "dtype": str(conv.dtype).removeprefix("torch."),
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


def _generation_config(state: Mapping[str, Tensor], settings: Settings) -> dict[str, Any]:
    ids = settings.tokens
    end = ids["<|endoftext|>"]
    # English-only models have the places of languages and tasks too, but have never read them.
    multilingual = len(state["model.decoder.embed_tokens.weight"]) != ENGLISH_ONLY
    generation: dict[str, Any] = {
        "alignment_heads": settings.alignment_heads,
        "suppress_tokens": settings.suppress,
        "begin_suppress_tokens": settings.begin_suppress,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": len(state["model.decoder.embed_positions.weight"]),
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
    }
    if multilingual:
        codes = [f"<|{code}|>" for code in LANGUAGES]
        generation["lang_to_id"] = {code: ids[code] for code in codes if code in ids}
        generation["task_to_id"] = {t: ids[f"<|{t}|>"] for t in ("transcribe", "translate")}
    return {key: value for key, value in generation.items() if value is not None}


def _tokenizer_config(state: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
        "tokenizer_class": "WhisperTokenizer",
        "model_max_length": len(state["model.decoder.embed_positions.weight"]),
        "add_prefix_space": False,
        "errors": "replace",
    }
