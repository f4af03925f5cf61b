"""The files beside the weights of a draft: those of its target, so that both read the same tokens.

Knows folders; nothing of models but how they are saved.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "normalizer.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
)


def copy_companions(source: Path, folder: Path) -> None:
    """Copy the tokenizer's and the features' files, following links. Raises OSError."""
    for name in COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def save_weights(draft: Any, folder: Path, *, tied: str | None) -> None:
    """Write config.json last, and the weights in float16: half the size, and a draft only guesses.
    `config.json` says float32, which a plain load computes in. `tied` is the name of the head's weight where
    it is the embedding. Raises OSError."""
    from safetensors.torch import save

    weights = {
        name: value.detach().half().contiguous().cpu()
        for name, value in draft.state_dict().items()
        if name != tied
    }
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    draft.config.dtype = torch.float32
    draft.config.architectures = [type(draft).__name__]
    draft.config.save_pretrained(folder)
