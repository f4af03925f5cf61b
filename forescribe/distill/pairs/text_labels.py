"""Labels of prompts: what the target writes, half of it greedy and half at temperature 1.

As both are used, and what a target writes at one temperature is no measure of the other. Prompts are
answered in groups; each group is a file of labels. Knows prompts and rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from forescribe.asr.batch.interrupts import Stop
from forescribe.speculative.requests import Finish, Request, Result
from forescribe.text.generator import TextGenerator

from ..labels.label_batches import collate
from ..labels.label_rows import LabelRow
from ..labels.label_store import LabelStore
from ..labels.sparse_distribution import SparseDistribution
from .draft_pair import Hook
from .speech_labels import blank, with_wanted
from .text_pair import TextPair

GROUP = 64
"""Prompts of a file of labels."""

TOGETHER = 16
"""Texts whose distributions are computed at a time."""

PASSES = 2
"""Times that a prompt is answered at most: once greedily, once by drawing."""


@dataclass(frozen=True)
class TextPrompt:
    """Token ids to continue, where they are from, and which kind of text it is."""

    tokens: tuple[int, ...]
    source: str
    kind: str


def label_prompts(
    generator: TextGenerator,
    pair: TextPair,
    store: LabelStore,
    prompts: Sequence[TextPrompt],
    *,
    seed: int,
    until: Callable[[], bool],
    stop: Stop,
    hook: Hook,
) -> None:
    """Label prompts, group by group, until all have been answered `PASSES` times, the time is over or an end
    is requested. Raises OutputError."""
    groups = [
        (number, start) for number in range(PASSES) for start in range(0, len(prompts), GROUP)
    ]
    began = time.monotonic()
    for done, (number, start) in enumerate(groups):
        hook("labels", done * GROUP, len(groups) * GROUP, f"{time.monotonic() - began:.0f} s")
        if until() or stop.requested:
            return
        chosen = prompts[start : start + GROUP]
        key = store.key(seed, number, start, *(" ".join(map(str, p.tokens)) for p in chosen))
        if not store.has(key):
            store.add(key, answered(generator, pair, chosen, seed, number, start))
    hook("labels", len(groups) * GROUP, len(groups) * GROUP, "")


def answered(
    generator: TextGenerator,
    pair: TextPair,
    prompts: Sequence[TextPrompt],
    seed: int,
    number: int,
    start: int,
) -> list[LabelRow]:
    """Rows of prompts from number `start` on: every second one greedily, the others at temperature 1; the
    other way round in the next pass."""
    requests = [
        Request(
            prompt=prompt.tokens,
            max_new_tokens=pair.longest,
            temperature=float((start + place + number) % 2),
            seed=hash_of(seed, number, start + place),
            tag=place,
        )
        for place, prompt in enumerate(prompts)
    ]
    results = sorted(generator.engine.run(requests), key=lambda r: int(r.request.tag))
    rows = [
        _row(prompts[int(result.request.tag)], result)
        for result in results
        if result.finish in (Finish.STOP, Finish.LENGTH) and result.tokens
    ]
    rows.sort(key=lambda row: len(row.tokens))
    found: list[LabelRow] = []
    for begin in range(0, len(rows), TOGETHER):
        found += _labelled(pair, rows[begin : begin + TOGETHER])
    return found


def hash_of(*numbers: int) -> int:
    """A seed for one text."""
    value = 0
    for number in numbers:
        value = (value * 1_000_003 + number + 1) % (1 << 62)
    return value


def _row(prompt: TextPrompt, result: Result) -> LabelRow:
    return LabelRow(
        prompt.source,
        prompt.kind,
        (*prompt.tokens, *result.tokens),
        len(prompt.tokens),
        result.request.temperature == 0,
        blank(len(result.tokens)),
    )


def _labelled(pair: TextPair, rows: Sequence[LabelRow]) -> list[LabelRow]:
    batch = collate(rows).to(pair.device.torch)
    begins = torch.tensor([row.begin for row in rows], device=pair.device.torch)
    return with_wanted(rows, SparseDistribution.of(pair.target_logits(batch, begins)))
