"""Drafts of a model with other tokens, translated as text (universal assisted generation, Timor et al.
2025, 2502.05202).

The host translates in every round, which needs a sync: for CPUs, where a round is not captured. The
distribution is one-hot (the draft's greedy text depends only on the prefix), so results are exact at
every temperature. Knows two vocabularies; nothing of the target model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from forescribe.speculative.protocols import Model, Needs
from forescribe.speculative.requests import Request
from forescribe.speculative.rows import Rows
from forescribe.speculative.types import Draft, Scores, Verdict

from .streaming import BROKEN
from .vocabulary import Vocabulary

WINDOW = 8
"""Tokens of the text that are tokenized again together with the draft, so that words do not break where
the draft begins."""


class UniversalDrafter:
    """Drafts with any `Model`: `own` are its tokens and `ends` those that end its texts; `target` are
    the tokens to propose, `target_end` the one that ends a text there (None: none does), `vocab_size`
    how many of them the target has room for where its tokenizer knows more (None: for all).

    A row whose text ends within a character, or is too long for the draft, is decoded plainly.
    """

    def __init__(
        self,
        model: Model,
        own: Vocabulary,
        ends: Iterable[int],
        target: Vocabulary,
        target_end: int | None,
        vocab_size: int | None = None,
    ) -> None:
        self.model, self.own, self.ends = model, own, frozenset(ends)
        self.target, self.target_end, self.vocab_size = target, target_end, vocab_size
        self.needs = Needs(vocab=vocab_size)
        self.fed: list[list[int]] = []  # by row: the draft's tokens that its cache holds
        self.slots = 0

    def bind(self, target: Model) -> None:
        """Does nothing: the draft has its own vocabulary."""

    def allocate(self, batch: int, slots: int, device: torch.device) -> None:
        # The same text may be more tokens here than there.
        self.slots = min(2 * slots, self.model.max_positions)
        self.model.allocate(batch, self.slots)
        self.fed = [[] for _ in range(batch)]

    def forwards(self, gamma: int) -> int:
        return gamma

    def admit(
        self, rows: Tensor, tokens: Tensor, requests: Sequence[Request], taps: Tensor | None
    ) -> None:
        chosen = dict(zip(rows.tolist(), requests, strict=True))  # padding repeats the last row
        texts = [self._own_tokens(request.prompt) or [] for request in chosen.values()]
        texts = [ids if len(ids) < self.slots else [] for ids in texts]
        length = max(1, *map(len, texts))
        padded = [ids + [0] * (length - len(ids)) for ids in texts]
        place = torch.tensor(list(chosen), device=rows.device)
        self.model.prefill(place, torch.tensor(padded, device=rows.device), [None] * len(texts))
        for row, ids in zip(chosen, texts, strict=True):
            self.fed[row] = ids

    def catch_up(self, rows: Rows, start: Tensor, count: int) -> None:
        """Does nothing: every proposal reads what is new in the text."""

    def observe(self, rows: Rows, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Does nothing."""

    def propose(self, rows: Rows, gamma: int) -> Draft:
        place = rows.tokens.device
        committed = [
            row[:length]
            for row, length in zip(rows.tokens.tolist(), rows.lengths.tolist(), strict=True)
        ]
        active: list[bool] = rows.active.tolist()
        texts = [
            self._own_tokens(ids) if on else None for ids, on in zip(committed, active, strict=True)
        ]
        texts = [ids if ids and len(ids) + gamma <= self.slots else None for ids in texts]
        tokens = torch.zeros((rows.batch, gamma), dtype=torch.int64)
        valid = torch.zeros(rows.batch, dtype=torch.int64)
        if any(ids is not None for ids in texts):
            # A row without a proposal reads the same tokens again, so that its cache does not change.
            room = self.slots - gamma
            known = [fed[:room] for fed in self.fed]
            work = [old if ids is None else ids for ids, old in zip(texts, known, strict=True)]
            drafted = self._write(work, gamma, place)
            for row, ids in enumerate(texts):
                if ids is None:
                    continue
                self.fed[row] = ids + drafted[row][:-1]  # the last one was never fed
                proposed = self._target_tokens(committed[row], ids, drafted[row])[:gamma]
                size = self.vocab_size
                if size is not None and any(token >= size for token in proposed):
                    proposed = list(takewhile(size.__gt__, proposed))
                tokens[row, : len(proposed)] = torch.tensor(proposed, dtype=torch.int64)
                valid[row] = len(proposed)
        return Draft(tokens.to(place), valid.to(place))

    def _write(self, texts: list[list[int]], gamma: int, place: torch.device) -> list[list[int]]:
        """The `gamma` tokens of the draft that follow each text; undefined for an empty text."""
        new = [len(ids) - _common(ids, fed) for ids, fed in zip(texts, self.fed, strict=True)]
        # The last tokens of every row at once; reading some again changes nothing. At least one, for
        # its logits.
        count = min(1 << (max(1, *new) - 1).bit_length(), self.slots)
        lengths = torch.tensor([max(1, len(ids)) for ids in texts], device=place)
        start = (lengths - count).clamp_min(0)
        spans = [ids[s : s + count] for ids, s in zip(texts, start.tolist(), strict=True)]
        fed = torch.tensor([span + [0] * (count - len(span)) for span in spans], device=place)
        logits = self.model.score(fed, start, reach=self.slots).logits
        at = (lengths - 1 - start)[:, None, None].expand(-1, 1, logits.shape[2])
        token = logits.gather(1, at)[:, 0].argmax(-1)
        tokens = [token]
        for depth in range(gamma - 1):
            logits = self.model.score(token[:, None], lengths + depth, reach=self.slots).logits
            token = logits[:, 0].argmax(-1)
            tokens.append(token)
        drafted: list[list[int]] = torch.stack(tokens, dim=1).tolist()
        return drafted

    def _own_tokens(self, ids: Sequence[int]) -> list[int] | None:
        """The draft's tokens of a text in target tokens; None where it ends within a character, or where
        the draft's tokenizer knows a token that its weights have no room for."""
        text = self.target.decode(ids)
        own = [] if text.endswith(BROKEN) else list(self.own.bare(text))
        return own if own and max(own) < self.model.vocab_size else None

    def _target_tokens(self, committed: list[int], ids: list[int], new: list[int]) -> list[int]:
        """Translates `new`, which follows `ids` in draft tokens, to target tokens after `committed`."""
        end = next((i for i, token in enumerate(new) if token in self.ends), len(new))
        context = ids[-WINDOW:]
        text = self.own.decode(context + new[:end])[len(self.own.decode(context)) :]
        text = text.rstrip(BROKEN)
        before = self.target.decode(committed[-WINDOW:])
        whole = list(self.target.bare(before + text))
        # Tokens of the text before end where it ends, or else a word goes on across the border.
        border = (j for j in range(len(whole) + 1) if self.target.decode(whole[:j]) == before)
        cut = next(border, None)
        found = list(self.target.bare(text)) if cut is None else whole[cut:]
        if end < len(new) and self.target_end is not None:
            found.append(self.target_end)
        return found


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
