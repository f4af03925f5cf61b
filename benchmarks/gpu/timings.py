"""The sections that time parts: copies, encoder, rounds; and all of them together.

Each is a function of a `Bench` that returns a record for JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu import construction
from benchmarks.gpu.dimensions import Dimensions
from benchmarks.gpu.pair import Known, decode
from benchmarks.gpu.sections import Bench, Record, automatic, encode, weigh
from forescribe.asr.model.presets import BEAMS
from forescribe.speculative import Engine
from forescribe.speculative.engine.schedule import BUCKETS, expected_tokens
from forescribe.speculative.requests import Beams, Mode
from forescribe.speculative.rounds.beams import BeamRows

COPIED = 1 << 30
"""Bytes of the copy that bandwidth is measured with; a CPU copies an eighth of it."""

LEVELS = (0, 1, 2, 4)
"""Of trees behind beams."""

LARGEST_PART = 16
"""Windows that are encoded or admitted at once: products of more are no more efficient."""


def best_ms(bench: Bench, run: Callable[[], object], *, each: int = 1, least: int = 3) -> float:
    """Milliseconds of the fastest of a few calls that make `each` equal steps."""
    run()
    bench.device.synchronize()
    times: list[float] = []
    until = time.perf_counter() + 0.25
    while len(times) < least or (time.perf_counter() < until and len(times) < 20):
        began = time.perf_counter()
        run()
        bench.device.synchronize()
        times.append(time.perf_counter() - began)
    return 1000 * min(times) / each


def bandwidth(bench: Bench) -> Record:
    """Bytes per second of a copy on the device, reads and writes counted."""
    size = COPIED if bench.device.kind == "cuda" else COPIED // 8
    source = torch.empty(size, dtype=torch.uint8, device=bench.device.torch)
    target = torch.empty_like(source)
    ms = best_ms(bench, lambda: target.copy_(source))
    bench.copy_gb_per_s = 2 * size / ms / 1e6
    return {"copied_bytes": size, "ms": ms, "gb_per_s": bench.copy_gb_per_s}


def encoder(bench: Bench) -> Record:
    """Windows per second of the encoder, by batch."""
    record = bench.record
    for batch in bench.batches:
        if batch <= LARGEST_PART:
            bench.figure(record, f"batch {batch}", partial(encoded, bench, batch))
    return record


def encoded(bench: Bench, batch: int) -> Record:
    """Times the encoder over a batch of windows."""
    d = bench.dimensions
    kinds = [n % d.classes for n in range(batch)]
    mel = construction.features(d, kinds, bench.device.torch, bench.device.dtype)
    ms = best_ms(bench, lambda: encode(bench.models, mel))
    with torch.inference_mode():
        modules = best_ms(bench, lambda: bench.models.target.model.encoder(mel))
    return {
        "ms": ms,
        "transformers_ms": modules,
        "ms_per_window": ms / batch,
        "times_real_time": 1000 * d.window_s * batch / ms,
    }


def rounds(bench: Bench) -> Record:
    """Milliseconds of a round by batch and gamma, largest batch first; and what they would give at each
    agreement, by the formula of independent drafts."""
    record = bench.record
    ways: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
        ("lean, captured", {}, BUCKETS),
        ("lean, captured, cut draft head", {"cut": True}, BUCKETS[1:]),
        ("lean, eager", {"captured": False}, (0, 5)),
        ("modules, captured", {"decoder": "modules"}, (0, 5)),
    ]
    for way, options, gammas in ways:
        for batch in reversed(bench.batches):
            for gamma in gammas:
                if bench.left < 0:
                    record.setdefault("no time left", []).append(f"{way}, {batch}, {gamma}")
                    continue
                name = f"{way}, batch {batch}, gamma {gamma}"
                bench.figure(record, name, partial(one_round, bench, batch, gamma, options))
    return record


def beams(bench: Bench) -> Record:
    """Milliseconds of a round of five beams by batch and levels of the trees behind them, and whether the
    texts are those without. The beams of constructed models are no people's, so how many steps a round would
    take is asked of published ones: docs/methods/beams.md."""
    record, known = bench.record, dict[int, tuple[int, ...]]()
    work = [
        replace(each, request=replace(each.request, beams=Beams(BEAMS))) for each in bench.work(6)
    ]
    for batch in (batch for batch in bench.batches if batch <= LARGEST_PART):
        for levels in LEVELS:
            name = f"batch {batch}, levels {levels}"
            bench.figure(record, name, partial(one_search, bench, batch, levels))
            if batch == bench.batches[0] and f"{levels} levels" not in record:
                engine = bench.models.engine(2, agreement=0.8, levels=levels)
                found = decode(engine, work)
                known = known or found
                told = [Known(each.request, known[n]) for n, each in enumerate(work)]
                record[f"{levels} levels"] = bench.check(f"beams, {levels} levels", found, told) | {
                    "steps_per_row_round": round(engine.stats.mean_acceptance_length, 2)
                }
    return record


def one_search(bench: Bench, batch: int, levels: int) -> Record:
    """Times a shape on rows of five beams, all active."""
    engine = bench.models.engine(batch, agreement=0.8, levels=levels)
    run = active_rounds(engine, levels, bench, Beams(BEAMS))
    each = 8 if bench.device.kind == "cuda" else 1
    return {"ms": best_ms(bench, lambda: [run() for _ in range(each)], each=each)}


def one_round(bench: Bench, batch: int, gamma: int, options: dict[str, Any]) -> Record:
    """Times a shape on rows that are all active, eight rounds behind each other."""
    engine = bench.models.engine(batch, gamma=gamma, agreement=0.8, **options)
    run = active_rounds(engine, gamma, bench)
    each = 8 if bench.device.kind == "cuda" else 1
    ms = best_ms(bench, lambda: [run() for _ in range(each)], each=each)
    moved = bytes_of_a_round(bench, batch, gamma)
    record = {"ms": ms, "bytes": moved, "gb_per_s": moved / ms / 1e6}
    if bench.copy_gb_per_s is not None:
        record["share_of_copy"] = record["gb_per_s"] / bench.copy_gb_per_s
    if gamma:
        for agreement in (0.7, 0.8, 0.9):
            written = batch * expected_tokens(agreement, gamma)
            record[f"ms_per_token_at_{agreement}"] = ms / written
    else:
        record["ms_per_token"] = ms / batch
    return record


def active_rounds(
    engine: Engine, gamma: int, bench: Bench, beams: Beams | None = None
) -> Callable[[], object]:
    """Rounds of rows that never end: their lengths are set back before each."""
    with torch.inference_mode(), bench.device.guard():
        for known in bench.work(engine.batch):
            engine.submit(replace(known.request, beams=beams))
        lane = engine._texts if beams is None else engine._groups[beams.size]
        lane._admit()
        if gamma and lane.reader is not None:
            lane.reader.read()
    rows, runner = lane.table.rows, lane.runner
    reach = 128 if beams is None else min(128 * (1 + beams.size), rows.scratch)
    shape = runner._shapes.pick(engine.batch, gamma, Mode(), reach)

    @torch.inference_mode()
    def run() -> None:
        if isinstance(rows, BeamRows):
            rows.sums.zero_()
            rows.ended.zero_()
        rows.lengths.fill_(100 if bench.dimensions.positions > 200 else 20)
        rows.limits.fill_(bench.dimensions.positions)
        rows.active.fill_(True)
        runner._launch(shape, drafter=True)()

    return run


def bytes_of_a_round(bench: Bench, batch: int, gamma: int) -> int:
    """Bytes that a round must read: the decoders' weights, and the keys and values of every row."""
    d, pair = bench.dimensions, bench.models
    size = pair.device.dtype.itemsize
    encoder_bytes = weigh(pair.target.model.encoder)
    table = d.vocab * d.width * size  # of the embedding, of which a round reads a few rows
    target = weigh(pair.target) - encoder_bytes - table
    draft = weigh(pair.drafts[0.8]) - table
    return (
        target
        + gamma * draft
        + batch
        * (row_bytes(d, d.decoder_layers, size) + gamma * row_bytes(d, d.draft_layers, size))
    )


def row_bytes(d: Dimensions, layers: int, size: int) -> int:
    """Bytes of keys and values that a forward reads for a row: encoder states, and 128 tokens."""
    return 2 * layers * d.width * (d.frames + 128) * size


def end_to_end(bench: Bench) -> Record:
    """Features to texts of two windows for each row, by batch and agreement."""
    record = bench.record
    for batch in reversed(bench.batches):
        for gamma, agreement in ((0, None), (5, 0.7), (5, 0.8), (5, 0.9), (None, 0.8)):
            name = (
                f"batch {batch}, gamma {'auto' if gamma is None else gamma}, agreement {agreement}"
            )
            bench.figure(record, name, partial(whole_way, bench, name, batch, gamma, agreement))
    return record


def whole_way(
    bench: Bench, name: str, batch: int, gamma: int | None, agreement: float | None
) -> Record:
    """All windows as fast as they go; their features are encoded as slots become free."""
    pair, d = bench.models, bench.dimensions
    engine = pair.engine(
        batch,
        gamma=gamma or 0,
        schedule=None if gamma is not None else automatic(pair, agreement or 0.8),
        agreement=agreement,
        modes=(Mode(),),
    )
    engine.warm_up()
    work = bench.work(2 * batch)
    kinds = [n % d.classes for n in range(len(work))]
    mel = construction.features(d, kinds, bench.device.torch, bench.device.dtype)

    def encoded_work() -> Iterator[Known]:
        for first in range(0, len(work), LARGEST_PART):
            part = slice(first, first + LARGEST_PART)
            for known, states in zip(work[part], encode(pair, mel[part]), strict=True):
                yield Known(replace(known.request, encoder_states=states), known.text)

    for _ in range(2):  # a prefill is captured when its shape comes again
        decode(engine, encoded_work())
    before = engine.stats
    bench.device.synchronize()
    began = time.perf_counter()
    found = decode(engine, encoded_work())
    wall_s, stats = time.perf_counter() - began, engine.stats - before
    return bench.check(f"end to end, {name}", found, work) | {
        "times_real_time": round(len(work) * d.window_s / wall_s, 1),
        "tokens_per_s": round(sum(map(len, found.values())) / wall_s, 1),
        "wall_s": round(wall_s, 3),
        "tokens_per_row_round": round(stats.mean_acceptance_length, 2),
        "stages_s": {stage: round(s, 3) for stage, s in stats.seconds.items()},
    }
