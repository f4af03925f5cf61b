"""`forescribe distill`: labels as served, a draft that loads everywhere, and back after every end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, WhisperForConditionalGeneration, WhisperProcessor
from typer.testing import CliRunner

from forescribe import Transcriber
from forescribe.asr.batch.interrupts import Stop
from forescribe.asr.decode.options import Options
from forescribe.asr.errors import UsageError
from forescribe.cli.main import app
from forescribe.distill.distillation import Distillation, WorkFolder
from forescribe.distill.labels import LabelStore
from forescribe.distill.report import run_rows, tokens_per_round
from forescribe.distill.speech import Pair, label_recordings
from forescribe.distill.training import DraftTraining, traces_of
from forescribe.speculative.drafters.model_drafter import TOKENS_FILE, DraftTokens
from forescribe.speculative.models import hub
from forescribe.speculative.models.quantized import as_floats
from tests.docs.pages import ROOT

pytestmark = pytest.mark.nightly

SAMPLES = ROOT / "samples"
PIECE = 5 * 16_000
EN = ("--model", "tiny.en", "--language", "en")


def silent(stage: str, done: float, whole: float | None, note: str) -> None:
    """A hook that shows nothing."""


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
    for number in range(20):
        start = (number * PIECE) % (len(audio) - PIECE)
        soundfile.write(folder / f"{number:02d}.flac", audio[start : start + PIECE], rate)
    (folder / "broken.flac").write_bytes(b"fLaC is all that it has")
    return folder


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    return Transcriber.load("tiny.en", batch=2, modules=True, beam_size=1)


@pytest.fixture(scope="module")
def labels(recordings: Path, transcriber: Transcriber) -> Path:
    """The labels of all recordings, made once: the second time all of them are there from the start."""
    folder, seen = recordings.parent / "labels", list[float]()
    names = [str(path) for path in sorted(recordings.glob("[012]*.flac"))]

    def hook(stage: str, done: float, whole: float | None, note: str) -> None:
        seen.append(done)

    with Stop() as stop:
        for again in (False, True):
            seen.clear()
            store, options = LabelStore(folder), Options(language="en")
            skipped = label_recordings(
                transcriber, store, names, options, until=lambda: False, stop=stop, hook=hook
            )
            assert skipped == [] and seen == ([20] if again else seen)
    return folder


@pytest.fixture(scope="module")
def made(recordings: Path) -> Path:
    """A draft of two of the target's layers with a cut head, after two steps."""
    out = recordings.parent / "speech-draft"
    result = distill(recordings, "-o", out, "--steps", 2, *EN, "--layers", 2, "--cut-head")
    assert result.exit_code == 0, result.output
    assert f"--draft {out}" in result.stdout
    return out


def test_labels_are_what_the_transcriber_writes(labels: Path, recordings: Path) -> None:
    transcriber = Transcriber.load("tiny.en", gamma=0, batch=2, beam_size=1)
    names = [str(recordings / f"0{n}.flac") for n in range(3)]
    rows = {row.source: row for row in LabelStore(labels).rows()}
    for outcome in transcriber.transcribe(names, Options(language="en", keep_encoder_states=True)):
        (window,) = outcome.decoded
        row = rows[outcome.name]
        assert row.tokens == (*window.result.request.prompt, *window.result.tokens)
        # Processed as served: greedy text is the choice of the distributions at its places.
        assert row.wanted.choice.tolist() == list(window.result.tokens)
        assert window.encoder_states is not None
        assert torch.allclose(row.states()[0], window.encoder_states.target, atol=0.01)


def test_the_report_has_acceptance_beside_equality_and_names_what_was_skipped(made: Path) -> None:
    report = json.loads((made / "report.json").read_text())
    assert report["finished"] and report["steps"] == 2
    assert report["start"].startswith("layers [") and report["start"].endswith("of the target")
    assert [Path(s["name"]).name for s in report["skipped"]] == ["broken.flac"]
    assert "broken.flac" in (made / "report.md").read_text()
    for figures in (report["before"], report["after"]):
        assert figures["equal_to_gamma_0"]
        assert len(figures["acceptance_at_depth"]) == 5
    assert report["head"][0] < report["head"][1] == 51864
    assert not (made / ".distill").exists()


def test_a_made_draft_has_no_encoder_and_is_stored_in_half_precision(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    assert config["architectures"] == ["WhisperForCausalLM"]
    assert (config["decoder_layers"], config["dtype"]) == (2, "float32")
    with safe_open(made / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert not [name for name in names if "encoder.layers" in name]
        assert {file.get_tensor(name).dtype for name in names} == {torch.float16}


def test_transcripts_with_a_made_draft_are_those_of_gamma_0(made: Path) -> None:
    assert (made / TOKENS_FILE).is_file()
    options, memo = Options(language="en"), str(SAMPLES / "memo.flac")
    drafted = Transcriber.load("tiny.en", str(made), gamma=4, batch=2, beam_size=1)
    (one,) = drafted.transcribe([memo], options)
    (other,) = Transcriber.load("tiny.en", gamma=0, batch=2, beam_size=1).transcribe(
        [memo], options
    )
    assert one.transcript is not None and other.transcript is not None
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


def test_simulated_rounds_are_those_of_the_engine(
    transcriber: Transcriber, labels: Path, made: Path
) -> None:
    pair, rows = Pair(transcriber.whisper), LabelStore(labels).rows()
    listed = DraftTokens.beside(made, 51864)
    traces = traces_of(pair, pair.open(made), rows)
    whole = DraftTokens(tuple(range(51864)), 51864, "all")
    assert listed is not None
    run = run_rows(pair, made, rows, 4, 2, whole)
    assert run.stats.mean_acceptance_length == pytest.approx(tokens_per_round(traces, 4), rel=0.05)


def trained(transcriber: Transcriber, labels: Path, folder: Path) -> DraftTraining:
    pair, rows = Pair(transcriber.whisper), LabelStore(labels).rows()
    draft, checkpoint = pair.open(hub.path("tiny.en-draft")), folder / "checkpoint.pt"
    return DraftTraining(pair, draft, rows[4:], rows[:4], checkpoint, steps=4)


def test_one_seed_gives_one_draft_also_when_it_is_interrupted_on_the_way(
    transcriber: Transcriber, labels: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Stop() as stop:
        whole = trained(transcriber, labels, tmp_path / "a")
        assert whole.run(stop, silent).finished
        part = trained(transcriber, labels, tmp_path / "b")

        def after_two(stage: str, done: float, whole: float | None, note: str) -> None:
            stop.requested = part.state.step >= 2

        part.run(stop, after_two)
        stop.requested = False
        rest = trained(transcriber, labels, tmp_path / "b")
        assert rest.state.step == 2
        assert rest.run(stop, silent).finished
    ours, theirs = whole.draft.state_dict(), rest.draft.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_checkpoint_of_another_draft_is_refused(
    transcriber: Transcriber, labels: Path, tmp_path: Path
) -> None:
    torch.save({"weights": {"other": torch.zeros(1)}}, tmp_path / "checkpoint.pt")
    with pytest.raises(UsageError, match=r"no checkpoint of this draft.*--overwrite"):
        trained(transcriber, labels, tmp_path)


def work_folder(out: Path, seed: int, *, overwrite: bool = False) -> WorkFolder:
    return WorkFolder(out, {"seed": seed}, overwrite)


def test_other_settings_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    work = work_folder(out, 1)
    with work.held():
        work.keep("layers", [0, 3])
        with pytest.raises(UsageError, match="another process"), work_folder(out, 1).held():
            pass
    with work.held():
        assert work.read("layers") == [0, 3]
    with pytest.raises(UsageError, match="another seed"), work_folder(out, 2).held():
        pass
    with work_folder(out, 2, overwrite=True).held():
        assert work.read("layers") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "2", "--draft", "tiny.en-draft"], "give one"),
        (["--layers", "9"], "from 1 to 3"),
        (["--model", "tiny", "--local-files-only"], "no draft to begin with"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_labelled(
    recordings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(Distillation, "_labelled", lambda *given: pytest.fail("it labels"))
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=message):
        distill(recordings, "-o", out, "--steps", "1", *EN, *arguments)
    assert not out.exists()


def test_data_and_folders_that_cannot_be_used_are_refused(
    recordings: Path, made: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"none of these recordings can be read.*broken"):
        distill(recordings / "broken.flac", "-o", tmp_path / "out", "--model", "nothing")
    with pytest.raises(UsageError, match=r"not empty; --overwrite"):
        distill(recordings, "-o", made, "--model", "nothing")
    with pytest.raises(UsageError, match=r"too little to learn from: 1 answers"):
        distill(recordings / "00.flac", "-o", tmp_path / "out", *EN, "--steps", 1)


def test_ctrl_c_while_training_leaves_a_draft_and_the_same_run_goes_on(
    transcriber: Transcriber, labels: Path, tmp_path: Path
) -> None:
    work = WorkFolder(tmp_path / "out", {"model": "tiny.en"})
    made = 0

    def copied(store: LabelStore, until: Any) -> list[Any]:
        nonlocal made
        made += 1
        store.folder.mkdir(parents=True)
        for file in labels.iterdir():
            (store.folder / file.name).write_bytes(file.read_bytes())
        return []

    with Stop() as stop:

        def interrupt(stage: str, done: float, whole: float | None, note: str) -> None:
            stop.requested = stop.requested or (stage == "training" and done < 50)

        run = Distillation(
            Pair(transcriber.whisper),
            copied,
            work,
            stop,
            interrupt,
            start=hub.path("tiny.en-draft"),
            steps=4,
        )
        first = run.run()
        assert first is not None
        assert (first["finished"], first["steps"]) == (False, 1)
        assert (tmp_path / "out" / "config.json").is_file()
        stop.requested = False
        second = run.run()
    assert second is not None
    assert (second["finished"], second["steps"], made) == (True, 4, 1)


def _changed(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def test_a_killed_run_goes_on_with_its_labels_and_its_checkpoint(
    recordings: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "forescribe", "distill", str(recordings), "-o", str(out), *EN]
    command += ["--steps", "40", "--quiet"]

    def begun() -> bool:
        path = out / ".distill" / "checkpoint.pt"
        return path.exists() and torch.load(path, weights_only=True)["state"]["step"] > 0

    process = subprocess.Popen(command)
    deadline = time.monotonic() + 240
    while not begun():
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "config.json").exists()
    labels = out / ".distill" / "labels"
    before = {file: file.stat().st_mtime_ns for file in labels.iterdir()}
    process = subprocess.Popen(command)
    while process.poll() is None:
        # Whatever is there is as it was: the folder goes at the end.
        found = {file: _changed(file) for file in before}
        assert all(found[file] in (before[file], None) for file in before)
        time.sleep(0.1)
    assert process.returncode == 0
    report = json.loads((out / "report.json").read_text())
    assert (report["finished"], report["steps"]) == (True, 40)


def test_training_raises_acceptance(recordings: Path, tmp_path: Path) -> None:
    """From two of the target's layers, which follow it hardly at all. By steps, so that a slow machine
    learns as much as a fast one; at the first depth, which does not depend on the accepted lengths."""
    out = tmp_path / "out"
    assert distill(recordings, "-o", out, *EN, "--layers", 2, "--steps", 120).exit_code == 0
    report = json.loads((out / "report.json").read_text())
    before, after = report["before"], report["after"]
    assert before["equal_to_gamma_0"] and after["equal_to_gamma_0"]
    assert after["acceptance_at_depth"][0] > before["acceptance_at_depth"][0] + 0.1
