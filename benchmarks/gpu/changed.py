"""Equality of what has changed in code of devices since the last card (2026-11-26), and is not in `equality`.

Captured beams; prompts with previous text, which prefills of other shapes read; guesses; drafts of n-grams; a
capture that fails; captures while another thread allocates; and that no round waits for the device.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.pair import Known, decode
from benchmarks.gpu.sections import Bench, Record, accepted, compared
from forescribe.speculative import NgramDrafter
from forescribe.speculative.engine.runner import RoundRunner
from forescribe.speculative.requests import Beams

DRAFTS: dict[str, Any] = {"gamma": 5, "agreement": 0.8}
BEAMS = 5


def changed(bench: Bench) -> Record:
    """Texts against those that the construction predicts."""
    record = bench.record
    batch = bench.batches[min(2, len(bench.batches) - 1)]
    work = bench.work(3 * batch)
    check = partial(compared, bench, batch=batch)
    ways: dict[str, Callable[[], Record]] = {
        "five beams": partial(beams, bench, "five beams", batch, work),
        "five beams, not captured": partial(
            beams, bench, "five beams, not captured", batch, work, refused=True
        ),
        "previous text": partial(
            check, "previous text", work=behind_text(bench, work), options=DRAFTS
        ),
        "guesses": partial(check, "guesses", work=guessed(work), options=DRAFTS),
        "n-grams": partial(
            check, "n-grams", work=work, options={"gamma": 4, "drafter": NgramDrafter()}
        ),
        "prefills that are not captured": partial(not_captured, bench, batch, work),
        "memory is taken meanwhile": partial(disturbed, bench, batch, work),
        "no round waits": partial(unsynchronised, bench, batch, work),
    }
    for name, way in ways.items():
        bench.figure(record, name, way)
    return record


def behind_text(bench: Bench, work: list[Known]) -> list[Known]:
    """The same texts behind up to half of the positions of previous text."""
    draw, tokens = random.Random(5), bench.models.path.tokens
    most = bench.dimensions.positions // 2 - bench.tokens // 2
    made = []
    for known in work:
        before = tuple(draw.choices(tokens[:-1], k=draw.randrange(1, most)))
        prompt = (*before, *known.request.prompt)
        made.append(Known(replace(known.request, prompt=prompt), known.text))
    return made


def guessed(work: list[Known]) -> list[Known]:
    """Whole texts, halves, and halves that end with a wrong token, in turn."""
    made = []
    for n, (known, other) in enumerate(zip(work, work[1:] + work[:1], strict=True)):
        half = known.text[: len(known.text) // 2]
        guess = (known.text[:-1], half, (*half, other.text[0]))[n % 3]
        made.append(Known(replace(known.request, guess=guess), known.text))
    return made


def beams(
    bench: Bench, name: str, batch: int, work: list[Known], *, refused: bool = False
) -> Record:
    """The best of five beams is the path: every step's margin is far above that of the others."""
    engine = bench.models.engine(batch)
    if refused and engine._capture is not None:
        engine._capture = refuse
    asked = [Known(replace(k.request, beams=Beams(BEAMS)), k.text) for k in work]
    found, stats = decode(engine, asked), engine.stats
    return bench.check(name, found, work) | {
        "rounds": stats.rounds,
        "ms_per_round": 1000 * stats.seconds["score"] / stats.rounds,
        "shapes_captured": len(engine.captured),
        "faults": stats.faults,
    }


def refuse(fn: Callable[[], None]) -> Callable[[], None]:
    """A capture that finds no memory."""
    raise torch.OutOfMemoryError("refused, to see what follows")


def not_captured(bench: Bench, batch: int, work: list[Known]) -> Record:
    """Prefills whose capture fails run operator by operator."""
    engine = bench.models.engine(batch, **DRAFTS)
    prefills = engine._texts.admission.prefills
    if prefills is not None:
        prefills._capture = refuse
    found = decode(engine, work)
    refusals = 0 if prefills is None else len(prefills.refused)
    if prefills is not None and not refusals:
        bench.unequal.append("no prefill was to be captured twice: nothing was refused")
    return bench.check("prefills that are not captured", found, work) | {"refused": refusals}


def disturbed(bench: Bench, batch: int, work: list[Known]) -> Record:
    """Captures and rounds while another thread allocates and computes, as a diarizer does."""
    engine = bench.models.engine(batch, **DRAFTS)
    with computing(bench) as turns:
        engine.warm_up()
        found = decode(engine, work)
    if not turns[0]:
        bench.unequal.append("the other thread did nothing")
    record = bench.check("memory is taken meanwhile", found, work) | accepted(engine)
    return record | {"turns_of_the_other_thread": turns[0]}


@contextmanager
def computing(bench: Bench) -> Iterator[list[int]]:
    """Another thread that allocates, multiplies and frees, on a stream of its own."""
    ended, turns, place = threading.Event(), [0], bench.device.torch

    def run() -> None:
        side = torch.cuda.stream(torch.cuda.Stream()) if place.type == "cuda" else nullcontext()
        with side:
            while not ended.is_set():
                size = 64 + 64 * (turns[0] % 7)
                made = torch.ones((size, size), device=place)
                made = made @ made
                turns[0] += 1
                time.sleep(0.001)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
    finally:
        ended.set()
        thread.join()


def unsynchronised(bench: Bench, batch: int, work: list[Known]) -> Record:
    """torch raises at whatever waits for the device inside a round."""
    engine, plain, rounds = bench.models.engine(batch, **DRAFTS), RoundRunner.run, [0]
    engine.warm_up()  # a capture waits for the device
    for _ in range(2):
        decode(engine, work)
    cuda = bench.device.kind == "cuda"

    def watched(self: RoundRunner, *arguments: Any) -> bool:
        rounds[0] += 1
        if cuda:
            torch.cuda.set_sync_debug_mode("error")
        try:
            return plain(self, *arguments)
        finally:
            if cuda:
                torch.cuda.set_sync_debug_mode("default")

    with patch.object(RoundRunner, "run", watched):
        found = decode(engine, work)
    faults = engine.stats.faults
    if faults:
        bench.unequal.append(f"{faults} rounds waited for the device: {engine.faults[-1]}")
    return bench.check("no round waits", found, work) | {"rounds": rounds[0], "faults": faults}
