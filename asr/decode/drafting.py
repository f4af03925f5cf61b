"""The drafter of a Whisper pair: its draft model, joined with drafts that cost nothing.

Knows which sources there are and what they read; nothing of requests or schedules.
"""

from __future__ import annotations

from typing import Final

import torch

from forescribe.speculative.drafters.cascade import Cascade
from forescribe.speculative.drafters.heads import WhisperBlockDrafter
from forescribe.speculative.drafters.model_drafter import ModelDrafter, confidence_for
from forescribe.speculative.drafters.ngram import NgramDrafter
from forescribe.speculative.drafters.routing import RoutingDrafter
from forescribe.speculative.drafters.script import Breaks, ScriptDrafter
from forescribe.speculative.models.heads.whisper_block import WhisperBlock
from forescribe.speculative.protocols import Drafter

from ..errors import UsageError
from ..model.vocabulary import alphabetic
from ..model.whisper import Whisper

AUTO: Final = "auto"
MODEL: Final = "model"
CASCADE: Final = "cascade"

SOURCES: Final = (AUTO, MODEL, CASCADE)
"""What drafts: the best choice, the draft model alone, or the model with the text that a request brings."""

SCRIPT_SLOTS: Final = 16384
"""Tokens of a text that drafts are copied from: about an hour and a half of speech."""

ENDS: Final = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Marks at the end of a sentence, of Chinese and Japanese too."""


def drafter_for(whisper: Whisper, gamma: int | None, source: str = AUTO) -> Drafter:
    """The drafter of a pair. `source` is one of `SOURCES`; `auto` is the cascade where an unused source
    costs nothing (CPUs), and the model elsewhere; a block head drafts alone. Raises UsageError for an
    unknown source, or one that a block head cannot be joined with."""
    if source not in SOURCES:
        raise UsageError(f"unknown drafter {source!r}; known: {', '.join(SOURCES)}")
    if whisper.block is not None:
        if source not in (AUTO, MODEL):
            raise UsageError(f"--drafter {source}: a block head drafts alone; leave it out")
        return _block(whisper, whisper.block, gamma)
    adaptive = whisper.device.synchronous
    if source == AUTO:
        source = CASCADE if adaptive else MODEL
    model = _model(whisper, gamma)
    if source == MODEL:
        return NgramDrafter(early=adaptive) if model is None else model
    special = whisper.tokens.end
    free: dict[str, Drafter] = {
        "text": ScriptDrafter(slots=SCRIPT_SLOTS, special_from=special, breaks=_breaks(whisper)),
    }
    if model is None:
        free["answer"] = NgramDrafter(hint_slots=1)  # the hint has a source of its own
    return Cascade(free, model, adaptive=adaptive)


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


def _block(whisper: Whisper, head: WhisperBlock, gamma: int | None) -> WhisperBlockDrafter:
    return WhisperBlockDrafter(
        head,
        lambda states: states.target,
        sources=whisper.target.config.max_source_positions,
        confidence=confidence_for(gamma, whisper.device),
    )


def _breaks(whisper: Whisper) -> Breaks:
    """Where Whisper writes timestamps that a text lacks: behind the ends of sentences."""
    vocabulary = whisper.tokenizer.get_vocab()
    ends = tuple(map(alphabetic, ENDS))
    after = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.bool)
    after[[number for name, number in vocabulary.items() if name.endswith(ends)]] = True
    return Breaks(after, none=whisper.tokens.no_timestamps)
