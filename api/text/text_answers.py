"""Generated texts in OpenAI's formats, whole or as chunks. Pure functions of completions.

Does not know how texts are generated.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from forescribe.text.streaming import Completion, Token

Json = dict[str, Any]


class Shape(Protocol):
    """The JSON format of one of the two routes."""

    logprobs: int | None  # most probable tokens per position; None: no log-probabilities

    def begin(self, index: int) -> Json | None:
        """The first chunk of a choice, before its text; None for none."""

    def delta(self, index: int, text: str, tokens: Sequence[Token]) -> Json: ...

    def end(self, index: int, completion: Completion) -> Json: ...

    def whole(self, completions: Sequence[Completion], prompt_tokens: int) -> Json: ...

    def chunk(self, choices: list[Json], usage: Json | None = None) -> Json: ...


class _Head:
    """The fields that all chunks of one answer share. `created` is in Unix seconds."""

    prefix: str
    kind: str
    chunk_kind: str

    def __init__(self, model: str, created: int, *, logprobs: int | None, usage: bool) -> None:
        self.model, self.created = model, created
        self.logprobs, self.with_usage = logprobs, usage
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def chunk(self, choices: list[Json], usage: Json | None = None) -> Json:
        """With `include_usage` every chunk has the key `usage`, and the last one has the numbers."""
        body = {**self._head(self.chunk_kind), "choices": choices}
        return {**body, "usage": usage} if self.with_usage else body


class TextShape(_Head):
    """`/v1/completions`."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, created: int, *, logprobs: int | None, usage: bool) -> None:
        super().__init__(model, created, logprobs=logprobs, usage=usage)
        self._offsets: dict[int, int] = {}  # characters of the tokens so far, by choice

    def begin(self, index: int) -> Json | None:
        return None

    def delta(self, index: int, text: str, tokens: Sequence[Token]) -> Json:
        return self._choice(index, text, tokens, None)

    def end(self, index: int, completion: Completion) -> Json:
        return self._choice(index, "", (), completion.finish)

    def whole(self, completions: Sequence[Completion], prompt_tokens: int) -> Json:
        choices = [
            self._choice(i, done.text, done.tokens, done.finish)
            for i, done in enumerate(completions)
        ]
        usage = usage_of(completions, prompt_tokens)
        return {**self._head(self.kind), "choices": choices, "usage": usage}

    def _choice(self, index: int, text: str, tokens: Sequence[Token], finish: str | None) -> Json:
        logprobs = None if self.logprobs is None else self._logprobs(index, tokens)
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, index: int, tokens: Sequence[Token]) -> Json:
        offsets, at = [], self._offsets.get(index, 0)
        for token in tokens:
            offsets.append(at)
            at += len(token.data.decode(errors="replace"))
        self._offsets[index] = at
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{c.text: c.logprob for c in (*t.best, t)} for t in tokens],
            "text_offset": offsets,
        }


class ChatShape(_Head):
    """`/v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self, index: int) -> Json | None:
        return self._choice(index, {"role": "assistant", "content": ""}, (), None)

    def delta(self, index: int, text: str, tokens: Sequence[Token]) -> Json:
        return self._choice(index, {"content": text}, tokens, None)

    def end(self, index: int, completion: Completion) -> Json:
        return self._choice(index, {}, (), completion.finish)

    def whole(self, completions: Sequence[Completion], prompt_tokens: int) -> Json:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": done.text, "refusal": None},
                "logprobs": self._logprobs(done.tokens),
                "finish_reason": done.finish,
            }
            for index, done in enumerate(completions)
        ]
        usage = usage_of(completions, prompt_tokens)
        return {**self._head(self.kind), "choices": choices, "usage": usage}

    def _choice(
        self, index: int, delta: Mapping[str, str], tokens: Sequence[Token], finish: str | None
    ) -> Json:
        logprobs = self._logprobs(tokens) if tokens else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Iterable[Token]) -> Json | None:
        if self.logprobs is None:
            return None
        content = [
            {
                "token": token.text,
                "logprob": token.logprob,
                "bytes": list(token.data),
                "top_logprobs": [
                    {"token": c.text, "logprob": c.logprob, "bytes": list(c.data)}
                    for c in token.best
                ],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


def usage_of(completions: Iterable[Completion], prompt_tokens: int) -> Json:
    """Token counts. All generated tokens count, including end-of-text and stop strings."""
    generated = sum(len(completion.ids) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }
