"""Conversions: the weights and the settings of a Whisper model to a Hugging Face folder in the user's cache.

What all formats have in common: a conversion is made once for each state of the files that it reads, and is
complete or not there. Reading and writing are apart, as errors of the first are the file's and errors of the
second the cache's. Knows no format. Import is light.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescribe.speculative.errors import one_line

from ...errors import CapacityError, ModelError, out_of_memory
from ..languages import LANGUAGES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

VERSION = 2
"""Increased when the conversions of older versions must be made again."""

RECORD = ".conversion"
"""The last file that is written: the source, and the sizes of the other files. Fingerprints of weights do
not include it, as its name has no suffix."""

SCRATCH, LOCK = ".converting-", "lock"
"""How the folders of conversions that are being made begin, and the file in each that its process locks."""

GRACE_S, DAY_S = 10.0, 86400.0
NAME_BYTES = 100
"""Of the name of a conversion's folder, before its hash: file systems allow 255 in all, some 143."""

HEAD = 64
"""Width of an attention head in all of Whisper's sizes."""

ENGLISH_ONLY = 51864
"""Tokens of the models that were trained for English alone; those for all languages have more."""

TEXT_TOKENS = {ENGLISH_ONLY: 50256, 51865: 50257, 51866: 50257}
"""Text tokens by the tokens in all, in OpenAI's models."""


def cache_folder() -> Path:
    """Where conversions are kept: FORESCRIBE_CACHE, or `forescribe` in the user's cache."""
    own = os.environ.get("FORESCRIBE_CACHE")
    return Path(own) if own else user_cache() / "forescribe"


def user_cache() -> Path:
    """XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root) if os.path.isabs(root) else Path(os.path.expanduser("~/.cache"))


@dataclass(frozen=True)
class Source:
    """A file of weights to convert. `program` says whose Whisper models it could be, `beside` which other
    files are read where they are there."""

    weights: Path
    name: str
    program: str
    beside: tuple[Path, ...] = ()

    @property
    def place(self) -> Path:
        """The folder of its conversion, another one wherever one of the files has changed."""
        digest = hashlib.sha256(os.fsencode(f"{VERSION}\0{self.name}"))
        for path in (self.weights, *self.beside):
            digest.update(os.fsencode(f"\0{os.path.realpath(path)}\0{state_of(path)}"))
        short = self.name.encode(errors="ignore")[:NAME_BYTES].decode(errors="ignore")
        return cache_folder() / "converted" / f"{short}-{digest.hexdigest()[:16]}"


def state_of(path: Path) -> list[int] | None:
    """What changes with a file's content; None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns] if stat.S_ISREG(found.st_mode) else None


@dataclass(frozen=True)
class Content:
    """What a conversion writes: weights by the names of `WhisperForConditionalGeneration`, files by name, and
    a tokenizer that writes its own. `read` are files elsewhere that it was made of, besides the source."""

    state: Mapping[str, Tensor]
    files: Mapping[str, bytes]
    tokenizer: Any = None
    read: tuple[Path, ...] = ()


def convert_once(source: Source, read: Callable[[], Content]) -> Path:
    """The conversion of a source, which `read` reads where it is not there yet, or not complete.

    Raises ModelError for what cannot be read (every error of `read` is the file's) and, as
    `unwritable_output` or `storage_full`, for a cache that cannot be written; CapacityError where memory runs
    out.
    """
    made = source.place
    if complete(made):
        return made
    with _errors_of_the_cache(source, made.parent), _scratch(made.parent) as scratch:
        content = _read(source, read)
        _write(scratch / "made", content, source)
        _put(scratch / "made", made, scratch / "broken")
    return made


def complete(folder: Path) -> bool:
    """Whether a conversion is as it was written, and of what its other files hold now. Those that are gone
    do not count: a tokenizer may be uninstalled."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        sizes = all((folder / name).stat().st_size == n for name, n in record["files"].items())
        return sizes and all(
            state_of(Path(p)) in (None, state) for p, state in record["read"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def origin(folder: Path) -> str:
    """A folder of weights for messages: of a conversion, also the file that it was made from, which is the
    one that a user knows."""
    try:
        source = json.loads((folder / RECORD).read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return str(folder)
    return f"{source} (converted to {folder})"


def _read(source: Source, read: Callable[[], Content]) -> Content:
    weights = source.weights
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
            f"{weights} is damaged, not complete, or no Whisper model of {source.program} "
            f"({type(error).__name__}: {one_line(error)})"
        ) from error


@contextmanager
def _errors_of_the_cache(source: Source, folder: Path) -> Iterator[None]:
    """Raises what goes wrong while a conversion is written as ModelError."""
    try:
        yield
    except (ModelError, CapacityError):
        raise
    except Exception as error:  # safetensors and tokenizers have their own classes for a full disk
        number = _errno(error)
        if number is None:
            raise ModelError(
                f"{source.weights} cannot be converted ({type(error).__name__}: {one_line(error)})"
            ) from error
        full = number in (errno.ENOSPC, errno.EDQUOT)
        raise ModelError(
            f"{source.weights}: its conversion cannot be written to {folder}: {os.strerror(number)}; "
            f"{'free some space, or ' if full else ''}name another folder with FORESCRIBE_CACHE",
            code="storage_full" if full else "unwritable_output",
        ) from error


def _errno(error: Exception) -> int | None:
    """The system's number of an error; libraries in Rust put it into their text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder of this conversion's own, locked as long as its process lives. Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=SCRATCH))
    try:
        with (folder / LOCK).open("wb") as lock:
            with suppress(OSError):  # a file system without locks: nobody else can take it either
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove what killed conversions have left: the locks of their processes are free."""
    for folder in parent.glob(f"{SCRATCH}*"):
        with suppress(OSError):
            age = time.time() - folder.stat().st_mtime
            if age < GRACE_S:  # its process may be about to lock it
                continue
            if (folder / LOCK).exists():
                with (folder / LOCK).open("r+b") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            elif age < DAY_S:  # of a version without locks
                continue
            shutil.rmtree(folder, ignore_errors=True)


def _write(out: Path, content: Content, source: Source) -> None:
    from safetensors.torch import save_file

    out.mkdir()
    save_file(dict(content.state), out / "model.safetensors", metadata={"format": "pt"})
    for name, data in content.files.items():
        (out / name).write_bytes(data)
    if content.tokenizer is not None:
        content.tokenizer.save_pretrained(out)
    record = {
        "source": os.path.abspath(source.weights),
        "read": {os.path.abspath(path): state_of(path) for path in content.read},
        "files": {path.name: path.stat().st_size for path in out.iterdir()},
    }
    (out / RECORD).write_text(json.dumps(record), encoding="utf-8")


def _put(new: Path, place: Path, aside: Path) -> None:
    """Rename a conversion to its place, and what is broken there to another one. Raises OSError."""
    if not complete(place):
        with suppress(FileNotFoundError):
            place.rename(aside)
    try:
        new.rename(place)
    except OSError:
        if not complete(place):  # no other process was faster
            raise


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
    """What a model needs besides its weights: `tokens` are the ids of special tokens by name. None: its files
    do not say."""

    tokens: Mapping[str, int]
    suppress: Sequence[int] | None = None
    begin_suppress: Sequence[int] | None = None
    alignment_heads: Sequence[Sequence[int]] | None = None


def described(state: Mapping[str, Tensor], settings: Settings) -> dict[str, bytes]:
    """The files that describe weights, but for the tokenizer's. Raises ModelError for weights that are not
    finite, ValueError and KeyError for those that cannot be Whisper's."""
    from transformers import WhisperFeatureExtractor

    check_finite(state)
    bands = state["model.encoder.conv1.weight"].shape[1]
    return {
        "preprocessor_config.json": WhisperFeatureExtractor(feature_size=bands)
        .to_json_string()
        .encode(),
        "config.json": json.dumps(_config(state, settings), indent=1).encode(),
        "generation_config.json": json.dumps(
            _generation_config(state, settings), indent=1
        ).encode(),
    }


def check_finite(state: Mapping[str, Tensor]) -> None:
    """Raises ModelError for a tensor with NaN or infinity, of which all words would be made."""
    for name, tensor in state.items():
        # Formats of 8 bits have no operations of their own.
        values = tensor.float() if tensor.element_size() == 1 else tensor
        if not values.isfinite().all():
            raise ModelError(
                f"its tensor {name} holds numbers that are not finite: the file is damaged, or its training "
                "has failed"
            )


def heads_of(width: int) -> int:
    """Attention heads of states of this width. Raises ValueError for a width that Whisper cannot have."""
    if width % HEAD or width < HEAD:
        raise ValueError(f"its states have {width} numbers, which is no multiple of {HEAD}")
    return width // HEAD


def check_text_tokens(size: int, found: int, where: str) -> None:
    """Raises ModelError where a tokenizer has another number of text tokens than a vocabulary of `size`
    tokens: all special tokens would mean others."""
    wanted = TEXT_TOKENS.get(size, found)
    if found != wanted:
        raise ModelError(
            f"{where} has {found} text tokens, but a vocabulary of {size} tokens has {wanted}: they are "
            "another model's"
        )


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
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers."
        layers = {
            name.removeprefix(prefix).split(".")[0] for name in state if name.startswith(prefix)
        }
        config[f"{side}_layers"] = len(layers)
        config[f"{side}_attention_heads"] = heads_of(conv.shape[0])
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
