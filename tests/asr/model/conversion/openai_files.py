"""Writes a Hugging Face folder as a file of openai-whisper. `benchmarks.systems.ggml` writes those of
whisper.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.systems.ggml import dims_of, state_of


def write_pt(folder: Path, path: Path, **changes: Any) -> Path:
    state = {**state_of(folder), "decoder.mask": torch.zeros(2, 2)}
    torch.save({"dims": dims_of(folder), "model_state_dict": state, **changes}, path)
    return path
