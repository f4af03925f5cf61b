"""A block head in a folder drafts for the target that it was made for, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from forescribe.asr.decode.drafting import drafter_for
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ModelError
from forescribe.asr.model.encoder_states import EncoderStates
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative import Engine, Fixed, Request
from forescribe.speculative.device import choose
from forescribe.speculative.drafters.heads import WhisperBlockDrafter
from forescribe.speculative.models.engines import whisper_decoder
from forescribe.speculative.models.heads.whisper_block import BlockShape, WhisperBlock, write_block
from tests.asr.model import folders

CPU = choose("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return folders.write(tmp_path_factory.mktemp("models") / "target")


def write(folder: Path, target: Path, **changes: object) -> Path:
    """A random head for a target."""
    config = load(Pair(target), CPU).target.config
    shape = BlockShape(
        width=config.d_model,
        heads=2,
        inner=24,
        layers=2,
        positions=config.max_target_positions,
        block=5,
        taps=(0, -1),
        target_layers=config.decoder_layers,
        vocab=config.vocab_size,
    )
    shape = replace(shape, **changes)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: 0.3 * torch.randn(sizes, generator=generator)
        for name, sizes in shape.tensors().items()
    }
    write_block(folder, WhisperBlock(shape, tensors))
    return folder


@pytest.mark.parametrize(
    ("engine", "gamma"),
    [
        pytest.param("native", 3, marks=pytest.mark.native),
        pytest.param("native", None, marks=pytest.mark.native),
        ("lean", 3),
        ("modules", None),
    ],
)
def test_a_head_changes_no_token(target: Path, tmp_path: Path, engine: str, gamma: int) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 40 * 16000).astype(np.float32)
    soundfile.write(tmp_path / "noise.wav", noise, 16000)
    draft, found = write(tmp_path / "head", target), []
    for name, drafted in (("none", 0), (str(draft), gamma)):
        transcriber = Transcriber.load(
            str(target), name, device="cpu", engine=engine, batch=2, gamma=drafted, network=False
        )
        (outcome,) = transcriber.transcribe(
            [str(tmp_path / "noise.wav")],
            Options(language="en", guards=None, vad=False, keep_encoder_states=True),
        )
        assert outcome.error is None
        found.append([window.result.tokens for window in outcome.decoded])
    assert transcriber.whisper.drafting and transcriber.stats().drafted > 0
    assert found[0] == found[1] and sum(map(len, found[0])) > 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 32}, "made for states of 32 numbers, the target has 16"),
        ({"target_layers": 7}, "made for 7 layers"),
        ({"vocab": 99}, "made for 99 tokens"),
        ({"positions": 12}, "made for 12 positions"),
    ],
)
def test_another_targets_head_is_refused(
    target: Path, tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    draft = write(tmp_path / "head", target, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load(Pair(target, draft), CPU)
    assert caught.value.code == "model_mismatch"


def test_a_head_drafts_alone(target: Path, tmp_path: Path) -> None:
    whisper = load(Pair(target, write(tmp_path / "head", target)), CPU)
    assert isinstance(drafter_for(whisper, None), WhisperBlockDrafter)


@pytest.mark.native
def test_a_head_has_no_8_bit_form_but_its_target_may(target: Path, tmp_path: Path) -> None:
    pair, int8 = Pair(target, write(tmp_path / "head", target)), choose("cpu", None, "int8")
    with pytest.raises(ModelError, match="no 8-bit form"):
        load(pair, CPU, draft_device=int8)
    found = []
    for gamma in (0, 3):
        whisper = load(pair, int8, draft_device=CPU)
        drafter = None if gamma == 0 else drafter_for(whisper, gamma)
        decoder = whisper_decoder(whisper.target, lambda s: s.target, engine=whisper.engine)
        engine = Engine(decoder, drafter, batch=2, eos=(), schedule=Fixed(gamma))
        states = torch.randn(3, 1500, 16, generator=torch.Generator().manual_seed(1))
        asked = [
            Request((n, 1), encoder_states=EncoderStates(s), max_new_tokens=12, tag=n)
            for n, s in enumerate(states)
        ]
        results = list(engine.run(asked))
        assert all(r.error is None and r.draft_error is None for r in results)
        found.append({r.request.tag: r.tokens for r in results})
    assert found[0] == found[1] and len(found[0]) == 3


def test_a_damaged_head_is_refused(target: Path, tmp_path: Path) -> None:
    draft = write(tmp_path / "head", target)
    (draft / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="no readable block head"):
        load(Pair(target, draft), CPU)


def test_a_head_is_no_target(target: Path, tmp_path: Path) -> None:
    draft = write(tmp_path / "head", target)
    with pytest.raises(ModelError, match="forescribe_whisper_block"):
        load(Pair(draft), CPU)
