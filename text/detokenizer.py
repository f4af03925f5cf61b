"""Text of tokens as they come: never half a character, never text that a later token changes."""

from __future__ import annotations

from collections.abc import Sequence

from .vocabulary import Vocabulary

CONTEXT = 6
"""Tokens of the prompt that decide how the first new one reads: whether a space is in front of it."""

HELD = 16
"""Tokens without a whole character. No character has so many: it is no text, and is let go."""

BROKEN = "\ufffd"


class Detokenizer:
    """Decodes the last few tokens with and without the new one; the difference is its text.

    Tokenizers are no functions of single tokens: a character may be several, and spaces depend on
    what comes before.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self.vocabulary = vocabulary
        self.ids = list(prompt[-CONTEXT:])
        self.begin, self.read = 0, len(self.ids)  # context; behind it what has no text yet

    def push(self, token: int) -> str:
        """The text that became final with this token; often a word, sometimes nothing."""
        self.ids.append(token)
        text = self._new()
        if text.endswith(BROKEN) and len(self.ids) - self.read < HELD:
            return ""
        if text:
            self.begin, self.read = self.read, len(self.ids)
        return text

    def flush(self) -> str:
        """What is left at the end of the text."""
        text = self._new()
        self.begin, self.read = self.read, len(self.ids)
        return text

    def _new(self) -> str:
        decode = self.vocabulary.decode
        return decode(self.ids[self.begin :])[len(decode(self.ids[self.begin : self.read])) :]
