"""Guards in the transcriber: only a failing window is decoded again, reproducibly, with a record."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from asr.errors import UsageError
from asr.guards import Guards, Judgement
from asr.loading import load
from asr.presets import Pair
from asr.transcriber import Options, Transcriber
from speculative import choose
from tests.asr import folders

RATE = 16000


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target")
    draft = folders.write_distilled(root / "draft", target)
    return load(Pair(target, draft), choose("cpu"), network=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """70 s of noise: three windows of 30, 30 and 10 s without voice activity."""
    import soundfile

    path = tmp_path_factory.mktemp("audio") / "noise.wav"
    noise = np.random.default_rng(0).standard_normal(70 * RATE) * 0.1
    soundfile.write(path, noise.astype(np.float32), RATE, subtype="FLOAT")
    return str(path)


def options(guards: Guards | None, **more) -> Options:
    return Options(language="en", vad=False, keep_memory=True, guards=guards, **more)


def decode(whisper, recording, guards, *, batch=2, gamma=3, judge=None, monkeypatch=None):
    if judge is not None:
        monkeypatch.setattr(Guards, "judge", judge)
    transcriber = Transcriber(whisper, batch=batch, gamma=gamma)
    (outcome,) = transcriber.transcribe([recording], options(guards))
    assert outcome.error is None
    return outcome


def failing(window: float, until: float):
    """A judge that fails one window, known by its no-speech probability, below a temperature."""

    def judge(self, *, compression_ratio, mean_logprob, no_speech_prob):
        hit = math.isclose(no_speech_prob, window, rel_tol=1e-6)
        if hit and judge.temperature < until:
            judge.temperature = self.next_temperature(judge.temperature) or math.inf
            return Judgement.RETRY, "planted"
        return Judgement.KEEP, None

    judge.temperature = 0.0
    return judge


def test_a_planted_failing_window_alone_is_decoded_again(whisper, recording, monkeypatch):
    plain = decode(whisper, recording, None)
    victim = plain.decoded[1].result.probe[0]
    guarded = decode(
        whisper, recording, Guards(), judge=failing(victim, 0.4), monkeypatch=monkeypatch
    )
    temperatures = [d.result.request.temperature for d in guarded.decoded]
    assert temperatures == [0.0, 0.4, 0.0]
    for n in (0, 2):
        assert guarded.decoded[n].result.tokens == plain.decoded[n].result.tokens
    assert guarded.decoded[1].result.tokens != plain.decoded[1].result.tokens


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fallback_is_the_same_in_any_batch(whisper, recording, monkeypatch, batch):
    victim = decode(whisper, recording, None).decoded[1].result.probe[0]

    def again(size):
        judge = failing(victim, 0.6)
        with pytest.MonkeyPatch.context() as patch:
            return decode(whisper, recording, Guards(), batch=size, judge=judge, monkeypatch=patch)

    first, second = again(2), again(batch)
    assert [d.result.tokens for d in first.decoded] == [d.result.tokens for d in second.decoded]


def test_what_fails_to_the_end_is_kept_and_tried_at_every_temperature_once(
    whisper, recording, monkeypatch
):
    tried = []

    def never(self, *, compression_ratio, mean_logprob, no_speech_prob):
        tried.append(no_speech_prob)
        return Judgement.RETRY, "planted"

    guards = Guards(temperatures=(0.0, 0.5, 1.0))
    outcome = decode(whisper, recording, guards, judge=never, monkeypatch=monkeypatch)
    assert len(tried) == 9
    assert [d.result.request.temperature for d in outcome.decoded] == [1.0] * 3
    assert outcome.transcript.coverage.decoded_samples == 70 * RATE


def test_silence_is_dropped_with_a_record(whisper, recording, monkeypatch):
    victim = decode(whisper, recording, None).decoded[2].result.probe[0]

    def judge(self, *, compression_ratio, mean_logprob, no_speech_prob):
        if math.isclose(no_speech_prob, victim, rel_tol=1e-6):
            return Judgement.SILENCE, "no speech (planted)"
        return Judgement.KEEP, None

    outcome = decode(whisper, recording, Guards(), judge=judge, monkeypatch=monkeypatch)
    transcript = outcome.transcript
    assert {s.window for s in transcript.segments} <= {0, 1}
    assert [s.state for s in transcript.coverage.spans] == ["decoded", "decoded", "silent"]
    assert transcript.coverage.spans[2].reason == "no speech (planted)"
    assert [n.code for n in transcript.warnings] == ["dropped_text"]
    assert "60.0 to 70.0 s" in transcript.warnings[0].message


def test_a_window_of_nan_is_failed_not_kept(whisper, recording, monkeypatch):
    transcriber = Transcriber(whisper, batch=2, gamma=0)
    collect = transcriber.engine._collect

    def broken(row, tenant):
        result = collect(row, tenant)
        return replace(result, logprobs=(math.nan,) * len(result.logprobs))

    monkeypatch.setattr(transcriber.engine, "_collect", broken)
    (outcome,) = transcriber.transcribe([recording], options(Guards(temperatures=(0.0, 0.2))))
    assert outcome.transcript.coverage.failed_samples == 70 * RATE
    assert outcome.transcript.text == ""


def test_guards_refuse_impossible_thresholds():
    with pytest.raises(UsageError, match="probability"):
        Guards(no_speech=1.5)
