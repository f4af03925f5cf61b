"""A target in 8-bit integers: the same tokens with and without drafts, and an audit beside float32."""

from __future__ import annotations

import json

import pytest
from transformers import WhisperForConditionalGeneration

from forescribe.asr.audit import Float32, audit
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.errors import ModelError
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import resolve
from forescribe.speculative import choose
from forescribe.speculative.errors import DeviceError
from forescribe.speculative.models import engines
from forescribe.speculative.models.quantized import is_int8
from tests.asr.decode import test_draft_dtype
from tests.asr.decode.test_draft_dtype import decoded

pytestmark = pytest.mark.usefixtures("encoded_once")

recording = test_draft_dtype.recording


@pytest.mark.native
def test_drafts_change_no_token_of_a_quantised_target(recording):
    plain, _ = decoded(recording, batch=1, gamma=0, quantize="int8")
    for draft in ("float32", "int8"):
        tokens, stats = decoded(recording, gamma=4, quantize="int8", draft_dtype=draft)
        assert tokens == plain
        assert stats.acceptance_rate > 0.4
    assert sum(map(len, plain)) > 20


@pytest.mark.parametrize("engine", ["lean", "modules"])
def test_other_engines_refuse_a_quantised_target_before_its_weights_are_read(monkeypatch, engine):
    monkeypatch.setattr(WhisperForConditionalGeneration, "from_pretrained", pytest.fail)
    with pytest.raises(ModelError, match=f"--model .*int8 does not run on the {engine} engine"):
        Transcriber.load("tiny.en", network=False, quantize="int8", engine=engine)


def test_a_quantised_target_is_refused_where_the_kernels_are_missing(monkeypatch):
    monkeypatch.setattr(engines, "missing", lambda: "they are not compiled")
    with pytest.raises(ModelError, match=r"int8 needs the native engine \(they are not compiled\)"):
        Transcriber.load("tiny.en", network=False, quantize="int8")


@pytest.mark.native
def test_the_target_and_the_draft_are_quantised_apart():
    for quantize, draft in (("int8", "float32"), ("none", "int8")):
        whisper = Transcriber.load(
            "tiny.en", device="cpu", network=False, quantize=quantize, draft_dtype=draft
        ).whisper
        assert is_int8(whisper.target) == (quantize == "int8")
        assert is_int8(whisper.draft) == (draft == "int8")
        assert whisper.shared_encoder and not is_int8(whisper.target.model.encoder)


@pytest.mark.native
def test_an_audit_counts_what_differs_from_float32(recording):
    pair = resolve("tiny.en", None)
    quantized = load(pair, choose("cpu", None, "int8"), network=False)
    exact = load(pair, choose("cpu"), network=False)
    (report,) = audit(
        quantized, [recording], Options(language="en"), gamma=4, batch=2, float32=exact
    )
    counted = report.float32
    assert not report.differences and counted is not None
    assert 0 < counted.equal <= counted.tokens
    assert f"{counted.tokens - counted.equal} of {counted.tokens} tokens differ" in report.to_text()
    assert Float32(**json.loads(report.to_json())["float32"]) == counted


@pytest.mark.native
def test_the_record_of_a_result_says_so():
    for quantize in ("none", "int8"):
        made = Transcriber.load("tiny.en", device="cpu", network=False, quantize=quantize, gamma=0)
        assert made.settings(Options())["quantize"] == quantize


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
