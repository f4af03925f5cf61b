"""`forescribe distill` on recordings: labels as served, a draft without an encoder, bad files named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)
from typer.testing import CliRunner

from forescribe import Transcriber
from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.decode.options import Options
from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.distill.distillation import Distillation
from forescribe.distill.labels import OWN, LabelStore
from forescribe.distill.speech import label_recordings
from forescribe.speculative.models import hub
from forescribe.speculative.models.quantized import as_floats
from tests.docs.pages import ROOT

pytestmark = pytest.mark.nightly

SAMPLES = ROOT / "samples"
PIECE = 5 * 16_000


def distill(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["distill", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty pieces of five seconds, and a file that is no recording."""
    folder = tmp_path_factory.mktemp("recordings")
    audio, rate = soundfile.read(SAMPLES / "memo.flac", dtype="int16")
    assert rate == 16_000
    for number in range(20):
        start = (number * PIECE) % (len(audio) - PIECE)
        soundfile.write(folder / f"{number:02d}.flac", audio[start : start + PIECE], rate)
    (folder / "broken.flac").write_bytes(b"fLaC is all that it has")
    return folder


@pytest.fixture(scope="module")
def made(recordings: Path) -> Path:
    """A draft of two of the target's layers, after two steps."""
    out = recordings.parent / "speech-draft"
    arguments = ("--model", "tiny.en", "--language", "en", "--layers", 2, "--choose", "spacing")
    result = distill(recordings, "-o", out, "--steps", 2, *arguments)
    assert result.exit_code == 0, result.output
    return out


def test_labels_are_what_the_transcriber_writes_and_are_made_once(
    recordings: Path, tmp_path: Path
) -> None:
    transcriber = Transcriber.load("tiny.en", gamma=0, batch=2)
    names = [str(path) for path in sorted(recordings.glob("0[0-2].flac"))]
    store, options, seen = LabelStore(tmp_path / "labels"), Options(language="en"), list[float]()

    def hook(stage: str, done: float, whole: float | None, note: str) -> None:
        seen.append(done)

    with Stop() as stop:
        for _ in range(2):
            skipped = label_recordings(
                transcriber, store, names, OWN, options, until=lambda: False, stop=stop, hook=hook
            )
            assert skipped == []
    rows = {row.source: row for row in store.rows()}
    assert seen[-1] == len(names)  # the second time all of them are there from the start
    for outcome in transcriber.transcribe(names, Options(language="en", keep_encoder_states=True)):
        (window,) = outcome.decoded
        row = rows[outcome.name]
        assert row.tokens == (*window.result.request.prompt, *window.result.tokens)
        # Processed as served: greedy text is the choice of the distributions at its places.
        assert row.wanted.choice.tolist() == list(window.result.tokens)
        assert row.states is not None
        assert window.encoder_states is not None
        target, draft = row.states()
        assert torch.equal(target, draft)
        assert torch.allclose(target, window.encoder_states.target, atol=0.01)


def test_a_made_draft_has_no_encoder_and_the_report_names_what_was_skipped(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    assert report["start"] == "layers [0, 3] of the target"
    assert [Path(s["name"]).name for s in report["skipped"]] == ["broken.flac"]
    assert "broken.flac" in (made / "report.md").read_text()
    for figures in (report["before"]["own"], report["after"]["own"]):
        assert figures["equal_to_gamma_0"]
    config = json.loads((made / "config.json").read_text())
    assert config["architectures"] == ["WhisperForCausalLM"]
    assert config["decoder_layers"] == 2
    with safe_open(made / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "encoder.layers" in name]


def test_transcripts_with_a_made_draft_are_those_of_gamma_0(made: Path) -> None:
    options = Options(language="en")
    memo = str(SAMPLES / "memo.flac")
    drafted = Transcriber.load("tiny.en", str(made), gamma=4, batch=2)
    (one,) = drafted.transcribe([memo], options)
    (other,) = Transcriber.load("tiny.en", gamma=0, batch=2).transcribe([memo], options)
    assert one.transcript is not None
    assert other.transcript is not None
    written = [
        [(s.start, s.end, s.text, s.tokens) for s in transcript.segments]
        for transcript in (one.transcript, other.transcript)
    ]
    assert written[0] == written[1]  # all but the probabilities, whose last digits may differ
    assert drafted.whisper.shared_encoder
    assert drafted.stats().drafted > 0


def test_a_made_draft_assists_in_transformers(made: Path, tmp_path: Path) -> None:
    folder = as_floats(hub.path("tiny.en"), tmp_path / "target")
    target = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    draft = AutoModelForCausalLM.from_pretrained(made).eval()
    processor = WhisperProcessor.from_pretrained(made)
    audio, _ = soundfile.read(SAMPLES / "memo.flac", dtype="float32", frames=5 * 16_000)
    features = processor(audio, sampling_rate=16_000, return_tensors="pt").input_features
    settings = {"max_new_tokens": 24}
    plain = target.generate(features, **settings)
    assisted = target.generate(features, assistant_model=draft, **settings)
    assert plain.tolist() == assisted.tolist()


def test_recordings_that_cannot_be_read_are_refused_before_a_model_is_loaded(
    recordings: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"none of these recordings can be read.*broken"):
        distill(recordings / "broken.flac", "-o", tmp_path / "out", "--model", "nothing")


def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    recordings: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        distill(recordings, "-o", tmp_path / "full", "--model", "nothing")
    absent = ("--model", "tiny", "--local-files-only")
    with pytest.raises(UsageError, match="no draft to begin with"):
        distill(recordings, "-o", tmp_path / "out", *absent)


def test_a_number_of_layers_is_refused_before_anything_is_labelled(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Distillation, "_label", lambda *given: pytest.fail("it began to label"))
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="from 1 to 3"):
        distill(recordings, "-o", out, "--model", "tiny.en", "--layers", 9)
    assert not out.exists()


def test_too_little_speech_is_refused_with_what_is_needed(recordings: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too little to learn from: 1 answers"):
        distill(recordings / "00.flac", "-o", tmp_path / "out", "--model", "tiny.en", "--steps", 1)


def test_training_raises_acceptance(recordings: Path, tmp_path: Path) -> None:
    """From two of the target's layers, which follow it hardly at all. By steps, so that a slow machine
    learns as much as a fast one; at the first depth, which does not depend on the accepted lengths."""
    out = tmp_path / "out"
    arguments = ("--model", "tiny.en", "--language", "en", "--layers", 2, "--steps", 300)
    assert distill(recordings, "-o", out, *arguments).exit_code == 0
    report = json.loads((out / "report.json").read_text())
    before, after = report["before"]["own"], report["after"]["own"]
    assert before["equal_to_gamma_0"] and after["equal_to_gamma_0"]
    assert after["acceptance_at_depth"][0] > before["acceptance_at_depth"][0] + 0.1
