"""A language model's tokens as text and bytes, over a tokenizer of transformers.

Knows a tokenizer that it is given; nothing of models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from forescribe.speculative.errors import RequestError

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates want it

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # sentencepiece's mark of a space


class Vocabulary:
    """The tokens of one model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._data: dict[int, bytes] = {}

    @cached_property
    def ids(self) -> dict[str, int]:
        found: dict[str, int] = self.tokenizer.get_vocab()
        return found

    @cached_property
    def specials(self) -> frozenset[int]:
        return frozenset(self.tokenizer.all_special_ids)

    @cached_property
    def _byte_level(self) -> bool:
        inner = getattr(self.tokenizer, "backend_tokenizer", None)
        return "ByteLevel" in str(getattr(inner, "decoder", ""))

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of a prompt, with those that the model expects before every text. Raises RequestError
        where there are none."""
        ids = tuple(self.tokenizer(text)["input_ids"])
        if not ids:
            if self.tokenizer.bos_token_id is None:
                raise RequestError("the prompt is empty, and the model has no token to begin with")
            return (int(self.tokenizer.bos_token_id),)
        return ids

    def bare(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, with nothing added."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @property
    def converses(self) -> bool:
        """Whether the model has a chat template."""
        return getattr(self.tokenizer, "chat_template", None) is not None

    def chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens of a conversation in the model's chat template, up to the beginning of the answer.
        Raises RequestError where there is no template, or where it refuses the conversation."""
        if not self.converses:
            raise RequestError(
                "the model has no chat template: it was not made for conversations; give it a plain prompt"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # templates and jinja raise exceptions of any class
            line = " ".join(str(error).split())
            raise RequestError(f"the model's chat template refuses this: {line}") from error
        return self.bare(text)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def text(self, token: int) -> str:
        """The text of a token for display; the name of a special token."""
        if token in self.specials:
            return str(self.tokenizer.convert_ids_to_tokens(token))
        return self.data(token).decode(errors="replace")

    def data(self, token: int) -> bytes:
        """The bytes of the token in a text, which need not be whole characters."""
        if token not in self._data:
            self._data[token] = self._bytes(token)
        return self._data[token]

    def _bytes(self, token: int) -> bytes:
        from forescribe.speculative.models.vocabularies import BYTES

        text = self.tokenizer.convert_ids_to_tokens(token)
        if text is None or token in self.specials:  # None: room in the model without a token
            return b""
        if self._byte_level and BYTES.keys() >= set(text):
            return bytes(map(BYTES.__getitem__, text))
        byte = _BYTE.fullmatch(text)
        if byte:
            return bytes.fromhex(byte[1])
        return str(text).replace(_SPACE, " ").encode()

    def difference(self, other: Vocabulary) -> str | None:
        """The first token that both do not have under one id, in words; None where they are equal.

        Tokens that were added to a vocabulary (a chat's, a tool's) may be missing on one side or have
        another name: they are few, and a draft that takes one for another is wrong there alone.
        """
        added = self.tokenizer.get_added_vocab().keys() | other.tokenizer.get_added_vocab().keys()
        wrong = [
            token
            for token in (self.ids.keys() | other.ids.keys()) - added
            if self.ids.get(token) != other.ids.get(token)
        ]
        if not wrong:
            return None
        token = min(wrong, key=lambda t: (self.ids.get(t, other.ids.get(t, 0)), t))
        return f"ids {self.ids.get(token)} and {other.ids.get(token)} for the token {token!r}"
