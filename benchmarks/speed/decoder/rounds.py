"""Whole rounds through the engine: time of a round and of a token, and equality to plain decoding.

Knows the engine; nothing of how a forward is computed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from forescribe.speculative import Engine, Fixed, ModelDrafter, Stats, choose
from forescribe.speculative.drafters.model_drafter import confidence_for
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.models.engines import ModelEngine

from .pairs import DecoderPair

ROUND = ("draft", "score", "accept")
"""The stages of a round; a prompt's prefill is a stage of its own."""

Written = dict[object, tuple[int, ...]]


@dataclass(frozen=True)
class RoundRow:
    """One engine with one setting; times are medians over the turns."""

    pair: str
    engine: ModelEngine
    batch: int
    gamma: int | None  # None: chosen by the engine
    threads: int
    ms_per_round: float
    tokens_per_round: float  # of all rows
    ms_per_token: float
    prefill_ms: float  # per text
    texts_equal: int
    texts: int


@dataclass(frozen=True)
class _Setting:
    engine: ModelEngine
    gamma: int | None
    threads: int


def decoded(
    pair: DecoderPair, engine: ModelEngine, batch: int, gamma: int | None
) -> tuple[Stats, Written]:
    """Decodes all requests, repeated until they fill the batch twice, with a new engine."""
    drafter = None
    if gamma != 0:
        confidence = confidence_for(gamma, choose("cpu"))
        drafter = ModelDrafter(pair.draft(engine), confidence=confidence)
    core = Engine(
        pair.target(engine),
        drafter,
        batch=batch,
        eos=pair.eos,
        schedule=schedule_for(None, drafter) if gamma is None else Fixed(gamma),
        processors=pair.processors,
    )
    repeats = max(1, -(-2 * batch // len(pair.requests)))
    work = [replace(r, tag=(turn, r.tag)) for turn in range(repeats) for r in pair.requests]
    written = {result.request.tag: result.tokens for result in core.run(work)}
    return core.stats, written


def measure(
    pair: DecoderPair,
    name: str,
    engines: Sequence[ModelEngine],
    plain: Mapping[object, Sequence[int]],
    *,
    batch: int,
    gammas: Sequence[int | None],
    threads: Sequence[int],
    turns: int,
) -> list[RoundRow]:
    """Decodes with every engine, gamma and number of threads in turns; `plain` is what plain decoding by
    transformers' modules has written, by the requests' tags."""
    settings = [_Setting(e, g, t) for g in gammas for t in threads for e in engines]
    found: dict[_Setting, list[tuple[Stats, Written]]] = {setting: [] for setting in settings}
    for _ in range(turns):
        for setting in settings:
            torch.set_num_threads(setting.threads)
            found[setting].append(decoded(pair, setting.engine, batch, setting.gamma))
    return [_row(name, batch, setting, runs, plain) for setting, runs in found.items()]


def _row(
    name: str,
    batch: int,
    setting: _Setting,
    runs: Sequence[tuple[Stats, Written]],
    plain: Mapping[object, Sequence[int]],
) -> RoundRow:
    def median_ms(*stages: str, per: int) -> float:
        return 1000 * statistics.median(sum(s.seconds[x] for x in stages) / per for s, _ in runs)

    stats = runs[0][0]
    texts = [(tag, tokens) for _, written in runs for tag, tokens in written.items()]
    equal = sum(tuple(plain[origin(tag)]) == tuple(tokens) for tag, tokens in texts)
    return RoundRow(
        pair=name,
        engine=setting.engine,
        batch=batch,
        gamma=setting.gamma,
        threads=setting.threads,
        ms_per_round=median_ms(*ROUND, per=stats.rounds),
        tokens_per_round=stats.emitted / stats.rounds,
        ms_per_token=median_ms(*ROUND, per=stats.emitted),
        prefill_ms=median_ms("prefill", per=len(runs[0][1])),
        texts_equal=equal,
        texts=len(texts),
    )


def origin(tag: object) -> object:
    """The tag of the request that `decoded` has repeated."""
    assert isinstance(tag, tuple)
    return tag[1]
