"""A drafter reads what was written without it in captured pieces: no sync, fixed addresses, equal tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Engine, ModelDrafter, Request
from forescribe.speculative.engine import admission
from forescribe.speculative.models.lean import LeanWhisperDecoder
from forescribe.speculative.rows import Rows
from tests.speculative.engine.test_engine import Planned
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.workloads import (
    tiny_engine,
    tiny_requests,
    whisper_engine,
    whisper_requests,
)
from tests.speculative.tiny import TinyModel

CUDA = CudaOnCpu("cuda", torch.float32)


def texts_of(engine: Engine) -> Any:
    assert engine._texts.reader is not None
    return engine._texts.reader


def tokens(engine: Engine, work: list[Request]) -> dict[Any, tuple[int, ...]]:
    found = {r.request.tag: r for r in engine.run(work)}
    assert all(r.error is None and r.draft_error is None for r in found.values())
    return {tag: r.tokens for tag, r in found.items()}


@pytest.mark.parametrize("piece", [3, 32])
def test_a_perfect_drafter_is_never_rejected_after_captured_reading(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """A hole in what the drafter has read would cost acceptance, and nothing else would show it."""
    monkeypatch.setattr(admission, "PIECE", piece)
    engine = Engine(
        TinyModel(positions=90),
        ModelDrafter(TinyModel(positions=90)),
        batch=3,
        eos=(99,),
        schedule=Planned(0, 3, 0, 2, 0),
        device=CUDA,
    )
    work = [Request((1 + n, 2), max_new_tokens=15 + 9 * n, tag=n) for n in range(6)]
    with running(cuda, engine):
        cuda.mark(texts_of(engine)._back)
        results = list(engine.run(work))
        with cuda.reads_allowed():
            stats = engine.stats
    assert len(results) == 6 and not engine.faults
    assert stats.accepted == stats.drafted > 10
    assert set(texts_of(engine).graphs.captured) <= {1, 2, 3} and texts_of(engine).graphs.captured


def test_whisper_drafts_read_captured_pieces_too(cuda: FakeCuda) -> None:
    work = whisper_requests(4)
    engine = whisper_engine(CUDA, 0, 3, decoder=LeanWhisperDecoder)
    with running(cuda, engine):
        cuda.mark(texts_of(engine)._back)
        found = tokens(engine, work)
    assert found == tokens(whisper_engine(None, 0, 3), work)
    assert texts_of(engine).graphs.captured


def test_after_a_warm_up_no_reading_is_captured(cuda: FakeCuda) -> None:
    engine = tiny_engine(CUDA, 0, 3)
    with running(cuda, engine):
        engine.warm_up()
        assert list(texts_of(engine).graphs.captured) == [5, 4, 2, 1]  # the largest first
        graphs = len(cuda.graphs)
        list(engine.run([r for r in tiny_requests(8) if not r.ranks]))
        assert len(cuda.graphs) == graphs
    assert tiny_engine(CUDA, 3)._texts.reader is not None  # and never reads


@pytest.mark.failing_drafts
def test_a_reading_that_fails_costs_its_rows_their_drafts(cuda: FakeCuda) -> None:
    engine, work = tiny_engine(CUDA, 0, 3), [r for r in tiny_requests(8) if not r.ranks]

    def fails(*_: Any) -> None:
        raise RuntimeError("planted")

    engine.drafter.catch_up = fails  # type: ignore[union-attr, method-assign]
    with running(cuda, engine):
        results = {r.request.tag: r for r in engine.run(work)}
    assert {tag: r.tokens for tag, r in results.items()} == tokens(tiny_engine(None, 0, 3), work)
    assert any(r.draft_error is not None for r in results.values())
    assert not texts_of(engine).graphs.captured


def test_pieces_cover_the_tokens_from_the_end() -> None:
    read: list[tuple[list[int], int]] = []

    class Drafter(ModelDrafter):
        def catch_up(self, rows: Rows, start: torch.Tensor, count: int) -> None:
            read.append((start.tolist(), count))

    engine = Engine(TinyModel(), Drafter(TinyModel()), batch=3, eos=(99,), schedule=Planned(0, 2))
    engine.rows.lengths[:] = torch.tensor([30, 9, 3])
    engine.rows.begin[:] = torch.tensor([15, 4, 1])
    texts = texts_of(engine)
    texts.piece = 8
    texts._catch_up(11, 2)
    assert read == [([15, 4, 1], 8), ([20, 4, 1], 8)]  # and nothing of a prompt
