"""Conversions: the weights and the settings of a Whisper model to a Hugging Face folder in the user's cache.

What all formats have in common: a conversion is made once for each state of its source, and is complete or
not there. Knows no format. Import is light.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.speculative.models.checkpoint import missing

from ...errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ENGLISH_ONLY = 51864
"""Tokens of the models that were trained for English alone; those for all languages have more."""


def cache_folder() -> Path:
    """Where conversions are kept: FORESCRIBE_CACHE, or `forescribe` in the user's cache."""
    own = os.environ.get("FORESCRIBE_CACHE")
    return Path(own) if own else user_cache() / "forescribe"


def user_cache() -> Path:
    """XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root) if os.path.isabs(root) else Path(os.path.expanduser("~/.cache"))


def place_of(weights: Path, name: str) -> Path:
    """The folder of a conversion, another one wherever the weights have changed. Raises OSError."""
    source = weights.resolve()
    found = source.stat()
    state = f"{source}\0{found.st_size}\0{found.st_mtime_ns}"
    return (
        cache_folder() / "converted" / f"{name}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    )


def convert_once(weights: Path, name: str, program: str, convert: Callable[[Path], None]) -> Path:
    """The conversion of a file of weights; `convert` writes it where it is not there yet.

    Raises ModelError for what cannot be read: every error of `convert` is the file's, `program`
    says whose Whisper models it could be.
    """
    made = place_of(weights, name)
    if missing(made) is None:
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=made.parent, prefix=".converting-"))
    try:
        try:
            convert(scratch)
        except ModelError as error:
            raise ModelError(f"{weights}: {error}") from error
        except OSError as error:
            raise ModelError(f"{weights} cannot be converted: {error}") from error
        except Exception as error:  # any part of a damaged file
            raise ModelError(
                f"{weights} is damaged, not complete, or no Whisper model of {program} "
                f"({type(error).__name__}: {' '.join(str(error).split())[:150]})"
            ) from error
        with suppress(OSError):  # another process was faster
            scratch.rename(made)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return made


class MappedFile:
    """A file of weights, read from its beginning without loading it: what is taken is mapped.

    All methods raise ValueError where the file ends too early.
    """

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.bytes: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        self.at = 0

    def take(self, size: int) -> NDArray[np.uint8]:
        """The next `size` bytes."""
        if not 0 <= size <= len(self.bytes) - self.at:
            raise ValueError(f"it ends after {len(self.bytes)} bytes, within {size} bytes of data")
        self.at += size
        return self.bytes[self.at - size : self.at]

    def number(self, kind: str) -> int:
        """The next number, in a format of `struct`, little-endian."""
        (value,) = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")).tobytes())
        return int(value)

    def count(self, kind: str, most: int, what: str) -> int:
        """The next number, of at most `most` things. Raises ValueError for more, or fewer than none."""
        found = self.number(kind)
        if not 0 <= found <= most:
            raise ValueError(f"it claims {found} {what}")
        return found

    @property
    def ended(self) -> bool:
        return self.at == len(self.bytes)


@dataclass(frozen=True)
class Settings:
    """What a model needs besides its weights: `tokens` are the ids of special tokens by name, `heads` the
    numbers of attention heads in the encoder and in the decoder. None: its files do not say."""

    tokens: Mapping[str, int]
    heads: tuple[int, int]
    suppress: Sequence[int] | None = None
    begin_suppress: Sequence[int] | None = None
    alignment_heads: Sequence[Sequence[int]] | None = None


def write_model(out: Path, state: Mapping[str, Tensor], settings: Settings) -> None:
    """Write weights, by the names of `WhisperForConditionalGeneration`, and the files that describe them;
    the tokenizer's files are the caller's."""
    from safetensors.torch import save_file
    from transformers import WhisperFeatureExtractor

    save_file(dict(state), out / "model.safetensors", metadata={"format": "pt"})
    bands = state["model.encoder.conv1.weight"].shape[1]
    WhisperFeatureExtractor(feature_size=bands).save_pretrained(out)
    for name, content in (
        ("config.json", _config(state, settings)),
        ("generation_config.json", _generation_config(state, settings)),
    ):
        (out / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _config(state: Mapping[str, Tensor], settings: Settings) -> dict[str, Any]:
    conv = state["model.encoder.conv1.weight"]
    end = settings.tokens["<|endoftext|>"]
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": len(state["model.decoder.embed_tokens.weight"]),
        "num_mel_bins": conv.shape[1],
        "d_model": conv.shape[0],
        "max_source_positions": len(state["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(state["model.decoder.embed_positions.weight"]),
        "decoder_start_token_id": settings.tokens["<|startoftranscript|>"],
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "begin_suppress_tokens": settings.begin_suppress,
        "dtype": str(conv.dtype).removeprefix("torch."),
    }
    for side, heads in zip(("encoder", "decoder"), settings.heads, strict=True):
        prefix = f"model.{side}.layers."
        layers = {
            name.removeprefix(prefix).split(".")[0] for name in state if name.startswith(prefix)
        }
        config[f"{side}_layers"] = len(layers)
        config[f"{side}_attention_heads"] = heads
        config[f"{side}_ffn_dim"] = len(state[f"{prefix}0.fc1.weight"])
    return config


def _generation_config(state: Mapping[str, Tensor], settings: Settings) -> dict[str, Any]:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

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
