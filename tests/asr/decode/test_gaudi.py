"""The bundled model on a double of Gaudi: the code of every other device, with words; no round compiles.

python -m pytest -n 0 -s -m nightly tests/asr/decode/test_gaudi.py     prints the shapes
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from forescribe import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.speculative.engine.admission import PROMPT_BUCKETS
from forescribe.speculative.model_engines import ModelEngine
from forescribe.speculative.models.weights import encoder_of
from tests.speculative.graphs.fake_hpu import HPU, Compiled

pytestmark = pytest.mark.nightly

SAMPLES = Path(__file__).parents[3] / "samples"
NAMES = ("memo", "conversation", "noisy")


def texts(transcriber: Transcriber, names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for outcome in transcriber.transcribe(
        [SAMPLES / f"{name}.flac" for name in names], Options(words=True)
    ):
        assert outcome.transcript is not None, outcome.error
        found[Path(outcome.name).stem] = outcome.transcript.text
    return found


def test_once_it_is_ready_no_round_compiles_and_other_shapes_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, shapes = Compiled.installed(monkeypatch), dict[str, set[tuple[int, ...]]]()
    whisper = load(resolve("tiny.en", None, None, 1), HPU, network=False, engine=ModelEngine.LEAN)

    def noted(name: str, real: Any, tensor: int) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            shapes.setdefault(name, set()).add(tuple(given[tensor].shape))
            return real(*given, **named)

        return call

    transcriber = Transcriber(whisper, batch=4, gamma=3, beam_size=1)
    ready, engine = len(compiled.recipes), transcriber.context.engine
    monkeypatch.setattr(engine.target, "prefill", noted("prompts", engine.target.prefill, 1))
    encoder = encoder_of(whisper.target)
    monkeypatch.setattr(encoder, "forward", noted("features", encoder.forward, 0))
    found = texts(transcriber, NAMES)
    assert len(compiled.recipes) == ready and compiled.calls > 50
    assert {rows for rows, _ in shapes["prompts"]} <= {1, 2, 4}
    assert {length for _, length in shapes["prompts"]} <= set(PROMPT_BUCKETS)
    assert shapes["features"] <= {(rows, 80, 3000) for rows in (1, 2, 4)}
    rounds = [(s.rows, s.gamma, s.reach, s.mode.sampling) for s in engine.captured]
    sys.stdout.write(
        f"{ready} recipes: rounds (rows, gamma, slots, sampling) {rounds}, and {ready - len(rounds)} with "
        f"which a draft reads; operator by operator {shapes}\n"
    )
    cpu = Transcriber.load("tiny.en", device="cpu", network=False, gamma=3, beam_size=1)
    assert found == texts(cpu, NAMES)
