"""Prompts to tokens: a text, a conversation, or token ids.

Knows vocabularies and the limits of a prompt; nothing of models or engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forescribe.speculative import requests
from forescribe.speculative.errors import RequestError

from .vocabulary import Message, Vocabulary

Prompt = str | Sequence[int] | Sequence[Message]


def encode(
    prompt: Prompt, vocabulary: Vocabulary, vocab_size: int, context: int, positions: int
) -> tuple[int, ...]:
    """The tokens of a prompt. Raises RequestError where they leave no room in `context`, of the model's
    `positions`, and where the model has no form for conversations."""
    ids = _ids(prompt, vocabulary)
    unknown = next((i for i in ids if not 0 <= i < vocab_size), None)
    if unknown is not None:
        raise RequestError(f"token {unknown} is none of {vocabulary.name}'s")
    if not ids:
        raise RequestError("the prompt is empty")
    if len(ids) >= context:
        more = f"; a larger context allows up to {positions}" if positions > context else ""
        raise RequestError(
            f"the prompt has {len(ids)} tokens; with its answer it must fit {context}{more}"
        )
    return ids


def _ids(prompt: Prompt, vocabulary: Vocabulary) -> tuple[int, ...]:
    if isinstance(prompt, str):
        requests.check_text("the prompt", prompt)
        return vocabulary.encode(prompt)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise RequestError(f"the prompt is {type(prompt).__name__}, not text, tokens or messages")
    if prompt and all(isinstance(item, Mapping) for item in prompt):
        messages = [item for item in prompt if isinstance(item, Mapping)]
        _check_messages(messages)
        return vocabulary.chat(messages)
    ids = tuple(item for item in prompt if isinstance(item, int))
    if len(ids) < len(prompt) and any(isinstance(item, Mapping) for item in prompt):
        raise RequestError("the prompt mixes messages with something else")
    requests.check_tokens("the prompt", prompt)
    return ids


def _check_messages(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        for name, value in message.items():
            if isinstance(value, str):
                requests.check_text(f"{name} of message {number}", value)
