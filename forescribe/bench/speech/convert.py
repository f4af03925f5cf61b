"""Conversion: a target's folder to CTranslate2's format, in a folder that ends with the run."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

BESIDES = ("tokenizer.json", "preprocessor_config.json")
"""What faster-whisper reads beside the weights; it would fetch whisper-tiny's over the network."""


def convert(model: Path, into: Path, dtypes: Iterable[str]) -> tuple[dict[str, str], str | None]:
    """Folders by dtype, and why there are none where there are none.

    A library that is missing or a model that it refuses costs its rows, not the run.
    """
    made: dict[str, str] = {}
    try:
        importlib.import_module("transformers.utils.logging").disable_progress_bar()
        converters = importlib.import_module("ctranslate2.converters")
        files = [name for name in BESIDES if (model / name).is_file()]
        for dtype in dtypes:
            converter = converters.TransformersConverter(str(model), copy_files=files)
            folder = into / dtype
            converter.convert(str(folder), quantization=dtype)
            made[dtype] = str(folder)
    except Exception as error:  # a foreign library's: any kind
        return made, f"{type(error).__name__}: {error}"
    return made, None
