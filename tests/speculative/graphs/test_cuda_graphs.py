"""CUDA graphs on a double of the API: fixed addresses, no sync, a closed set of shapes, equal tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, Request
from forescribe.speculative.engine.runner import ShapeSet
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.models.modules import WhisperDecoder
from forescribe.speculative.requests import Mode, Result
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.recorder import Forbidden
from tests.speculative.graphs.workloads import (
    BATCH,
    beam_engine,
    beam_requests,
    texts,
    tiny_engine,
    tiny_requests,
    whisper_engine,
    whisper_requests,
)

CUDA = CudaOnCpu("cuda", torch.float32)


def written(results: Iterator[Result]) -> dict[Any, tuple[Any, ...]]:
    """What must not depend on the device."""
    found = {}
    for r in results:
        if r.error is not None:
            raise r.error
        found[r.request.tag] = (r.tokens, r.finish, r.ranked, r.probe)
    return found


def check_shapes(engine: Engine) -> None:
    """What was captured is a part of the closed set."""
    axes = ShapeSet.of(CUDA, engine.batch, engine.rows.scratch, engine.schedule.buckets, (Mode(),))
    assert set(engine.captured) <= set(axes.common((Mode(),)))
    assert len(engine.captured) > 3
    assert all(reach % 8 == 0 for reach in axes.reaches)


@pytest.mark.parametrize("ngram", [False, True])
def test_ragged_rounds_replay_what_was_captured(cuda: FakeCuda, ngram: bool) -> None:
    work = [r for r in tiny_requests(12) if not r.ranks]
    tail = [Request((1, 2), max_new_tokens=70 - 15 * n, tag=100 + n) for n in range(BATCH)]
    plain = tiny_engine(None, 0, 3, 5, ngram=ngram)
    expected = written(plain.run(work)) | written(plain.run(tail))
    engine = tiny_engine(CUDA, 0, 3, 5, ngram=ngram)
    with running(cuda, engine):
        found = written(engine.run(work)) | written(engine.run(tail))
    assert found == expected and len(found) == len(work) + BATCH
    assert cuda.replays > 50 and cuda.synchronized == 0
    assert len({shape.rows for shape in engine.captured}) > 2  # the tail runs on fewer rows
    assert engine.schedule.learnt > 25
    check_shapes(engine)


def test_whisper_with_its_rules_replays_too(cuda: FakeCuda) -> None:
    work = whisper_requests(6)
    expected = written(whisper_engine(None, 0, 3).run(work))
    engine = whisper_engine(CUDA, 0, 3)
    with running(cuda, engine):
        found = written(engine.run(work))
    assert found == expected
    assert cuda.replays > 20 and cuda.synchronized == 0
    check_shapes(engine)


@pytest.mark.parametrize("gammas", [(), (0, 3)], ids=["alone", "beside drafts"])
@pytest.mark.parametrize(
    "decoder", [pytest.param(WhisperDecoder, marks=pytest.mark.nightly), LeanWhisperDecoder]
)
def test_beams_replay_what_was_captured(cuda: FakeCuda, decoder: Any, gammas: Any) -> None:
    work = beam_requests(12, every=2 if gammas else 1)
    expected = texts(beam_engine(None, decoder), work)
    engine = beam_engine(CUDA, decoder, *gammas)
    with running(cuda, engine):
        found = texts(engine, work)
    assert found == expected and not engine.faults
    assert cuda.replays > 30 and cuda.synchronized == 0
    groups = {shape for shape in engine.captured if shape.reach > engine.rows.scratch}
    assert groups and {shape.rows for shape in engine.captured} <= {1, 2, 4, BATCH}


def test_rounds_go_on_where_a_capture_fails(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, work = beam_engine(CUDA, LeanWhisperDecoder), beam_requests(6, every=2)

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(torch.cuda, "graph", full)
    with running(cuda, engine):
        found = texts(engine, work)
    assert found == texts(beam_engine(None, LeanWhisperDecoder), work)
    assert not engine.faults and not engine.captured
    told = [r.message for r in caplog.records if r.message.startswith("rounds of")]
    assert len(told) == len({*told}) >= 2 and all("slower: full" in each for each in told)


def test_a_warm_up_captures_largest_first_and_nothing_is_captured_after_it(cuda: FakeCuda) -> None:
    engine = tiny_engine(CUDA, 0, 3)
    with running(cuda, engine):
        engine.warm_up()
        captured = engine.captured
        sizes = [(shape.rows, shape.gamma, shape.reach) for shape in captured]
        assert sizes == sorted(sizes, reverse=True)
        assert captured[0].rows == BATCH and captured[0].reach == engine.rows.scratch
        with cuda.reads_allowed():
            assert not engine.rows.active.any() and (engine.rows.lengths == 1).all()
        list(engine.run([r for r in tiny_requests(20) if not r.ranks]))
        assert engine.captured == captured


def test_cancelled_rows_and_partial_texts_are_read_without_poison(cuda: FakeCuda) -> None:
    engine, plain = tiny_engine(CUDA, 3), tiny_engine(None, 3)
    work = [r for r in tiny_requests(60, seed=3) if not r.ranks and r.max_new_tokens >= 40][:8]
    for request in work:
        plain.submit(request)
        engine.submit(request)
    whole = {}
    while not plain.idle:
        whole |= {r.request.tag: r.tokens for r in plain.step()}
    found: dict[Any, tuple[int, ...]] = {}
    with running(cuda, engine):
        steps = 0
        while not engine.idle:
            found |= {r.request.tag: r.tokens for r in engine.step()}
            steps += 1
            for partial in engine.peek():
                assert partial.tokens == whole[partial.request.tag][: len(partial.tokens)]
            if steps == 6:
                with cuda.reads_allowed():  # a cancelled row is read at once
                    engine.cancel(work[0].tag)
                    found |= {r.request.tag: r.tokens for r in engine.step()}
                assert work[0].tag in found
    cut = found.pop(work[0].tag)
    assert cut == whole.pop(work[0].tag)[: len(cut)]
    assert found == whole


# The double sees what it should


def test_a_read_inside_a_capture_is_forbidden(cuda: FakeCuda) -> None:
    class Reading(WhisperDecoder):
        def score(self, tokens, start, **options):
            if int(start.max()) > 1000:  # a sync
                raise AssertionError
            return super().score(tokens, start, **options)

    engine = whisper_engine(CUDA, 3, decoder=Reading)
    with running(cuda, engine):
        engine.submit(whisper_requests(1)[0])
        with pytest.raises(Forbidden):
            engine._texts._admit()
            runner = engine._texts.runner
            runner._launch(runner._shapes.pick(1, 3, Mode(), 4), drafter=True)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x[x > 1],
        lambda x: x.nonzero(),
        lambda x: x + torch.tensor([1, 2, 3, 4]),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: bool(x.any()),
        lambda x: x.masked_select(x > 1),
    ],
)
def test_what_a_capture_forbids_is_seen(cuda: FakeCuda, operation: Any) -> None:
    x, graph = torch.arange(4), torch.cuda.CUDAGraph()
    with pytest.raises(Forbidden), torch.cuda.graph(graph, pool=cuda.pool, stream=cuda.default):
        operation(x)
