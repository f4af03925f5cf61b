"""Incremental detokenization: no partial characters, and no text that a later token changes.

Knows a vocabulary; nothing of stop strings or requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from .vocabulary import Vocabulary

CONTEXT = 6
"""Tokens of the prompt that determine the text of the first new one: whether it begins with a space."""

HELD = 16
"""Most tokens held back without a whole character. No character has as many, so it is output as it is."""

BROKEN = "\ufffd"


class Detokenizer:
    """Decodes the last few tokens with and without the new one; the difference is its text.

    Tokens cannot be decoded one by one: a character may consist of several, and spaces depend on the
    tokens before.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self.vocabulary = vocabulary
        self.ids = list(prompt[-CONTEXT:])
        # ids[begin:read] are context; ids[read:] have no text yet.
        self.begin, self.read = 0, len(self.ids)

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
        """Returns the rest at the end of the text."""
        text = self._new()
        self.begin, self.read = self.read, len(self.ids)
        return text

    def _new(self) -> str:
        decode = self.vocabulary.decode
        return decode(self.ids[self.begin :])[len(decode(self.ids[self.begin : self.read])) :]
