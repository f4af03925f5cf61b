"""Models that other programs have left on this machine: where openai-whisper, whisper.cpp and faster-whisper
keep them, and what is known of each without loading it.

Reads the heads of files only. Knows nothing of presets. Import is light: neither torch nor transformers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from forescribe.speculative.models.checkpoint import missing, shapes_in

from .converting import MappedFile, cache_folder, user_cache
from .ctranslate2 import WEIGHTS, is_ctranslate2, read_variables
from .openai_formats import published, read_dimensions

T = TypeVar("T")

FILE_NAME = re.compile(r"(ggml-[^/\\]+\.bin|[^/\\]+\.pt)")
"""Names that are looked for in the folders of other programs: they end as no preset and no hub id does."""


def openai_folders() -> list[Path]:
    """Where openai-whisper keeps its `.pt` files."""
    return [user_cache() / "whisper"]


def ggml_folders() -> list[Path]:
    """Where whisper.cpp and its bindings keep their `ggml-*.bin` files, and the hub's cache of them."""
    home = Path(os.path.expanduser("~"))
    hub = sorted((_hub() / "models--ggerganov--whisper.cpp" / "snapshots").glob("*"))
    return [
        Path("models"),
        home / "whisper.cpp" / "models",
        user_cache() / "whisper.cpp",
        home / ".local" / "share" / "pywhispercpp" / "models",
        *hub,
    ]


def find_file(name: str) -> Path | None:
    """The file of this name in the folder of the program that uses such names; None where there is none."""
    if not FILE_NAME.fullmatch(name):
        return None
    folders = openai_folders() if name.endswith(".pt") else ggml_folders()
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def copies(hub_id: str) -> list[str]:
    """The names, as --model takes them, under which other programs keep one of OpenAI's or a distilled model
    (openai/whisper `__init__.py`, whisper.cpp `models/README.md`, faster-whisper 1.2 `utils.py`)."""
    if hub_id.startswith("distil-whisper/distil-"):
        return [f"Systran/faster-distil-whisper-{hub_id.removeprefix('distil-whisper/distil-')}"]
    name = hub_id.removeprefix("openai/whisper-")
    if name == hub_id:
        return []
    name = "large-v1" if name == "large" else name
    owner = "mobiuslabsgmbh" if name == "large-v3-turbo" else "Systran"
    return [f"{name}.pt", f"ggml-{name}.bin", f"{owner}/faster-whisper-{name}"]


def other_copies(hub_id: str) -> list[str]:
    """The `copies` that are on this machine: never taken in place of the model without being asked for."""

    def there(name: str) -> bool:
        if "/" in name:
            return bool(_snapshots(_hub() / f"models--{name.replace('/', '--')}"))
        return find_file(name) is not None

    return [name for name in copies(hub_id) if there(name)]


@dataclass(frozen=True)
class Found:
    """A model on this machine. `name` is what --model takes. `parameters`, `memory_bytes` (the weights in
    float32, without activations and caches) and `licence` are None where its files do not say."""

    name: str
    program: str
    path: str
    size_bytes: int
    parameters: int | None
    licence: str | None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.parameters is None else 4 * self.parameters

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "memory_bytes": self.memory_bytes}


def machine() -> list[Found]:
    """The Whisper models in the caches of this machine. What cannot be read is left out."""
    found = [*_in_hub(), *_single_files(), *_conversions()]
    return sorted(found, key=lambda model: (model.program, model.name))


def _hub() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _snapshots(repository: Path) -> list[Path]:
    """The snapshots of a repository in the hub's cache, the newest last."""
    return sorted((repository / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)


def _in_hub() -> Iterator[Found]:
    for repository in sorted(_hub().glob("models--*--*")):
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        for folder in _snapshots(repository)[-1:]:
            if is_ctranslate2(folder) or _is_whisper(folder):
                yield describe(name, folder)


def _single_files() -> Iterator[Found]:
    for program, folders, pattern in (
        ("openai-whisper", openai_folders(), "*.pt"),
        ("whisper.cpp", ggml_folders(), "ggml-*.bin"),
    ):
        seen = set()
        for file in (file for folder in folders for file in sorted(folder.glob(pattern))):
            if file.is_file() and file.name not in seen:
                seen.add(file.name)
                yield _of_file(file.name, program, file)


def _of_file(name: str, program: str, file: Path) -> Found:
    licence = "MIT" if published(file) else None  # openai/whisper's, of its code and weights
    numbers = _quietly(lambda: _numbers_of_file(file))
    return Found(name, program, str(file.resolve()), file.stat().st_size, numbers, licence)


def describe(name: str, place: Path) -> Found:
    """What is known of a folder or file that a name stands for."""
    if place.is_file():
        return _of_file(name, "openai-whisper" if place.suffix == ".pt" else "whisper.cpp", place)
    return _of_folder(name, "faster-whisper" if is_ctranslate2(place) else "Hugging Face", place)


def _conversions() -> Iterator[Found]:
    for folder in sorted((cache_folder() / "converted").glob("[!.]*")):
        if missing(folder) is None:
            yield _of_folder(str(folder), "forescribe, converted", folder)


def _of_folder(name: str, program: str, folder: Path) -> Found:
    """What is known of a folder of weights."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    numbers = _quietly(lambda: _numbers_of_folder(folder))
    size = sum(path.stat().st_size for path in files)
    return Found(name, program, str(folder), size, numbers, _quietly(lambda: _licence(folder)))


def _is_whisper(folder: Path) -> bool:
    return missing(folder) is None and bool(
        _quietly(
            lambda: json.loads((folder / "config.json").read_text())["model_type"] == "whisper"
        )
    )


def _numbers_of_folder(folder: Path) -> int | None:
    if is_ctranslate2(folder):
        variables = {id(v): v.size for v in read_variables(folder / WEIGHTS).values()}
        return sum(variables.values())
    shapes = shapes_in(folder)
    return sum(prod(shape) for name, shape in shapes.items() if name != "proj_out.weight") or None


def _numbers_of_file(file: Path) -> int | None:
    if file.suffix == ".bin":
        return read_dimensions(MappedFile(file)).numbers
    return file.stat().st_size // 2 if published(file) else None  # OpenAI's are in float16


def _licence(folder: Path) -> str | None:
    """The licence that a repository's card states."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"^license:\s*([\w.-]+)", card.split("\n---", 1)[0], re.MULTILINE)
    return stated[1] if stated else None


def _quietly(read: Callable[[], T]) -> T | None:
    """What a file says; None for files that are missing, damaged or no Whisper model: a list of what there is
    must not fail on one of them."""
    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError):
        return None
