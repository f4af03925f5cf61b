"""The drafter of a text pair: another model, a head on the target's states, copying from the text, drafting
through text, or one of another package.

Knows which draft fits which target; nothing of requests.
"""

from __future__ import annotations

from typing import Final

from forescribe.speculative.device import Device
from forescribe.speculative.drafters.heads import drafter_of
from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.errors import LoadError
from forescribe.speculative.models.engines import causal_decoder
from forescribe.speculative.protocols import Drafter

from . import drafter_registry
from .head_drafts import HeadDraft
from .language_model import LanguageModel, check_draft
from .universal import UniversalDrafter

NGRAM: Final = "ngram"
"""The draft without a model: it copies what followed the last words when they occurred before."""


def drafter_for(
    target: LanguageModel,
    draft: LanguageModel | HeadDraft | str | None,
    device: Device,
    *,
    gamma: int | None,
    context: int,
    universal: bool,
) -> Drafter | None:
    """The drafter that `draft` names; None for plain decoding. `universal` allows a model with other
    tokens. Raises LoadError for a draft that does not fit."""
    if draft is None:
        return None
    if draft == NGRAM:
        return NgramDrafter(hint_slots=1, early=device.synchronous)  # the prompt is searched anyway
    if isinstance(draft, str):
        setting = drafter_registry.DrafterSetting(target, device, gamma, context)
        return drafter_registry.create(draft, setting)
    if isinstance(draft, HeadDraft):
        return drafter_of(draft.head, confidence=confidence_for(gamma, device))
    if universal and target.vocabulary.difference(draft.vocabulary):
        return _universal(target, draft, device)
    check_draft(target, draft)
    if draft.positions < context:
        raise LoadError(
            f"{draft.name} has {draft.positions} positions, fewer than the context "
            f"of {context}: give a context that it has"
        )
    return ModelDrafter(
        causal_decoder(
            draft.model,
            context,
            target.vocab_size,
            engine=draft.engine,
            stored=draft.stored,
            listed=draft.listed,
        ),
        confidence=confidence_for(gamma, device),
    )


def _universal(target: LanguageModel, draft: LanguageModel, device: Device) -> Drafter:
    if device.static_shapes:
        raise LoadError(
            f"{draft.name} has other tokens than {target.name}: drafting through text works on "
            f"CPUs, not on {device.kind}, whose rounds are graphs"
        )
    return UniversalDrafter(
        causal_decoder(
            draft.model,
            engine=draft.engine,
            stored=draft.stored,
            listed=draft.listed,
        ),
        draft.vocabulary,
        draft.ends,
        target.vocabulary,
        min(target.ends, default=None),
        target.vocab_size,
    )
