"""Gaudi on a double: compiled rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative.engine.runner import ShapeSet
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.requests import Mode
from tests.speculative.graphs.fake_hpu import HPU, Compiled
from tests.speculative.graphs.workloads import (
    beam_engine,
    beam_requests,
    texts,
    tiny_engine,
    tiny_requests,
    whisper_engine,
    whisper_requests,
)

GREEDY = [r for r in tiny_requests(40) if not r.ranks]


def test_each_shape_is_one_recipe_that_all_rounds_repeat(compiled: Compiled) -> None:
    engine = tiny_engine(HPU, 0, 3)
    engine.warm_up()
    modes = (Mode(), Mode(sampling=True))
    closed = set(ShapeSet.of(HPU, 5, engine.rows.scratch, (0, 3), modes).common(modes))
    assert set(engine.captured) == closed and len(closed) == 12
    assert len(compiled.recipes) == 12 + 3  # and what the draft reads with, for 1, 4 and 5 rows
    assert texts(engine, GREEDY) == texts(tiny_engine(None, 0, 3), GREEDY)
    assert len(compiled.recipes) == 12 + 3 and compiled.calls > 60


def test_whisper_repeats_its_recipes_too(compiled: Compiled) -> None:
    work = whisper_requests(5)
    engine = whisper_engine(HPU, 0, 3, decoder=LeanWhisperDecoder)
    assert texts(engine, work) == texts(whisper_engine(None, 0, 3), work)
    assert compiled.calls > 2 * len(compiled.recipes)


@pytest.mark.parametrize("levels", [(), (2,)], ids=["plain", "drafted"])
def test_beams_repeat_a_recipe_for_each_number_of_rows(compiled: Compiled, levels: Any) -> None:
    engine, work = beam_engine(HPU, LeanWhisperDecoder, *levels), beam_requests(9)
    assert texts(engine, work) == texts(beam_engine(None, LeanWhisperDecoder), work)
    assert {shape.rows for shape in engine.captured} <= {1, 4, 5}
    assert len({shape.reach for shape in engine.captured}) == 1
    assert len(compiled.recipes) == len(engine.captured) and compiled.calls > 15
    assert bool(engine.stats.drafted) is bool(levels)


@pytest.mark.nightly
def test_dynamo_makes_one_graph_for_each_shape_above_its_limit_of_recompilations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, example_inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda fn, **options: real(fn, **options | {"backend": backend})
    )
    torch._dynamo.reset()
    engine, gammas = tiny_engine(HPU, 0, 1, 2), (0, 1, 2)
    slots = engine.rows.scratch
    shapes = list(ShapeSet.of(HPU, 5, slots, gammas, (Mode(),)).common((Mode(),)))
    assert len(shapes) == 9 > torch._dynamo.config.recompile_limit
    with torch.inference_mode():
        for _ in range(2):
            for shape in shapes:
                engine._texts.runner._launch(shape, drafter=True)()
    assert len(graphs) == len(shapes)
    work = GREEDY[:4]
    assert texts(engine, work) == texts(tiny_engine(None, 0, 1, 2), work)
    read = engine._texts.reader.graphs.captured  # one more for each number of rows
    assert len(graphs) == len(shapes) + len(read) > len(shapes)
