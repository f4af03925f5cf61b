"""Decoding alone, without an encoder: what large-v3 costs on a CPU.

Plain, with drafts, and with a draft head of the frequent tokens; figures beside the texts' equality.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.gpu.pair import Pair, decode
from benchmarks.gpu.sections import Bench, Record, accepted, weigh
from forescribe.speculative.errors import LoadError
from forescribe.speculative.native.library import load

AGREEMENT = 0.8
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gamma 0", {}),
    ("gamma 5", {"gamma": 5, "agreement": AGREEMENT}),
    ("gamma 5, cut draft head", {"gamma": 5, "agreement": AGREEMENT, "cut": True}),
)


def not_built() -> bool:
    """Whether this machine has no native kernels."""
    try:
        load()
    except LoadError:
        return True
    return False


def decoding(bench: Bench) -> Record:
    """Milliseconds per token by batch; each row writes up to `tokens` tokens."""
    began = time.perf_counter()
    bench.pair = Pair.build(bench.dimensions, bench.device, (AGREEMENT,), encoder=False)
    decoder = "lean" if bench.device.kind != "cpu" or not_built() else "native"
    record: Record = {"build_s": time.perf_counter() - began, "bytes": weigh(bench.pair.target)}
    record["decoder"] = decoder
    for batch in bench.batches:
        work = bench.work(batch)
        for name, options in WAYS:
            way = f"batch {batch}, {name}"
            if bench.left < 0:
                record[way] = "no time left"
                continue
            engine = bench.pair.engine(batch, decoder=decoder, **options)
            began = time.perf_counter()
            found = decode(engine, work)
            seconds = time.perf_counter() - began
            tokens = sum(map(len, found.values()))
            stages = {stage: round(s, 2) for stage, s in engine.stats.seconds.items()}
            decoding_s = seconds - stages.get("prefill", 0.0)
            record[way] = bench.check(way, found, work) | {
                "ms_per_token": 1000 * decoding_s / tokens,
                "tokens": tokens,
                "stages_s": stages,
                **accepted(engine),
            }
            print(way, record[way], flush=True)
    return record
