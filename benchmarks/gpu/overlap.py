"""The encoder beside rounds: what a stream of its own gains, and that the texts stay equal."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.gpu import construction
from benchmarks.gpu.sections import Bench, Record, encode
from forescribe.speculative import Engine
from forescribe.speculative.graphs.snapshots import SideStream
from forescribe.speculative.requests import Mode

WINDOWS = 16
"""Windows that are encoded at once, at most."""


def overlap(bench: Bench) -> Record:
    """Seconds of encoding a batch of windows, of decoding another one, and of both beside each other."""
    record: Record = {}
    for batch in reversed(bench.batches):
        bench.figure(record, f"batch {batch}", partial(beside, bench, batch))
    return record


def beside(bench: Bench, batch: int) -> Record:
    """One batch size. Where the device has no streams, the encoder runs first."""
    pair, d = bench.models, bench.dimensions
    kinds = [n % d.classes for n in range(min(batch, WINDOWS))]
    mel = construction.features(d, kinds, bench.device.torch, bench.device.dtype)
    engine = pair.engine(batch, gamma=5, agreement=0.8, modes=(Mode(),))
    engine.warm_up()
    side, work = SideStream(bench.device), bench.work(batch)
    side.run(lambda: encode(pair, mel))  # the first one chooses kernels

    def timed(run: Callable[[], object]) -> float:
        bench.device.synchronize()
        began = time.perf_counter()
        run()
        bench.device.synchronize()
        return time.perf_counter() - began

    def decode(found: dict[int, tuple[int, ...]], encoding: bool) -> None:
        for known in work:
            engine.submit(known.request)
        advance = partial(step, engine, found)
        if encoding:
            side.run(lambda: encode(pair, mel), advance)
        while advance():
            pass

    decode({}, False)
    alone: dict[int, tuple[int, ...]] = {}
    both: dict[int, tuple[int, ...]] = {}
    encode_s = timed(lambda: side.run(lambda: encode(pair, mel)))
    decode_s = timed(lambda: decode(alone, False))
    both_s = timed(lambda: decode(both, True))
    bench.check(f"overlap, batch {batch}, alone", alone, work)
    return bench.check(f"overlap, batch {batch}", both, work) | {
        "encode_s": encode_s,
        "decode_s": decode_s,
        "both_s": both_s,
        "gain": (encode_s + decode_s) / both_s,
    }


def step(engine: Engine, found: dict[int, tuple[int, ...]]) -> bool:
    """One step, whose results are added; False where nothing is left."""
    for result in engine.step():
        if result.error is not None:
            raise result.error
        found[result.request.tag] = result.tokens
    return not engine.idle
