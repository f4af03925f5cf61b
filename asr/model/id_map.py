"""The map between the token ids of a Whisper draft and its target, computed from what the ids mean.

Tokens with the same meaning are partners. What has none is never drafted; a target token without a partner
is read by the draft as another one that says nearly the same:

| the target's token                           | the draft reads                                         |
|----------------------------------------------|---------------------------------------------------------|
| text                                         | the longest end of it that is one token of the draft    |
| a language                                   | a related one (Cantonese: Chinese), or the start token  |
| a language or task, by an English-only draft | the start token: it has never read the others           |
| a timestamp behind the draft's last one      | the last one                                            |
| another special token                        | a space, or the start token                             |

This affects the share of drafts that are kept, and never the text.
"""

from __future__ import annotations

from collections.abc import Mapping

from forescribe.speculative.models.vocabularies import NONE, TokenMap

from .whisper_vocabulary import START, TASKS, Kind, Token, WhisperVocabulary

RELATED: Mapping[str, tuple[str, ...]] = {
    "<|yue|>": ("<|zh|>",),
    "<|nn|>": ("<|no|>",),
    "<|no|>": ("<|nn|>",),
    "<|nb|>": ("<|no|>", "<|nn|>"),
    "<|gsw|>": ("<|de|>",),
    "<|lb|>": ("<|de|>",),
}
"""Languages by which a draft may read one that it lacks: one that is written alike."""

LEAST_SHARED = 0.5
"""The share of the smaller text vocabulary that both must have. `.en` models and the others share 58 % of
their text tokens, which are 99 % of English text (29,380 of 50,256; of 111,016 tokens of documentation)."""

SPACE = "Ġ"


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
    stand_ins = _StandIns(draft)
    to_draft = [
        partners[i] if i in partners else stand_ins.of(token)
        for i, token in enumerate(target.tokens)
    ]
    made = TokenMap(tuple(to_draft), tuple(to_target))
    return None if made.is_identity else made


def _partners(target: WhisperVocabulary, draft: WhisperVocabulary) -> dict[int, int]:
    """The draft's id of each target id that means the same."""
    found = {}
    for token, target_id in target.ids.items():
        draft_id = draft.ids.get(token)
        if draft_id is not None and not _unread(token, target, draft):
            found[target_id] = draft_id
    return found


def _unread(token: Token, target: WhisperVocabulary, draft: WhisperVocabulary) -> bool:
    """Whether a draft has never read this token, although its tokenizer names it."""
    if not draft.english_only or target.english_only:
        return False
    return token.kind is Kind.LANGUAGE or token.name in TASKS


class _StandIns:
    """What a draft reads in place of tokens that it lacks."""

    def __init__(self, draft: WhisperVocabulary) -> None:
        self._draft = draft
        self._start = draft.ids[Token(Kind.CONTROL, START)]

    def of(self, token: Token) -> int:
        if token.kind is Kind.TEXT and token.name:
            return self._ending(token.name)
        if token.kind is Kind.LANGUAGE:
            return self._language(token)
        if token.kind is Kind.TIMESTAMP and self._draft.stamps:
            return self._draft.stamps[-1]
        if token.kind is Kind.OTHER:
            return self._ending(SPACE)
        return self._start

    def _ending(self, name: str) -> int:
        """The longest end of a text that is one token: what follows depends on it most. A space, or the start
        token, where there is none."""
        endings = (name[first:] for first in range(len(name)))
        for text in (*endings, SPACE):
            found = self._draft.id_of(Kind.TEXT, text)
            if found is not None:
                return found
        return self._start

    def _language(self, token: Token) -> int:
        if not self._draft.english_only:
            for name in RELATED.get(token.name or "", ()):
                found = self._draft.id_of(Kind.LANGUAGE, name)
                if found is not None:
                    return found
        return self._start
