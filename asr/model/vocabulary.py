"""What each token id of a Whisper model means, read from its files, and the map between two models by that.

Two models of the family rarely have the same ids: large-v3 inserted Cantonese, `.en` models have GPT-2's text
tokens, fine-tunes add tokens, older tokenizer files lack the timestamps. A `WhisperVocabulary` gives every
id a name by which two models can be compared.

`token_map` is between the ids of a target and its draft. Tokens with the same meaning are partners. What has
none is never drafted; a target token without a partner is read by the draft as another one that says nearly
the same:

| the target's token                           | the draft reads                                         |
|----------------------------------------------|---------------------------------------------------------|
| text                                         | the longest end of it that is one token of the draft    |
| a language                                   | a related one (Cantonese: Chinese), or the start token  |
| a language or task, by an English-only draft | the start token: it has never read the others           |
| a timestamp behind the draft's last one      | the last one                                            |
| another special token                        | a space, or the start token                             |

This affects the share of drafts that are kept, and never the text. Knows tokenizers and configurations;
nothing of weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from forescribe.speculative.models.vocabularies import BYTES, LETTERS, NONE, TokenMap

from .languages import ALIKE, LANGUAGES
from .tokens import TokenSettings

ALIASES: Mapping[str, str] = {"<|nocaptions|>": "<|nospeech|>", "<|jv|>": "<|jw|>"}
"""Other names of one token: of openai's first release, and a language with two codes."""

END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
TASKS = ("<|translate|>", "<|transcribe|>")

STEP_S = 0.02
"""Seconds between two timestamps."""

_CONTROLS = frozenset({"<|startoflm|>", "<|startofprev|>", "<|nospeech|>"})
"""Whisper's own tokens beside those above."""

LEAST_SHARED = 0.5
"""The share of the smaller text vocabulary that both must have. `.en` models and the others share 58 % of
their text tokens, which are 99 % of English text (29,380 of 50,256; of 111,016 tokens of documentation)."""

SPACE = LETTERS[ord(" ")]
"""The name of a space."""


@dataclass(frozen=True)
class WhisperVocabulary:
    """The tokens of a model by id. An `english_only` model has never read languages and tasks, although its
    tokenizer names them."""

    tokens: tuple[Token, ...]
    english_only: bool = False

    @classmethod
    def of(cls, settings: TokenSettings, tokenizer: Any) -> WhisperVocabulary:
        """The vocabulary of a folder's settings and tokenizer. Raises ValueError for a tokenizer that names
        no end or start."""
        names: dict[int, str] = {number: name for name, number in tokenizer.get_vocab().items()}
        size, stamp = settings.size, f"<|{0:.2f}|>"
        ids = {name: token_id for token_id, name in names.items()}
        for needed in (END, START):
            if ids.get(needed, size) >= size:
                raise ValueError(f"its tokenizer has no {needed}")
        # Older files end with <|notimestamps|>: the timestamps are the positions behind it.
        first = ids.get(stamp)
        if first is None:
            before = ids.get(NO_TIMESTAMPS, settings.no_timestamps)
            first = size if before is None else before + 1
        stamps = range(first, first + settings.timestamps)
        end = min((ids[END], *settings.ends))
        plain = {
            token_id
            for token_id, added in tokenizer.added_tokens_decoder.items()
            if not added.special
        }
        tokens = []
        for token_id in range(size):
            name = names.get(token_id)
            if name is None and token_id in stamps:
                name = f"<|{(token_id - first) * STEP_S:.2f}|>"
            tokens.append(_token(token_id, name, end, token_id in plain, settings.languages))
        return cls(tuple(tokens), settings.english_only)

    @cached_property
    def ids(self) -> Mapping[Token, int]:
        """The id of each named token; of several with one meaning the first."""
        found: dict[Token, int] = {}
        for token_id, token in enumerate(self.tokens):
            if token.name is not None:
                found.setdefault(token, token_id)
        return found

    @cached_property
    def stamps(self) -> tuple[int, ...]:
        """The timestamps in order."""
        return tuple(i for i, token in enumerate(self.tokens) if token.kind is Kind.TIMESTAMP)

    @cached_property
    def text_count(self) -> int:
        return sum(token.kind is Kind.TEXT for token in self.tokens)


@dataclass(frozen=True)
class Token:
    """The meaning of an id: tokens of two models mean the same if kind and name are the same. A text's name
    is its bytes in GPT-2's alphabet; None: the model's files do not name it."""

    kind: Kind
    name: str | None


class Kind(Enum):
    """What a token is for."""

    TEXT = "text"
    LANGUAGE = "language"
    CONTROL = "control"  # of Whisper's own: start, tasks, previous text, no speech
    TIMESTAMP = "timestamp"
    OTHER = "other"  # added by a fine-tune, or without a name: padding of the weights


def token_map(target: WhisperVocabulary, draft: WhisperVocabulary) -> TokenMap | None:
    """The map of two models; None where their ids are the same. Raises ValueError, which says why, for
    vocabularies with little in common."""
    if target == draft:
        return None
    partners = _partners(target, draft)
    shared = sum(target.tokens[i].kind is Kind.TEXT for i in partners)
    smaller = min(target.text_count, draft.text_count)
    if shared < LEAST_SHARED * smaller:
        raise ValueError(f"they share {shared:,} of {smaller:,} text tokens")
    to_target = [NONE] * len(draft.tokens)
    for target_id, draft_id in partners.items():
        to_target[draft_id] = target_id
    to_draft = [
        partners[i] if i in partners else _stand_in(token, draft)
        for i, token in enumerate(target.tokens)
    ]
    same = to_draft == to_target == list(range(len(to_draft)))
    return None if same else TokenMap(tuple(to_draft), tuple(to_target))


def alphabetic(text: str) -> str:
    """A text's bytes as characters of GPT-2's alphabet, in which tokenizers name their text tokens."""
    return "".join(map(LETTERS.__getitem__, text.encode()))


def bytes_of(name: str) -> bytes:
    """The bytes of a text token, from its name in that alphabet; part of a character, perhaps."""
    return bytes(map(BYTES.__getitem__, name))


def _token(
    token_id: int, name: str | None, end: int, plain: bool, languages: frozenset[str]
) -> Token:
    """The meaning of an id. `plain` says that the tokenizer added it and it is not special."""
    if name is None:
        return Token(Kind.OTHER, None)
    if token_id < end:
        return Token(Kind.TEXT, name)
    name = ALIASES.get(name, name)
    inner = name[2:-2] if name.startswith("<|") and name.endswith("|>") else None
    if inner is None:
        return Token(Kind.TEXT, alphabetic(name)) if plain else Token(Kind.OTHER, name)
    if re.fullmatch(r"\d+\.\d\d", inner):
        return Token(Kind.TIMESTAMP, name)
    if name in (END, START, NO_TIMESTAMPS, *TASKS) or name in _CONTROLS:
        return Token(Kind.CONTROL, name)
    if name in languages or inner in LANGUAGES:
        return Token(Kind.LANGUAGE, name)
    return Token(Kind.OTHER, name)


def _partners(target: WhisperVocabulary, draft: WhisperVocabulary) -> dict[int, int]:
    """The draft's id of each target id that means the same."""
    return {
        target_id: draft.ids[token]
        for token, target_id in target.ids.items()
        if token in draft.ids and not _unread(token, target, draft)
    }


def _unread(token: Token, target: WhisperVocabulary, draft: WhisperVocabulary) -> bool:
    """Whether a draft has never read this token, although its tokenizer names it."""
    if not draft.english_only or target.english_only:
        return False
    return token.kind is Kind.LANGUAGE or token.name in TASKS


def _stand_in(token: Token, draft: WhisperVocabulary) -> int:
    """What a draft reads in place of a token that it lacks."""
    start = draft.ids[Token(Kind.CONTROL, START)]
    if token.kind is Kind.TEXT and token.name:
        return _ending(token.name, draft, start)
    if token.kind is Kind.OTHER:
        return _ending(SPACE, draft, start)
    if token.kind is Kind.TIMESTAMP and draft.stamps:
        return draft.stamps[-1]
    if token.kind is Kind.LANGUAGE and not draft.english_only:
        codes = ALIKE.get((token.name or "")[2:-2], ())
        near = (draft.ids.get(Token(Kind.LANGUAGE, f"<|{code}|>")) for code in codes)
        return next((own for own in near if own is not None), start)
    return start


def _ending(name: str, draft: WhisperVocabulary, start: int) -> int:
    """The longest end of a text that is one token: what follows depends on it most. A space, or the start
    token, where there is none."""
    endings = (Token(Kind.TEXT, text) for text in (*(name[n:] for n in range(len(name))), SPACE))
    return next((draft.ids[own] for own in endings if own in draft.ids), start)
