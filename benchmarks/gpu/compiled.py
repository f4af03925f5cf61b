"""Rounds through `torch.compile`, beside those that are only captured; both read every slot, in one shape.

Not a section that runs by default: a shape of large-v3's dimensions may take minutes to compile.
"""

from __future__ import annotations

import time
from functools import partial

import torch

from benchmarks.gpu.pair import decode
from benchmarks.gpu.sections import Bench, Record, accepted
from benchmarks.gpu.timings import active_rounds, best_ms
from forescribe.speculative.graphs.runner import Capture, Function, function_of_its_own
from forescribe.speculative.graphs.shapes import ShapeSet

BACKEND = "inductor"
BATCHES = (1, 8)
GAMMAS = (0, 5)


class CompiledCapture:
    """Compiles a round as one graph, which must have no break, and captures what came out where the device
    captures. `seconds` is the time of the first runs."""

    def __init__(self, inner: Capture | None) -> None:
        self._inner, self.seconds = inner, 0.0

    def __call__(self, fn: Function) -> Function:
        fn()  # what it makes at its first call must not be a part of the graph
        began = time.perf_counter()
        made: Function = torch.compile(
            function_of_its_own(fn), backend=BACKEND, fullgraph=True, dynamic=False
        )
        made()
        if self._inner is not None:
            made = self._inner(made)
        self.seconds += time.perf_counter() - began
        return made


def compiled(bench: Bench) -> Record:
    """Milliseconds of a round both ways, beside the equality of whole texts."""
    record: Record = {}
    for batch in (b for b in BATCHES if b <= max(bench.batches)):
        for gamma in GAMMAS:
            for way in ("captured", "compiled"):
                name = f"{way}, batch {batch}, gamma {gamma}"
                bench.figure(record, name, partial(one_way, bench, name, batch, gamma))
    return record


def one_way(bench: Bench, name: str, batch: int, gamma: int) -> Record:
    """One shape: decodes texts, and then times rounds of rows that never end."""
    engine = bench.models.engine(batch, gamma=gamma, agreement=0.8)
    runner, work = engine._runner, bench.work(2 * batch)
    runner._shapes = ShapeSet((batch,), (gamma,), runner._shapes.modes, (engine.rows.scratch,))
    capture = CompiledCapture(runner._capture)
    if name.startswith("compiled"):
        runner._capture = capture
    found = bench.check(name, decode(engine, work), work) | accepted(engine)
    if name.startswith("compiled"):
        found["compile_s"] = round(capture.seconds, 1)
    if (
        engine.faults
    ):  # a round that fails is repeated without a graph: its text is right, its time is not
        raise RuntimeError(f"{name}: {engine.faults[-1].__cause__}")
    each = 8 if bench.device.kind == "cuda" else 1
    run = active_rounds(engine, gamma, bench)
    return found | {"ms": best_ms(bench, lambda: [run() for _ in range(each)], each=each)}
