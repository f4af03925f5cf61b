"""The draft of a text target: what a name or folder holds, whether it fits, and the drafter that uses it.

It is another model, a head on the target's states, a layer in the target's own checkpoint, or copying from
the text. Formats of heads are in `speculative.models.heads`. Knows which draft fits which target; nothing of
requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.heads import HeadDrafter
from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.errors import LoadError
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.checkpoint import loading
from forescribe.speculative.models.heads.formats import described, holds_head, load_head, load_mtp
from forescribe.speculative.models.heads.records import Head, TargetShape
from forescribe.speculative.models.hub import find, locate
from forescribe.speculative.protocols import Drafter

from .language_model import LANGUAGE_MODEL, LanguageModel, check_draft, load
from .presets import MTP


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
        if folder.is_file() or not holds_head(folder):  # a GGUF file is a model
            return load(name, device, role="draft", network=network, engine=engine)
        placed = {"device": target.model.device, "dtype": target.model.dtype}
        return HeadDraft(str(name), load_head(folder, _shape(target), str(name), **placed))
    except torch.OutOfMemoryError:
        raise
    except LoadError as error:
        if str(error).startswith("--draft"):
            raise
        raise LoadError(f"--draft {name}: {error}") from error


def drafter_for(
    target: LanguageModel,
    draft: LanguageModel | HeadDraft | str | None,
    device: Device,
    *,
    gamma: int | None,
    context: int,
) -> Drafter | None:
    """The drafter of `draft`, of which `NGRAM` is the only string; None for plain decoding. Raises LoadError
    for a draft that does not fit."""
    if draft is None:
        return None
    if isinstance(draft, str):
        return NgramDrafter(early=device.synchronous)
    confidence = confidence_for(gamma, device)
    if isinstance(draft, HeadDraft):
        return HeadDrafter(draft.head, confidence=confidence)
    check_draft(target, draft)
    if draft.positions < context:
        raise LoadError(
            f"{draft.name} has {draft.positions} positions, fewer than the context "
            f"of {context}: give a context that it has"
        )
    return ModelDrafter(draft.decoder(context, target.vocab_size), confidence=confidence)


def _shape(target: LanguageModel) -> TargetShape:
    config = target.model.config.get_text_config()
    return TargetShape(target.name, config.hidden_size, config.num_hidden_layers, target.vocab_size)
