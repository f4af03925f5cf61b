"""An audit finds nothing where nothing differs, and says what differs where something does."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import forescribe.asr.audit
from forescribe.asr.audit import Difference, Report, _logits, audit
from forescribe.asr.decode.transcriber import Options, Transcriber
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.asr.model.whisper import Whisper
from forescribe.speculative.device import choose
from tests.asr.model import folders

OPTIONS = Options(language="en", vad=False)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Whisper:
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target")
    return load(Pair(target, folders.write_distilled(root / "draft", target)), choose("cpu"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "a.wav"
    rng = np.random.default_rng(0)
    soundfile.write(path, 0.1 * rng.standard_normal(16_000 * 33), 16_000)
    return path


def run(whisper: Whisper, *sources) -> list[Report]:
    return list(audit(whisper, sources, OPTIONS, gamma=3, batch=2))


def test_a_sound_engine_differs_nowhere(whisper, recording) -> None:
    (report,) = run(whisper, str(recording))
    assert (report.differences, report.error) == ((), None)
    assert report.windows == 2 and report.tokens > 20
    assert report.acceptance_rate is not None
    assert report.to_text().endswith("all equal to plain decoding")
    assert json.loads(report.to_json())["equal"] is True


def test_a_failing_recording_is_reported_and_the_next_is_audited(whisper, recording) -> None:
    bad, good = run(whisper, "none.wav", str(recording))
    assert bad.error is not None and bad.to_text().startswith("none.wav: ")
    assert json.loads(bad.to_json())["equal"] is False
    assert good.error is None


def test_a_pipe_is_read_once(whisper, recording, tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=lambda: (tmp_path / "pipe").write_bytes(recording.read_bytes())
    )
    writer.start()
    (report,) = run(whisper, str(tmp_path / "pipe"))
    writer.join()
    assert report.error is None and report.windows == 2
    assert report.source == str(tmp_path / "pipe")


def test_a_changed_token_is_found_with_its_place_and_margin(
    whisper, recording, monkeypatch
) -> None:
    """The faulty engine writes another token than plain decoding in its second window."""
    real, changed = Transcriber.transcribe, {}

    def faulty(self, sources, options=None, hook=None):
        for outcome in real(self, sources, options, hook):
            if self.gamma and options.gamma is None:
                first, second = outcome.decoded
                tokens = list(second.result.tokens)
                changed["right"], tokens[4] = tokens[4], 70 if tokens[4] != 70 else 71
                changed["wrong"], changed["start"] = tokens[4], second.start / 16_000
                result = replace(second.result, tokens=tuple(tokens))
                outcome = replace(outcome, decoded=(first, replace(second, result=result)))
            yield outcome

    monkeypatch.setattr(forescribe.asr.audit.Transcriber, "transcribe", faulty)
    (report,) = run(whisper, str(recording))
    (difference,) = report.differences
    assert (difference.window, difference.position) == (1, 4)
    assert (difference.start_s, difference.way) == (changed["start"], "speculative")
    words = [whisper.tokenizer.decode([changed[name]]) for name in ("right", "wrong")]
    assert [difference.plain, difference.other] == words
    assert difference.margin > 0  # plain decoding took the likelier one
    assert "1 difference" in report.to_text()
    assert f"at {changed['start']:.2f} s, token 4" in report.to_text()
    assert json.loads(report.to_json())["equal"] is False


def test_margins_come_from_a_forward_without_cache(whisper, recording) -> None:
    one = Transcriber(whisper, batch=1, gamma=0)
    (outcome,) = one.transcribe([recording], replace(OPTIONS, keep_encoder_states=True))
    decoded = outcome.decoded[0]
    tokens = decoded.result.tokens
    for position in (0, 1, 7):
        logits = _logits(
            whisper, decoded.encoder_states, decoded.result.request.prompt, tokens[:position]
        )
        assert int(logits.argmax()) == tokens[position]
        logprob = float(torch.log_softmax(logits, -1)[tokens[position]])
        assert logprob == pytest.approx(decoded.result.logprobs[position], abs=1e-4)


@pytest.mark.parametrize("margin", [float("nan"), float("inf")])
def test_the_report_is_json_without_nan(margin) -> None:
    difference = Difference(0, 0.0, 3, "a", "", "same shape", margin)
    report = Report("a.wav", differences=(difference,))
    data = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert data["differences"][0]["margin"] is None
    assert "a.wav: 0 windows" in report.to_text()
