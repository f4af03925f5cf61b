"""A target in 8-bit integers: the same tokens with and without drafts, and an audit beside float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import pytest
from transformers import WhisperForConditionalGeneration

from forescribe.asr.audit import Float32, _float32, audit
from forescribe.asr.decode.outcome import settings_of
from forescribe.asr.decode.transcriber import Options, Outcome, Transcriber
from forescribe.asr.errors import ModelError
from forescribe.speculative import choose, model_engines
from forescribe.speculative.errors import DeviceError
from tests.asr.decode import test_draft_dtype
from tests.asr.decode.test_draft_dtype import tokens_of

pytestmark = pytest.mark.usefixtures("encoded_once")

recording = test_draft_dtype.recording


@pytest.fixture(scope="module")
def made() -> Callable[[str, str], Transcriber]:
    """The pair with a target and a draft in these formats, loaded once."""

    @cache
    def load(quantize: str, draft_dtype: str) -> Transcriber:
        options = {"quantize": quantize, "draft_dtype": draft_dtype, "gamma": 4, "beam_size": 1}
        return Transcriber.load("tiny.en", device="cpu", network=False, **options)

    return load


@pytest.mark.native
def test_drafts_change_no_token_of_a_quantised_target(made, recording):
    options = Options(language="en", guards=None, keep_encoder_states=True)
    drafting = [made("int8", draft) for draft in ("float32", "int8")]
    plain = Transcriber(drafting[0].whisper, batch=1, gamma=0, beam_size=1)
    expected, *found = (
        tokens_of(*one.transcribe([recording], options)) for one in (plain, *drafting)
    )
    assert found == [expected, expected] and sum(map(len, expected)) > 20
    assert all(one.stats().acceptance_rate > 0.4 for one in drafting)


@pytest.mark.parametrize("engine", ["lean", "modules"])
def test_other_engines_refuse_a_quantised_target_before_its_weights_are_read(monkeypatch, engine):
    monkeypatch.setattr(WhisperForConditionalGeneration, "from_pretrained", pytest.fail)
    with pytest.raises(ModelError, match=f"--model .*int8 does not run on the {engine} engine"):
        Transcriber.load("tiny.en", network=False, quantize="int8", engine=engine)


def test_a_quantised_target_is_refused_where_the_kernels_are_missing(monkeypatch):
    monkeypatch.setattr(model_engines, "missing", lambda: "they are not compiled")
    with pytest.raises(ModelError, match=r"int8 needs the native engine \(they are not compiled\)"):
        Transcriber.load("tiny.en", network=False, quantize="int8")


@pytest.mark.native
def test_an_audit_counts_what_differs_from_float32(made, recording):
    quantized, exact = (made(*how).whisper for how in (("int8", "float32"), ("none", "int8")))
    options = Options(language="en")
    (report,) = audit(quantized, [recording], options, gamma=4, batch=2, float32=exact)
    counted = report.float32
    assert not report.differences and counted is not None
    assert 0 < counted.equal <= counted.tokens
    assert f"{counted.tokens - counted.equal} of {counted.tokens} tokens differ" in report.to_text()
    assert Float32(**json.loads(report.to_json())["float32"]) == counted


def test_windows_that_begin_elsewhere_count_as_different():
    """A part that ends earlier in one number format moves those behind it."""

    def outcome(*parts: tuple[int, tuple[int, ...]]) -> Outcome:
        decoded = [
            SimpleNamespace(index=0, start=start, result=SimpleNamespace(tokens=tokens))
            for start, tokens in parts
        ]
        return Outcome("a.flac", decoded=tuple(decoded))

    ours = outcome((0, (1, 2)), (160, (7, 8, 9)))
    theirs = outcome((0, (1, 2, 3)), (320, (8, 9)), (480, (4,)))
    assert _float32(ours, theirs) == Float32(tokens=6, equal=2, windows_equal=0)
    assert _float32(theirs, theirs) == Float32(tokens=6, equal=6, windows_equal=3)


@pytest.mark.native
def test_the_record_of_a_result_says_so(made):
    for quantize, draft in (("none", "int8"), ("int8", "float32")):
        context = made(quantize, draft).context
        assert settings_of(context, Options())["quantize"] == quantize


@pytest.mark.parametrize(
    ("device", "quantize", "message"),
    [
        ("cpu", "int4", "unknown quantization 'int4'; known: none, int8"),
        ("cuda", "int8", "int8 is computed on CPUs, not on cuda"),
    ],
)
def test_what_cannot_be_quantised_is_refused_in_one_line(monkeypatch, device, quantize, message):
    monkeypatch.setattr("forescribe.speculative.device.available", lambda kind: True)
    with pytest.raises(DeviceError, match=message):
        choose(device, None, quantize)
