"""How many of our functions lie between the command and the model's forward pass."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.whisper import Whisper
from forescribe.cli.main import main
from tests.asr.detectors import EnergyDetector

ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / part) for part in ("asr", "forescribe", "speculative", "diarize"))
ROUNDS = {"run_round": ["--beam-size", "1"], "beam_round": []}
"""A frame of every round, of the most probable words and of beams, with what asks for it; prefills have
neither."""

FROM_THE_COMMAND = 9
FROM_TRANSCRIBE_TO_STEP = 3

Stack = list[tuple[str, str]]
"""The file and the function of each frame of ours, the outermost first."""


def stack() -> Stack:
    frames = [(frame.filename, frame.name) for frame in traceback.extract_stack()]
    return [(str(Path(f).resolve()), name) for f, name in frames if "/.venv/" not in f]


def ours(frames: Stack) -> Stack:
    return [(f.removeprefix(f"{ROOT}/"), name) for f, name in frames if f.startswith(OURS)]


@pytest.fixture
def stacks(monkeypatch) -> Iterator[list[Stack]]:
    """The stacks inside the target's decoder, one for each call of its first layer norm."""
    seen: list[Stack] = []
    encode = Whisper.encode

    def watched(self, features):
        norm = self.target.model.decoder.layers[0].self_attn_layer_norm
        if not norm._forward_pre_hooks:
            norm.register_forward_pre_hook(lambda *_: seen.append(ours(stack())))
        return encode(self, features)

    monkeypatch.setattr(Whisper, "encode", watched)
    yield seen


def rounds(stacks: list[Stack], name: str) -> list[Stack]:
    found = [frames for frames in stacks if name in {called for _, called in frames}]
    assert found, "the hook has not seen a round"
    return found


def clip(folder: Path) -> str:
    samples, rate = soundfile.read(ROOT / "samples" / "memo.flac", frames=3 * 16_000)
    path = folder / "clip.wav"
    soundfile.write(path, samples.astype(np.float32), rate)
    return str(path)


@pytest.mark.parametrize("name", ROUNDS)
def test_few_functions_lie_between_the_command_and_the_forward_pass(
    stacks, tmp_path, monkeypatch, name
) -> None:
    arguments = ["transcribe", clip(tmp_path), "--model", "tiny.en", "-o", str(tmp_path / "out")]
    arguments += [*ROUNDS[name], "--engine", "modules"]  # whose layers the hook sees
    monkeypatch.setattr(sys, "argv", ["forescribe", *arguments])
    try:
        main()
    except SystemExit as end:
        assert not end.code
    for frames in rounds(stacks, name):
        first = next(n for n, (_, called) in enumerate(frames) if called == "transcribe")
        hops = frames[first:]
        assert len(hops) <= FROM_THE_COMMAND, "\n".join(f"{f}: {called}" for f, called in hops)


def test_few_functions_lie_between_transcribe_and_the_engines_step(stacks, tmp_path) -> None:
    transcriber = Transcriber.load("tiny.en", batch=2, gamma=2, engine="modules", beam_size=1)
    transcriber.context.detector = EnergyDetector()
    (outcome,) = transcriber.transcribe([clip(tmp_path)], Options(language="en"))
    assert outcome.transcript is not None and outcome.transcript.text
    assert stacks, "the hook has not seen a forward pass"
    for frames in stacks:
        names = [name for _, name in frames]
        first = next(n for n, (file, _) in enumerate(frames) if file.startswith("asr/"))
        assert names.index("step") - first <= FROM_TRANSCRIBE_TO_STEP, names
