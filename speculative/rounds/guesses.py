"""Guesses: how answers may begin, verified together with their prompts.

One forward over prompt and guess takes the place of the rounds that would have written the same tokens:
greedy match at every position, under the logits processors, as in a round. The rows are a copy of those
admitted, so nothing depends on the other rows. Knows rows and rounds; nothing of requests or slots.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..drafts import Draft
from ..requests import Mode, Source
from ..rows import Rows, SamplingRows
from .accept import GreedyMatch
from .counters import Counters
from .processing import Parts
from .round import checked, commit, judge

KEPT = ("tokens", "lengths", "active", "logprobs", "sources", "ranked", "ranked_logprobs")
"""State of a row that a guess changes. Rounds and drafts are not counted: there were none."""

_Record = TypeVar("_Record", Rows, SamplingRows)


def verify(
    rows: Rows,
    index: Tensor,
    parts: Parts,
    guess: Tensor,
    count: Tensor,
    logits: Tensor,
    mode: Mode,
) -> None:
    """Appends to the rows `index [K]` the longest beginning of `guess [K, G]` that the target writes too, and
    the token that it writes next. The rows are at temperature 0 and hold their prompts. `count [K]` tokens of
    a guess are meant; a row with none is left alone, and the others become active. `logits [K, G + 1, V]`
    follow the prompt's last token and each one of the guess."""
    some = _selected(rows, index)
    some.sampling, some.mode = _selected(rows.sampling, index), mode
    some.active = (count > 0) & (some.lengths < some.limits)
    some.gamma = torch.full_like(some.gamma, guess.shape[1])
    greedy = replace(parts, drafter=None, rule=GreedyMatch())
    draft = checked(some, greedy, Draft(guess, count), guess.shape[1])
    tokens = torch.cat([some.pending(), draft.tokens], dim=1)
    judged, verdict = judge(some, greedy, draft, tokens, logits)
    commit(some, greedy, draft, judged, verdict, Counters.zeros(guess.shape[1], index.device))
    some.sources = _sources(some, rows.lengths[index])
    meant = count > 0
    for name in KEPT:
        old, new = getattr(rows, name), getattr(some, name)
        shown = meant.view(-1, *[1] * (new.dim() - 1))
        old[index] = torch.where(shown, new, old[index])


def _sources(rows: Rows, begin: Tensor) -> Tensor:
    """Sources `[K, T]` of tokens written from slot `begin [K]` on: the last one is the target's own."""
    slots = torch.arange(rows.sources.shape[1], device=begin.device)
    last = (rows.lengths - 1)[:, None]
    guessed = (slots >= begin[:, None]) & (slots <= last) & (rows.sources == Source.ACCEPTED)
    own = (slots == last) & (last >= begin[:, None]) & ~guessed
    sources = torch.where(guessed, int(Source.GUESSED), rows.sources)
    return torch.where(own, int(Source.PLAIN), sources).to(rows.sources.dtype)


def _selected(record: _Record, index: Tensor) -> _Record:
    """A copy of some rows."""
    values: dict[str, Any] = {f.name: getattr(record, f.name) for f in fields(record)}
    tensors: dict[str, Any] = {n: v[index] for n, v in values.items() if isinstance(v, Tensor)}
    return replace(record, **tensors)
