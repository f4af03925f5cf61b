"""Work beside the rounds, on the double: what waits for what, and that rounds go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from forescribe.asr.decode.context import DecodingContext, encode_windows
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.states import EncoderStates
from forescribe.asr.words.timing import Utterance, token_times
from forescribe.speculative import choose
from forescribe.speculative.device import Device, SideStream
from forescribe.speculative.engine.engine import Engine
from forescribe.speculative.model_engines import ModelEngine
from tests.asr.model import folders
from tests.speculative.graphs.fake_cuda import CudaOnCpu, FakeCuda, running
from tests.speculative.graphs.recorder import Forbidden
from tests.speculative.graphs.workloads import tiny_engine, tiny_requests

T = TypeVar("T")

CUDA = CudaOnCpu("cuda", torch.float32)


@pytest.fixture
def weight(cuda: FakeCuda) -> Tensor:
    made = torch.eye(4)
    cuda.mark(made)
    return made


def test_work_runs_on_a_stream_of_its_own_and_its_result_may_be_read(
    cuda: FakeCuda, weight: Tensor
) -> None:
    side, streams, calls = SideStream(CUDA), [], []

    def work() -> Tensor:
        streams.append(cuda.current)
        return weight * 2

    def meanwhile() -> bool:
        streams.append(cuda.current)
        calls.append(weight + 1)  # of the current stream: needs nothing of the side stream
        return len(calls) < 3

    with cuda:
        made = side.run(work, meanwhile)
        side.hand_over(made)
        made + 1
    assert streams[0] is not cuda.default and set(streams[1:]) == {cuda.default}
    assert len(calls) == 3  # then it waits
    assert cuda.handed_over == [(made, cuda.default)] and cuda.synchronized == 0


def test_a_result_that_is_read_too_early_is_seen(cuda: FakeCuda, weight: Tensor) -> None:
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with cuda:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made = weight * 2
            event.record()
        with pytest.raises(Forbidden, match="another stream may not have written yet"):
            made + 1
        torch.cuda.current_stream().wait_event(event)
        made + 1


def test_elsewhere_work_runs_at_once() -> None:
    def never() -> bool:
        raise AssertionError

    side = SideStream(Device("cpu", torch.float32))
    made = side.run(lambda: torch.ones(2), never)
    assert side.hand_over(made) is made


def test_words_are_timed_beside_the_rounds(cuda: FakeCuda, tmp_path: Path) -> None:
    pair = Pair(folders.write(tmp_path / "target"))
    whisper = load(pair, choose("cpu"), network=False, engine=ModelEngine.LEAN)
    (states,) = whisper.encode(torch.ones(1, 80, 3000))
    prompt = whisper.tokens.prompt("en", "transcribe", timestamps=False)
    words = [Utterance(states, prompt, tuple(range(20, 20 + n)), 160_000) for n in (3, 30)]
    expected = token_times(whisper, words)
    cuda.mark(whisper.target, states)
    rounds, streams = [], []

    def meanwhile() -> bool:
        rounds.append(torch.zeros(2) + 1)
        return len(rounds) < 3

    def run(work: Callable[[], T]) -> T:
        def watched() -> T:
            streams.append(cuda.current)
            return work()

        return side.run(watched, meanwhile)

    side = SideStream(CUDA)
    with cuda, cuda.reads_allowed():  # on the side stream, which they stop alone
        assert token_times(whisper, words, run) == expected
    assert len(rounds) > 2 and cuda.default not in streams and len(set(streams)) == 1


class Encoder:
    """A `Whisper` whose encoder doubles features; -1 in them gives NaN."""

    device = CUDA

    def __init__(self, cuda: FakeCuda, weight: Tensor) -> None:
        self.cuda, self.weight, self.streams = cuda, weight, []

    def features(self, windows: list[Tensor], searched: object) -> tuple[Tensor]:
        return (torch.stack(windows),)

    def encode(self, features: Tensor) -> list[EncoderStates]:
        self.streams.append(self.cuda.current)
        states = features @ self.weight
        return [EncoderStates(s) for s in torch.where(states < 0, torch.nan, states)]

    def detect_language(
        self, encoded: list[EncoderStates], among: object
    ) -> list[tuple[str, float]]:
        self.streams.append(self.cuda.current)
        return [("en", 0.5)] * len(encoded)


def encode(
    cuda: FakeCuda, weight: Tensor, decoding: DecodingContext, windows: list[Tensor]
) -> tuple[Encoder, list[Any]]:
    whisper, side = Encoder(cuda, weight), SideStream(CUDA)
    context: Any = SimpleNamespace(
        whisper=whisper,
        side=side,
        beside=partial(side.run, meanwhile=decoding.advance),
        expect=lambda features, spent_s: None,
    )
    wrapped: Any = [SimpleNamespace(samples=samples, features=None) for samples in windows]
    with cuda.reads_allowed():  # of the side stream, which it stops alone
        return whisper, encode_windows(
            context, wrapped, [()] * len(windows), [False] * len(windows)
        )


def beside(engine: Engine) -> DecodingContext:
    """The context of an engine, without a speech model."""
    whisper: Any = SimpleNamespace(device=engine.device)
    return DecodingContext(whisper, engine, beam_size=1)


def test_rows_are_decoded_while_windows_are_encoded(cuda: FakeCuda, weight: Tensor) -> None:
    work = [r for r in tiny_requests(12, seed=2) if not r.ranks]
    expected = {r.request.tag: r.tokens for r in tiny_engine(None, 3).run(work)}
    engine = tiny_engine(CUDA, 3)
    decoding, found = beside(engine), {}
    with running(cuda, engine):
        for request in work:
            engine.submit(request)
        decoding.advance()
        rounds = engine._texts.table.counts.rounds
        whisper, encoded = encode(cuda, weight, decoding, [torch.ones(4), torch.full((4,), 2.0)])
        assert engine._texts.table.counts.rounds > rounds  # while the encoder ran
        while not decoding.idle:
            found |= {result.request.tag: result.tokens for result in decoding.ended(engine.step())}
        (encoded[0].encoder_states.target + encoded[1].features).add(1)
    assert found == expected and not engine.faults
    assert cuda.default not in whisper.streams and len(set(whisper.streams)) == 1
    assert [e.language for e in encoded] == [("en", 0.5)] * 2
    assert len(cuda.handed_over) >= 3  # features, and the states of both windows


def test_a_window_that_is_not_finite_fails_alone(cuda: FakeCuda, weight: Tensor) -> None:
    decoding = beside(tiny_engine(CUDA, 3))
    with cuda:
        _, encoded = encode(cuda, weight, decoding, [torch.ones(4), torch.full((4,), -1.0)])
    assert encoded[0].language == ("en", 0.5) and isinstance(encoded[1], ArithmeticError)


def test_nothing_is_run_for_an_idle_engine() -> None:
    assert beside(tiny_engine(None, 3)).advance() is False
