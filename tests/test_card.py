"""The shipped models on a CUDA card: what CPUs say, and nothing waits for the card inside a round.

python -m pytest -n 0 -m gpu
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from forescribe import Options, TextGenerator, Transcriber, Word
from forescribe.asr.audit import audit
from forescribe.asr.formats.transcript import Transcript
from forescribe.diarize.engines.registry import load as load_diarizer
from forescribe.speculative.engine.runner import RoundRunner
from forescribe.text import Options as TextOptions

CARD = "cuda"
SAMPLES = Path(__file__).parent.parent / "samples"
BUNDLED = SAMPLES.parent / "bundled"
NAMES = ("memo", "conversation", "noisy")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def read(name: str) -> tuple[np.ndarray, int]:
    samples, rate = soundfile.read(SAMPLES / f"{name}.flac", dtype="float32")
    return samples, rate


def written(transcriber: Transcriber, options: Options | None = None) -> dict[str, Transcript]:
    found = {}
    for name in NAMES:
        (outcome,) = transcriber.transcribe([read(name)], options)
        assert outcome.error is None and outcome.transcript is not None
        found[name] = outcome.transcript
    return found


def words(transcript: Transcript) -> list[Word]:
    return [word for segment in transcript.segments for word in segment.words]


@pytest.fixture(scope="module")
def on_card() -> Iterator[Transcriber]:
    yield Transcriber.load("tiny.en", device=CARD, dtype="float32", network=False, beam_size=1)


def test_words_and_times_are_those_of_a_cpu(on_card: Transcriber) -> None:
    options = Options(words=True)
    cpu = written(Transcriber.load("tiny.en", device="cpu", network=False, beam_size=1), options)
    card = written(on_card, options)
    for name in NAMES:
        assert card[name].text == cpu[name].text
        for a, b in zip(words(card[name]), words(cpu[name]), strict=True):
            assert a.text == b.text and abs(a.start - b.start) < 0.05, (name, a, b)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("batch", [1, 8])
def test_drafts_change_no_token(dtype: str, batch: int) -> None:
    whisper = Transcriber.load(
        "tiny.en", device=CARD, dtype=dtype, network=False, beam_size=1
    ).whisper
    reports = list(audit(whisper, map(read, NAMES), Options(), gamma=5, batch=batch))
    assert all(report.error is None and report.tokens > 50 for report in reports)
    differences = [each for report in reports for each in report.differences]
    # A near-tie may flip in half precision; a fault has a margin far above rounding.
    bound = {"float32": 0.0, "float16": 0.05, "bfloat16": 0.4}[dtype]
    assert all(abs(each.margin) <= bound for each in differences), differences


def test_captured_rounds_write_what_operators_one_by_one_write(on_card: Transcriber) -> None:
    runner = on_card.engine._texts.runner
    captured, capture = written(on_card), runner._capture
    assert runner.graphs.captured and capture is not None
    runner._capture = None
    try:
        eager = written(on_card)
    finally:
        runner._capture = capture
    assert {n: t.text for n, t in captured.items()} == {n: t.text for n, t in eager.items()}


def test_no_round_waits_for_the_card(on_card: Transcriber, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, rounds = RoundRunner.run, []

    def watched(self: RoundRunner, *arguments: object) -> None:
        rounds.append(1)
        torch.cuda.set_sync_debug_mode("error")
        try:
            plain(self, *arguments)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    written(on_card)  # captures what it needs
    monkeypatch.setattr(RoundRunner, "run", watched)
    before = on_card.stats().faults
    written(on_card)
    assert len(rounds) > 20 and on_card.stats().faults == before == 0


def test_the_card_keeps_no_memory_of_recordings(on_card: Transcriber) -> None:
    written(on_card)
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        written(on_card)
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_speakers_are_those_of_a_cpu() -> None:
    samples, rate = read("conversation")
    assert rate == 16_000
    cpu, card = (load_diarizer("embedded", device=each).diarize(samples) for each in ("cpu", CARD))
    a, b = (
        [(t.speaker, t.start_sample, t.end_sample) for t in each.regular] for each in (cpu, card)
    )
    assert [each[0] for each in a] == [each[0] for each in b] and len({each[0] for each in a}) > 1
    assert np.allclose([each[1:] for each in a], [each[1:] for each in b], atol=800)


@pytest.mark.parametrize("draft", [BUNDLED / "text-draft", "ngram"])
def test_texts_are_those_of_plain_decoding(draft: Path | str) -> None:
    prompts = ["Once upon a time", "The little dog", "One day, Tom and Anna"]
    options = TextOptions(max_tokens=60)

    def texts(device: str, second: Path | str | None) -> list[str]:
        made = TextGenerator.load(
            BUNDLED / "text", second, device=device, dtype="float32", network=False
        )
        return [completion.text for completion in made.generate(prompts, options)]

    assert texts(CARD, draft) == texts(CARD, None) == texts("cpu", None)
