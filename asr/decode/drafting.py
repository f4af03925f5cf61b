"""The drafter of a Whisper pair: its draft models, or without any the text that a request brings.

Joined in one round they gain little: n-grams of the text so far write 1.00 to 1.12 tokens per round of
speech, and a text that is right in every word takes the 4.81 of a draft model to 5.25
(docs/methods/free-drafts.md). Knows what drafts are read from; nothing of requests or schedules.
"""

from __future__ import annotations

from typing import Final

import torch

from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.drafters.script import Breaks, ScriptDrafter
from forescribe.speculative.protocols import Drafter

from ..model.vocabulary import alphabetic
from ..model.whisper import Whisper

SCRIPT_SLOTS: Final = 16384
"""Tokens of a text that drafts are copied from: about an hour and a half of speech."""

ENDS: Final = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Marks at the end of a sentence, of Chinese and Japanese too."""


def drafter_for(whisper: Whisper, gamma: int | None) -> Drafter:
    """The drafter of a pair: its draft models, or copies from the text that a request brings where it has
    none."""
    return _model(whisper, gamma) or ScriptDrafter(
        slots=SCRIPT_SLOTS,
        special_from=whisper.tokens.end,
        breaks=_breaks(whisper),
        early=whisper.device.synchronous,
    )


def _model(whisper: Whisper, gamma: int | None) -> Drafter | None:
    if not whisper.drafts:
        return None
    # The token rules are not applied to drafts: they cost as much as a small draft model's forward
    # pass, and a distilled draft model has learnt what the rules allow.
    confidence = confidence_for(gamma, whisper.device)
    drafters = [
        ModelDrafter(draft.decoder(index), confidence=confidence)
        for index, draft in enumerate(whisper.drafts)
    ]
    if len(drafters) == 1:
        return drafters[0]
    return RoutingDrafter(
        drafters,
        lambda request: request.encoder_states.chosen,
        skips=whisper.device.synchronous,
    )


def _breaks(whisper: Whisper) -> Breaks:
    """Where Whisper writes timestamps that a text lacks: behind the ends of sentences."""
    vocabulary = whisper.tokenizer.get_vocab()
    ends = tuple(map(alphabetic, ENDS))
    after = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
    after[[number for name, number in vocabulary.items() if name.endswith(ends)]] = True
    return Breaks(after, none=whisper.tokens.no_timestamps)
