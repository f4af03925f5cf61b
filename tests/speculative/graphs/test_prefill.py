"""Prompts of Whisper are read by captured prefills: no sync, fixed addresses, equal tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forescribe.speculative import Engine
from forescribe.speculative.engine import captures
from forescribe.speculative.engine.captures import PrefillRunner
from forescribe.speculative.models.lean import LeanWhisperDecoder, Natural
from forescribe.speculative.models.weights import Linear
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.test_catch_up import tokens
from tests.speculative.graphs.workloads import tiny_engine, whisper_engine, whisper_requests
from tests.speculative.tiny import TinyModel

CUDA = CudaOnCpu("cuda", torch.float32)


def prompts_of(engine: Engine) -> PrefillRunner:
    assert engine._texts.admission.prefills is not None
    return engine._texts.admission.prefills


def test_a_shape_that_comes_again_is_captured_and_the_tokens_are_equal(cuda: FakeCuda) -> None:
    work = whisper_requests(5)
    engine = whisper_engine(CUDA, 0, 3, decoder=LeanWhisperDecoder)
    with running(cuda, engine):
        found = tokens(engine, work)
        captured = prompts_of(engine).graphs.captured
        assert captured and not engine.faults
        graphs = len(cuda.graphs)
        assert tokens(engine, work) == found  # with the graphs of the first run, and a few new ones
        assert len(cuda.graphs) - graphs <= len(prompts_of(engine).graphs.captured)
        assert cuda.replays > 20 and cuda.synchronized == 0
    assert found == tokens(whisper_engine(None, 0, 3), work)


def test_a_shape_that_comes_once_is_not_captured(cuda: FakeCuda) -> None:
    engine = whisper_engine(CUDA, 0, decoder=LeanWhisperDecoder)
    with running(cuda, engine):
        tokens(engine, whisper_requests(1))
        assert not prompts_of(engine).graphs.captured
        tokens(engine, whisper_requests(1))
        assert len(prompts_of(engine).graphs.captured) == 1


def test_a_shape_that_cannot_be_captured_is_run_operator_by_operator(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    engine = whisper_engine(CUDA, 0, 3, decoder=LeanWhisperDecoder)
    prompts, work = prompts_of(engine), whisper_requests(4)

    def fails(fn: object) -> Any:
        raise torch.OutOfMemoryError("out of memory while capturing")

    prompts._capture = fails
    with running(cuda, engine):
        found = tokens(engine, work)
        assert tokens(engine, work) == found
    assert prompts.graphs._refused and not prompts.graphs.captured and not engine.faults
    assert (
        len(caplog.records) == len(prompts.graphs._refused)
        and "slower: out of memory" in caplog.text
    )
    assert found == tokens(whisper_engine(None, 0, 3), work)


def test_large_logits_and_many_shapes_are_not_kept(cuda: FakeCuda, monkeypatch: Any) -> None:
    engine = whisper_engine(CUDA, 0, decoder=LeanWhisperDecoder)
    prompts = prompts_of(engine)
    prompts._seen = {(2, 4, 1), (2, 4, 9)}
    monkeypatch.setattr(captures, "MOST_BYTES", 4 * 2 * engine.target.vocab_size)
    assert prompts._wanted((2, 4, 1)) and not prompts._wanted((2, 4, 9))
    monkeypatch.setattr(captures, "MOST_GRAPHS", 0)
    assert not prompts._wanted((2, 4, 1))


def test_a_model_without_encoder_states_is_prefilled_as_it_is(cuda: FakeCuda) -> None:
    engine = tiny_engine(CUDA, 0)
    assert engine._texts.admission.prefills is None and isinstance(engine.target, TinyModel)


@pytest.mark.parametrize(("rows", "nodes", "split"), [(1, 3, True), (1, 1, False), (3, 3, False)])
def test_few_rows_are_read_by_kernels_that_divide_the_keys(
    monkeypatch: pytest.MonkeyPatch, rows: int, nodes: int, split: bool
) -> None:
    from forescribe.speculative.models import lean

    chosen, plain = [], lean.sdpa_kernel

    def watched(*arguments: Any, **options: Any) -> Any:
        chosen.append(arguments)
        return plain(*arguments, **options)

    monkeypatch.setattr(lean, "sdpa_kernel", watched)
    weights = Linear(torch.zeros(16, 8), torch.zeros(16))
    keys, values = torch.randn(2, 1, 3, 2, 30, 4)
    sources, queries = Natural(weights, keys, values), torch.randn(rows, nodes, 2, 4)
    assert sources.multiprocessors == 0  # a CPU has none
    expected = sources.attend(0, queries)
    sources.multiprocessors = 3
    torch.testing.assert_close(sources.attend(0, queries), expected)
    assert bool(chosen) is split
