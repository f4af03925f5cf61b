"""One forward of the target at ragged lengths: time, and difference from transformers' modules.

Knows the `Model` protocol; nothing of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forescribe.speculative.models.engines import ModelEngine
from forescribe.speculative.protocols import Model
from forescribe.speculative.requests import Request

from .pairs import DecoderPair
from .turns import Timing, in_turns

SLOTS = 128
SPREAD = 3
"""Rows of a batch differ in length by this many tokens, so that they are ragged."""


@dataclass(frozen=True)
class ForwardRow:
    """One way to compute one shape; milliseconds are the best of all turns."""

    pair: str
    engine: ModelEngine
    batch: int
    nodes: int
    threads: int
    ms: float
    argmax_equal: int
    positions: int
    largest_difference: float  # of a logit, from the modules' with the same number of threads


@dataclass(frozen=True)
class Place:
    """A forward: `tokens [B, N]` from slot `start [B]` on, and the slots that are read."""

    tokens: Tensor
    start: Tensor
    reach: int


def texts_of(pair: DecoderPair, written: Mapping[object, Sequence[int]]) -> list[list[int]]:
    """The prompt and the tokens of each request, in the order of the requests."""
    return [[*r.prompt, *written[r.tag]] for r in pair.requests]


def filled(model: Model, requests: Sequence[Request], texts: Sequence[Sequence[int]]) -> Model:
    """The model with `texts` read, one row for each."""
    model.allocate(len(texts), SLOTS)
    length = max(map(len, texts))
    tokens = torch.tensor([[*text, *[0] * (length - len(text))] for text in texts])
    model.prefill(torch.arange(len(texts)), tokens, [r.encoder_states for r in requests])
    return model


def measure(
    pair: DecoderPair,
    name: str,
    engines: Sequence[ModelEngine],
    written: Mapping[object, Sequence[int]],
    *,
    batch: int,
    nodes: Sequence[int],
    threads: Sequence[int],
    turns: int,
) -> list[ForwardRow]:
    """Times every engine, number of nodes and number of threads in turns."""
    texts = texts_of(pair, written)
    chosen = [i % len(texts) for i in range(batch)]
    most = SLOTS - max(nodes)
    requests = [pair.requests[i] for i in chosen]
    rows = [texts[i][: most - SPREAD * (n % 8)] for n, i in enumerate(chosen)]
    places = {count: _place(rows, count) for count in nodes}
    models = {engine: filled(pair.target(engine), requests, rows) for engine in engines}
    jobs: dict[tuple[ModelEngine, int, int], Callable[[], Tensor]] = {
        (engine, count, used): _job(models[engine], places[count])
        for count in nodes
        for used in threads
        for engine in engines
    }
    timings = in_turns(jobs, lambda key: key[2], turns)
    return [
        _row(name, batch, key, timing, timings[engines[0], key[1], key[2]])
        for key, timing in timings.items()
    ]


def _place(rows: Sequence[Sequence[int]], nodes: int) -> Place:
    """The last tokens of each row once more: a forward that may be repeated."""
    count = min(nodes, *map(len, rows))
    start = torch.tensor([len(row) - count for row in rows])
    tokens = torch.tensor([list(row[len(row) - count :]) for row in rows])
    reach = -(-max(map(len, rows)) // 8) * 8
    return Place(tokens, start, reach)


def _job(model: Model, place: Place) -> Callable[[], Tensor]:
    return lambda: model.score(place.tokens, place.start, reach=place.reach).logits


def _row(
    name: str, batch: int, key: tuple[ModelEngine, int, int], timing: Timing, oracle: Timing
) -> ForwardRow:
    engine, nodes, threads = key
    same = timing.output.argmax(-1) == oracle.output.argmax(-1)
    return ForwardRow(
        name,
        engine,
        batch,
        nodes,
        threads,
        timing.ms,
        int(same.sum()),
        same.numel(),
        float((timing.output - oracle.output).abs().max()),
    )
