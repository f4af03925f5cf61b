"""Conversion of a target to CTranslate2's format, in a temporary folder.

Knows the converter; nothing of what runs on its result.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

MORE_FILES = ("tokenizer.json", "preprocessor_config.json")
"""What faster-whisper reads besides the weights; else it downloads those of whisper-tiny."""


def convert(model: Path, into: Path, dtypes: Iterable[str]) -> tuple[dict[str, str], str | None]:
    """Return folders by dtype, and the reason if conversion failed.

    A missing library, or a model that it refuses, costs the rows of that system, not the run.
    """
    folders: dict[str, str] = {}
    try:
        importlib.import_module("transformers.utils.logging").disable_progress_bar()
        converters = importlib.import_module("ctranslate2.converters")
        files = [name for name in MORE_FILES if (model / name).is_file()]
        for dtype in dtypes:
            converter = converters.TransformersConverter(str(model), copy_files=files)
            folder = into / dtype
            converter.convert(str(folder), quantization=dtype)
            folders[dtype] = str(folder)
    except Exception as error:  # the library may raise anything
        return folders, f"{type(error).__name__}: {error}"
    return folders, None
