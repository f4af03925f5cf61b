"""A model that writes down speech, in either of its two forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .speech_llm import PromptTokens, SpeechLLM
    from .tokens import SpecialTokens
    from .whisper import Whisper

SpeechModel: TypeAlias = "Whisper | SpeechLLM"
"""A target with its drafts on one device. A Whisper's decoder attends to encoder states; a speech LLM's is a
text model that reads them in its prompt."""

SpeechTokens: TypeAlias = "SpecialTokens | PromptTokens"
"""The tokens of a model, and what it can be asked for."""
