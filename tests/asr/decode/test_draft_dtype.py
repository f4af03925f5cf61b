"""A draft in another number format than its target changes no token, on any engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
import torch

from forescribe.asr.decode.results import Outcome
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative import Stats, choose
from forescribe.speculative.errors import DeviceError
from forescribe.speculative.models.weights import encoder_of
from tests.asr.model import folders

pytestmark = pytest.mark.usefixtures("encoded_once")

MEMO = Path(__file__).parents[3] / "samples" / "memo.flac"
SECONDS = 8
FORMS = [
    pytest.param("native", "bfloat16", marks=pytest.mark.native),
    pytest.param("native", "float16", marks=[pytest.mark.native, pytest.mark.nightly]),
    ("lean", "bfloat16"),
    pytest.param("modules", "bfloat16", marks=pytest.mark.nightly),
    ("auto", "int8"),
]


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("memo") / "memo.flac"
    samples, rate = soundfile.read(MEMO, frames=SECONDS * 16000, dtype="float32")
    soundfile.write(path, samples, rate)
    return str(path)


def decoded(recording: str, **settings: object) -> tuple[list[tuple[int, ...]], Stats]:
    transcriber = Transcriber.load("tiny.en", device="cpu", network=False, beam_size=1, **settings)
    options = Options(language="en", guards=None, keep_encoder_states=True)
    (outcome,) = transcriber.transcribe([recording], options)
    return tokens_of(outcome), transcriber.stats()


def tokens_of(outcome: Outcome) -> list[tuple[int, ...]]:
    assert outcome.error is None
    return [window.result.tokens for window in outcome.decoded]


@pytest.fixture(scope="module")
def plain(recording) -> list[tuple[int, ...]]:
    tokens, _ = decoded(recording, batch=1, gamma=0)
    assert sum(map(len, tokens)) > 20
    return tokens


@pytest.mark.parametrize(("engine", "dtype"), FORMS)
def test_drafts_in_any_format_change_no_token(plain, recording, engine, dtype):
    """Most drafts are accepted, so the draft read the target's encoder states in its own format."""
    tokens, stats = decoded(recording, engine=engine, draft_dtype=dtype, gamma=4)
    assert tokens == plain
    assert stats.drafted > 20 and stats.acceptance_rate > 0.4


def test_the_drafts_format_is_the_fastest_unless_one_is_given():
    transcribers = {
        dtype: Transcriber.load(
            "tiny.en", device="cpu", network=False, draft_dtype=dtype, engine=e, beam_size=1
        )
        for dtype, e in ((None, "auto"), ("float32", "auto"), ("bfloat16", "auto"))
    }
    place = transcribers[None].whisper.drafts[0].device
    native = transcribers[None].whisper.drafts[0].engine == "native"
    able = torch.cpu.get_capabilities().get("avx512_bf16", False)
    assert (place.stored is torch.bfloat16) == (native and able)
    assert transcribers["float32"].whisper.drafts[0].device.stored is torch.float32
    assert transcribers["bfloat16"].whisper.drafts[0].device.stored is torch.bfloat16
    for transcriber in transcribers.values():
        assert transcriber.whisper.device.stored is torch.float32
        assert transcriber.whisper.shared_encoder


@pytest.mark.parametrize("engine", ["lean", "modules"])
def test_without_native_kernels_the_draft_has_its_targets_format(engine):
    whisper = Transcriber.load(
        "tiny.en", device="cpu", network=False, engine=engine, beam_size=1
    ).whisper
    assert whisper.drafts[0].model.dtype is torch.float32


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(DeviceError, match="unknown dtype 'int3'; known: auto, float32"):
        Transcriber.load("tiny.en", device="cpu", network=False, draft_dtype="int3")


@pytest.mark.parametrize("own", [False, True], ids=["equal encoder", "own encoder"])
@pytest.mark.parametrize("rounded", [False, True], ids=["bfloat16 units", "float32 arithmetic"])
def test_an_encoder_is_shared_where_only_rounding_differs(tmp_path, monkeypatch, own, rounded):
    """An encoder of its own runs in the draft's format; an equal one is not loaded twice."""
    if rounded:
        monkeypatch.setattr("forescribe.speculative.device.bfloat16_units", lambda: False)
    target = folders.write(tmp_path / "target")
    draft = folders.write(tmp_path / "draft", seed=7) if own else target
    whisper = load(
        Pair(target, draft), choose("cpu"), draft_device=choose("cpu", "bfloat16"), network=False
    )
    assert whisper.shared_encoder == (not own)
    assert (encoder_of(whisper.drafts[0].model) is encoder_of(whisper.target)) == (not own)
    states = whisper.encode(torch.randn(1, 80, 3000))
    assert states[0].target.dtype is torch.float32
    if own:
        assert not torch.equal(states[0].target, states[0].draft.float())
        (weight,) = {p.dtype for p in encoder_of(whisper.drafts[0].model).parameters()}
        assert weight is whisper.drafts[0].device.dtype
