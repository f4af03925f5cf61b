"""The sections of the benchmark that check and that measure whole engines.

Each is a function of a `Bench` that returns a record for JSON; figures stand beside their equality.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.dimensions import Dimensions
from benchmarks.gpu.pair import Known, Pair, decode, differing, generate
from forescribe.speculative import Engine
from forescribe.speculative.device import Device
from forescribe.speculative.engine.schedule import schedule_for
from forescribe.speculative.requests import Mode

AGREEMENTS = (0.7, 0.8, 0.9)
"""Shares of tokens that published drafts predict. Here they are set by construction."""

Record = dict[str, Any]


class TimeIsUp(BaseException):
    """A section has taken longer than it may. An engine would keep an Exception as the fault of a request."""


@dataclass(eq=False)
class Bench:
    """What the sections share."""

    dimensions: Dimensions
    device: Device
    batches: tuple[int, ...]
    tokens: int  # per text, at most
    small: bool = False  # a rehearsal
    real: Sequence[str] = ("tiny.en",)  # published models, by name or folder
    voices: Sequence[Path] = ()  # recordings of people
    expected: Path = Path(os.devnull)  # where transcripts of a CPU are kept
    pair: Pair | None = None
    deadline: float = float("inf")
    copy_gb_per_s: float | None = None  # what `bandwidth` measured
    unequal: list[str] = field(default_factory=list)  # checks that failed
    record: Record = field(default_factory=dict)  # of the section: what it has, if it is stopped

    @property
    def models(self) -> Pair:
        """The pair. Raises where it has not been built."""
        if self.pair is None:
            raise RuntimeError("the models have not been built")
        return self.pair

    @property
    def left(self) -> float:
        """Seconds that the section still has."""
        return self.deadline - time.perf_counter()

    def figure(self, record: Record, name: str, measure: Callable[[], Record]) -> None:
        """Adds what `measure` finds to a record; says so where no time or memory is left for it, so that
        a smaller card still shows what fits."""
        if self.left < 0:
            record[name] = "no time left"
            return
        try:
            record[name] = measure()
        except torch.OutOfMemoryError:
            record[name] = "out of memory"
        except Exception:  # it costs itself
            record[name] = {"error": traceback.format_exc()}
        release(self.device)  # what it allocated is gone by now

    def check(self, name: str, found: dict[int, tuple[int, ...]], work: list[Known]) -> Record:
        """Counts texts that differ from those of the path."""
        wrong = differing(found, work)
        if wrong:
            self.unequal.append(f"{name}: {wrong} of {len(work)} texts differ")
        return {"texts": len(work), "differ": wrong}

    def work(self, count: int) -> list[Known]:
        """Requests for audio of all classes in turn, from encoder states that no encoder made."""
        kinds = [n % self.dimensions.classes for n in range(count)]
        return self.models.requests(kinds, self.models.states(kinds), self.tokens)


def build(bench: Bench) -> Record:
    """Builds the models."""
    began = time.perf_counter()
    bench.pair = Pair.build(bench.dimensions, bench.device, AGREEMENTS)
    bench.device.synchronize()
    sizes = {
        "target_bytes": weigh(bench.pair.target),
        "draft_bytes": weigh(bench.pair.drafts[AGREEMENTS[0]]),
    }
    return {"seconds": time.perf_counter() - began, **sizes}


def weigh(model: torch.nn.Module) -> int:
    """Bytes of a model's weights."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def equality(bench: Bench) -> Record:
    """Texts of engines and of transformers against those that the construction predicts."""
    pair = bench.models
    record = bench.record
    batch = bench.batches[min(2, len(bench.batches) - 1)]
    work = bench.work(3 * batch)
    first = work[: min(8, len(work))]
    record["transformers generate"] = transformers_generate(bench, first)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("lean, captured", {"gamma": 5, "agreement": 0.8}),
        ("lean, captured, plain", {}),
        ("lean, eager", {"gamma": 5, "agreement": 0.8, "captured": False}),
        ("lean, captured, cut draft head", {"gamma": 5, "agreement": 0.8, "cut": True}),
        ("modules, captured", {"gamma": 5, "agreement": 0.8, "decoder": "modules"}),
        ("modules, eager, plain", {"decoder": "modules", "captured": False}),
        ("lean, captured, gamma auto", {"agreement": 0.8, "schedule": automatic(pair, 0.8)}),
    ]
    for name, options in ways:
        made = partial(compared, bench, name, batch=batch, work=work, options=options)
        bench.figure(record, name, made)
    hot = [heated(known) for known in work]
    for name, captured in (("sampled, captured", True), ("sampled, eager", False)):
        options = {"gamma": 5, "agreement": 0.8, "captured": captured}
        made = partial(compared, bench, name, batch=batch, work=hot, options=options)
        bench.figure(record, name, made)
    return record


def compared(
    bench: Bench, name: str, *, batch: int, work: list[Known], options: dict[str, Any]
) -> Record:
    """The texts of one way against those of the path."""
    engine = bench.models.engine(batch, **options)
    return bench.check(name, decode(engine, work), work) | accepted(engine)


def heated(known: Known) -> Known:
    """The same request at a temperature so low that sampling can only choose the likeliest token."""
    return Known(replace(known.request, temperature=0.01), known.text)


def transformers_generate(bench: Bench, work: list[Known]) -> Record:
    """The texts of transformers' `generate`, and its time: eager, prompts and all rows up to the longest."""
    began = time.perf_counter()
    found = generate(bench.models, work)
    bench.device.synchronize()
    seconds = time.perf_counter() - began
    steps = max(k.request.max_new_tokens or 0 for k in work)
    return bench.check("generate", found, work) | {"ms_per_step": round(1000 * seconds / steps, 3)}


def automatic(pair: Pair, agreement: float) -> Any:
    """The schedule that chooses gamma by measured cost."""
    return schedule_for(None, pair.engine(1, gamma=1, agreement=agreement).drafter)


def accepted(engine: Engine) -> Record:
    """What rounds accepted; the rate at depth 1 is the agreement that was set, within chance."""
    stats = engine.stats
    depths = stats.acceptance_at_depth
    return {
        "agreement_measured": round(depths[0], 3) if depths else None,
        "tokens_per_row_round": round(stats.mean_acceptance_length, 2),
        "shapes_captured": len(engine.captured),
    }


def release(device: Device, *, thoroughly: bool = False) -> None:
    """Returns cached memory, so that the next engine can allocate; thoroughly also what cycles hold."""
    if thoroughly:
        gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()


def memory(bench: Bench) -> Record:
    """Bytes of an engine with its captured rounds, by batch; and what one more row takes."""
    record = bench.record
    for batch in (*bench.batches, 2 * max(bench.batches), 4 * max(bench.batches)):
        bench.figure(record, f"batch {batch}", partial(held, bench, batch))
    return record


def held(bench: Bench, batch: int) -> Record:
    """What is allocated once an engine has decoded, besides the models."""
    release(bench.device, thoroughly=True)
    before = bench.device.free_memory() or 0
    engine = bench.models.engine(batch, gamma=5, agreement=0.8, modes=(Mode(),))
    decode(engine, bench.work(min(batch, 8)))
    taken = before - (bench.device.free_memory() or 0)
    return {"bytes": taken, "bytes_per_row": taken // batch}


@torch.inference_mode()
def encode(pair: Pair, mel: torch.Tensor) -> list[torch.Tensor]:
    """Encoder states `[S, D]` of features `[B, M, F]`."""
    assert pair.encoder is not None
    return list(pair.encoder(mel).last_hidden_state)
