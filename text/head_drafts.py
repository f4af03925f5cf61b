"""Heads as drafts of text models: what a name or folder holds, and whether it fits the target.

Knows names, folders and targets; formats are in `speculative.models.heads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.models.heads.formats import described, format_in, load_head, load_mtp
from forescribe.speculative.models.heads.records import Head, TargetShape
from forescribe.speculative.models.hub import find, locate

from .language_model import LANGUAGE_MODEL, LanguageModel, load

MTP: Final = "mtp"
"""The draft that is a layer inside the target's own checkpoint."""


@dataclass(frozen=True, eq=False)
class HeadDraft:
    """A head that fits its target."""

    name: str  # as the user knows it
    head: Head

    def __str__(self) -> str:
        return f"{self.name}: {described(self.head)}"


@loading()
def load_draft(
    name: str | Path,
    target: LanguageModel,
    device: Device,
    *,
    network: bool = True,
    engine: ModelEngine = ModelEngine.AUTO,
) -> LanguageModel | HeadDraft:
    """The draft of a folder or hub id: an ordinary model, or a head on the target's states; `MTP` is the
    target's own layer. Raises LoadError in one line, with the draft's name."""
    try:
        if name == MTP:
            folder = find(target.name, LANGUAGE_MODEL.missing)
            if folder is None:
                raise LoadError(f"the checkpoint of {target.name} is not on this machine")
            return HeadDraft(MTP, load_mtp(folder, target.model, _shape(target)))
        folder = locate(name, LANGUAGE_MODEL, role="draft", network=network)
        if folder.is_file() or format_in(folder) is None:  # a GGUF file is a model
            return load(name, device, role="draft", network=network, engine=engine)
        placed = {"device": target.model.device, "dtype": target.model.dtype}
        return HeadDraft(str(name), load_head(folder, _shape(target), str(name), **placed))
    except torch.OutOfMemoryError:
        raise
    except LoadError as error:
        if str(error).startswith("--draft"):
            raise
        raise LoadError(f"--draft {name}: {error}") from error


def _shape(target: LanguageModel) -> TargetShape:
    config = target.model.config.get_text_config()
    return TargetShape(target.name, config.hidden_size, config.num_hidden_layers, target.vocab_size)
