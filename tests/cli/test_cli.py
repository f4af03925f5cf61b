"""The command: what people type, what comes back, and with which exit status."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from huggingface_hub import constants

from forescribe.asr.batch.destinations import MANIFEST as NAME
from forescribe.asr.model import loading, presets
from forescribe.cli import main as command_line
from forescribe.cli import transcribe
from forescribe.diarize.engines import registry
from tests.asr.model import folders

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from forescribe.cli.main import main; main()"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> list[str]:
    """Options that name a pair."""
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target", max_target_positions=24)
    draft = folders.write_distilled(root / "draft", target)
    return ["--model", str(target), "--draft", str(draft), "--device", "cpu", "--no-vad"]


@pytest.fixture(scope="module")
def pair(guarded) -> list[str]:
    """Decoded once: to the guards all words of random weights are doubtful, and six more tries take
    ten times as long."""
    return [*guarded, "--no-guards"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Each test works in a folder of its own, with two recordings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name, seconds in (("a.wav", 2), ("b.wav", 3)):
        soundfile.write(name, 0.1 * rng.standard_normal(16_000 * seconds), 16_000)
    return tmp_path


@dataclass(frozen=True)
class Run:
    status: int
    out: str
    err: str


Command = Callable[..., Run]


@pytest.fixture
def forescribe(monkeypatch, capfd) -> Command:
    """The command in this process, as the console script runs it."""

    def run(*arguments: str, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(sys, "argv", ["forescribe", *arguments])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        try:
            command_line.main()
            status = 0
        except SystemExit as left:
            status = int(left.code or 0)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Run(status, out, err)

    return run


def separate(*arguments: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


# What people type


def test_recordings_become_files(forescribe, guarded, here) -> None:
    done = forescribe("transcribe", "a.wav", "b.wav", *guarded, "-o", "out", "-f", "txt,srt")
    assert done.status == 0 and done.out == ""
    assert sorted(p.name for p in (here / "out").iterdir()) == [
        "a.srt", "a.txt", "b.srt", "b.txt", NAME
    ]  # fmt: skip
    lines = [line for line in done.err.splitlines() if not line.startswith("  note ")]
    assert len(lines) == 3 and "5.0 s of audio in" in lines[-1]


def test_a_file_alone_is_transcribed_into_all_formats(forescribe, pair, here) -> None:
    assert forescribe("a.wav", *pair).status == 0
    assert {p.name for p in here.glob("a.*")} == {
        "a.wav", "a.txt", "a.srt", "a.vtt", "a.tsv", "a.json"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["a.mp3"], ["transcribe", "a.mp3"]),
        (["-"], ["transcribe", "-"]),
        (["./models"], ["transcribe", "./models"]),
        (["-o", "x", "a.mp3"], ["transcribe", "-o", "x", "a.mp3"]),
        (["models"], ["models"]),
        (["audit", "a.mp3"], ["audit", "a.mp3"]),
        (["transcribe", "models"], ["transcribe", "models"]),
        (["--version"], ["--version"]),
        (["-h"], ["-h"]),
        ([], []),
    ],
)
def test_without_a_command_transcribe_is_meant(typed, meant) -> None:
    assert command_line.with_command(typed) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("transcibe", "transcribe"),
        ("Transcribe", "transcribe"),
        ("serv", "serve"),
        ("model", "models"),
    ],
)
def test_a_mistyped_command_is_told_the_one_that_was_meant(forescribe, here, typed, meant) -> None:
    done = forescribe(typed, "a.wav")
    assert (done.status, done.out) == (2, "")
    assert f"{typed!r} is neither a command nor a file: did you mean {meant!r}?" in done.err
    (here / typed).write_bytes(b"")
    assert command_line.with_command([typed]) == ["transcribe", typed]  # a recording after all


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-f", "jsn"], "did you mean 'json'?"),
        (["--modle", "tiny.en"], "--model"),
        (["--model", "tiny.en", "-l", "de-DE"], "tiny.en knows English only; use tiny"),
        (["--model", "tiny.en", "--task", "translate"], "tiny.en knows English only; use tiny"),
        (["--model", "small.en", "-l", "de", "--local-files-only"], "English only; use small"),
        (["-l", "germn"], "unknown language 'germn': did you mean de (German)?"),
    ],
)
def test_what_is_not_possible_names_what_is(forescribe, here, options, message) -> None:
    before = set(here.iterdir())
    done = forescribe("a.wav", *options)
    assert (done.status, done.out) == (2, "")
    assert message in done.err.splitlines()[-1]
    assert set(here.iterdir()) == before


def test_stdout_holds_the_result_and_nothing_else(forescribe, pair, here) -> None:
    assert forescribe("a.wav", *pair, "-f", "vtt").status == 0
    done = forescribe("a.wav", *pair, "-o", "-", "-f", "vtt")
    assert done.out == (here / "a.vtt").read_text(encoding="utf-8")
    assert done.out.startswith("WEBVTT\n") and "WEBVTT" not in done.err


def test_stdin_is_a_recording(forescribe, pair, here) -> None:
    data = (here / "a.wav").read_bytes()
    assert forescribe("-", *pair, "-f", "txt", stdin=data).status == 0
    assert forescribe("a.wav", *pair, "-f", "txt").status == 0
    assert (here / "stdin.txt").read_bytes() == (here / "a.txt").read_bytes()


def test_json_records_parse_and_stand_alone(forescribe, pair, here) -> None:
    done = forescribe("a.wav", "none.wav", *pair, "--records", "-f", "txt")
    records = {r["path"]: r for r in map(json.loads, done.out.splitlines())}
    assert done.status == 1
    assert records["a.wav"]["outputs"] == ["a.txt"] and records["a.wav"]["audio_s"] == 2.0
    assert records["none.wav"]["code"] == "missing_file"
    assert done.err.count("\n") == 1  # the failure, for people


# Folders


@pytest.fixture
def calls(here) -> Path:
    """A folder with one below it, and one file that is none of our business."""
    (here / "calls" / "x").mkdir(parents=True)
    for name in ("a.wav", "b.wav"):
        (here / name).rename(here / "calls" / name)
    (here / "calls" / "x" / "a.wav").write_bytes((here / "calls" / "a.wav").read_bytes())
    (here / "calls" / "notes.pdf").write_text("no audio")
    return here / "calls"


def test_a_folder_is_done_once(forescribe, pair, calls, here, monkeypatch) -> None:
    done = forescribe("calls", "-r", *pair, "-o", "out", "-f", "txt")
    assert done.status == 0 and "7.0 s of audio" in done.err
    places = {str(p.relative_to(here / "out")) for p in (here / "out").rglob("*") if p.is_file()}
    assert places == {"a.txt", "b.txt", "x/a.txt", NAME}
    monkeypatch.setattr(transcribe, "load_transcriber", None)  # no model is loaded for this:
    again = forescribe("calls", "-r", *pair, "-o", "out", "-f", "txt")
    assert again == Run(0, "", "3 of 3: already done, --overwrite to redo\n")


def test_a_single_recording_is_done_once_too(forescribe, pair, here) -> None:
    assert forescribe("a.wav", *pair, "-f", "txt").status == 0
    written = (here / "a.txt").stat().st_mtime_ns
    again = forescribe("a.wav", *pair, "-f", "txt", "--gamma", "3", "--batch_size", "2")
    assert again == Run(0, "", "a.wav: already done, --overwrite to redo\n")
    assert forescribe("a.wav", *pair, "-f", "txt", "-q") == Run(0, "", "")
    (record,) = map(
        json.loads, forescribe("a.wav", *pair, "-f", "txt", "--records").out.splitlines()
    )
    assert (record["status"], record["outputs"]) == ("skipped", ["a.txt"])
    assert (here / "a.txt").stat().st_mtime_ns == written
    for other in (["--overwrite"], ["--language", "de"], ["--initial-prompt", "Ann"]):
        assert "2.0 s of audio" in forescribe("a.wav", *pair, "-f", "txt", *other).err, other


def test_an_edited_text_is_kept_and_another_format_needs_no_model(
    forescribe, pair, here, monkeypatch
) -> None:
    assert forescribe("a.wav", *pair, "-f", "txt,json").status == 0
    (here / "a.txt").write_text("mine")
    done = forescribe("a.wav", *pair, "-f", "txt,srt,json", "--initial-prompt", "Ann")
    assert (
        "note a.wav: earlier results are not used (results of other options or another model are replaced)"
        in done.err
    )
    assert "note a.txt was edited: kept; --overwrite replaces it\n" in done.err
    assert (here / "a.txt").read_text() == "mine" and "-> a .txt .srt .json" in done.err
    monkeypatch.setattr(transcribe, "load_transcriber", None)
    options = (*pair, "--initial-prompt", "Ann", "-f", "docx,md")
    assert forescribe("a.wav", *options, "--dry-run").out == "a.wav -> a .docx .md\n"
    assert forescribe("a.wav", *options) == Run(0, "", "a.wav: from its JSON -> a .docx .md\n")
    assert forescribe("a.wav", *options).err == "a.wav: already done, --overwrite to redo\n"
    (here / "a.md").unlink()
    (record,) = map(json.loads, forescribe("a.wav", *options, "--records").out.splitlines())
    assert (record["status"], record["outputs"]) == ("succeeded", ["a.docx", "a.md"])


def test_channels_are_split_into_files(forescribe, pair, here) -> None:
    both = np.random.default_rng(0).standard_normal((32_000, 2)) * 0.1
    soundfile.write("both.wav", both, 16_000)
    done = forescribe("both.wav", *pair, "-o", "out", "-f", "json", "--channels", "split")
    assert done.status == 0, done.err
    told = json.loads((here / "out/both.json").read_text())
    assert {turn["speaker"] for turn in told["turns"]} <= {"Speaker A", "Speaker B"}


def test_other_weights_at_the_same_place_do_it_again(forescribe, pair, here, tmp_path) -> None:
    target = folders.write(tmp_path / "model", seed=0)
    options = ["--model", str(target), "--device", "cpu", "--no-vad", "--no-guards", "-f", "txt"]
    assert forescribe("a.wav", *options).status == 0
    assert "already done" in forescribe("a.wav", *options).err
    folders.write(target, seed=5)
    assert "2.0 s of audio" in forescribe("a.wav", *options).err


def test_a_dry_run_lists_and_does_nothing(forescribe, pair, calls, here) -> None:
    assert forescribe("calls/a.wav", *pair, "-o", "out", "-f", "txt").status == 0
    before = {p: p.stat().st_mtime_ns for p in here.rglob("*")}
    done = forescribe("calls", "-r", *pair, "-o", "out", "-f", "txt,srt", "--dry_run")
    assert (done.status, done.err) == (
        0,
        "note calls/a.wav: earlier results are not used (a format is missing, and there is no JSON to write "
        "it from)\n",
    )
    assert sorted(done.out.splitlines()) == [
        "calls/a.wav -> out/a .txt .srt",
        "calls/b.wav -> out/b .txt .srt",
        "calls/x/a.wav -> out/x/a .txt .srt",
    ]
    done = forescribe("calls/a.wav", *pair, "-o", "out", "-f", "txt", "--dry-run", "--records")
    assert json.loads(done.out) == {
        "path": "calls/a.wav", "status": "skipped", "outputs": ["out/a.txt"]
    }  # fmt: skip
    (here / "none").mkdir()
    before[here / "none"] = (here / "none").stat().st_mtime_ns
    done = forescribe("calls", "none", *pair, "-o", "new", "--dry-run", "--records")
    found = {r["path"]: r["status"] for r in map(json.loads, done.out.splitlines())}
    assert found == {"calls/a.wav": "pending", "calls/b.wav": "pending", "none": "failed"}
    done = forescribe("calls/b.wav", "gone.wav", *pair, "-o", "new", "-f", "txt", "--dry-run")
    assert done == Run(
        1, "calls/b.wav -> new/b .txt\nfailed: gone.wav: no such file; check the path\n", ""
    )
    assert {p: p.stat().st_mtime_ns for p in here.rglob("*")} == before


def test_out_of_memory_is_survived_with_half_the_batch(forescribe, pair, here, monkeypatch) -> None:
    """The device is full whenever eight rows are in the engine."""
    from forescribe.speculative.engine.engine import Engine

    real = Engine.step

    def step(self):
        if self.batch > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(self)

    monkeypatch.setattr(Engine, "step", step)
    done = forescribe("a.wav", "b.wav", *pair, "-f", "txt")
    assert done.status == 0 and "5.0 s of audio" in done.err
    assert "note out of memory with 8 windows at a time: going on with 4" in done.err
    done = forescribe("a.wav", *pair, "-f", "txt", "--batch-size", "32", "--records", "--overwrite")
    assert done.status == 1 and json.loads(done.out)["code"] == "overloaded"


def test_line_rules_need_no_other_option(forescribe, pair, here) -> None:
    rules = ["--max_words_per_line", "2", "--highlight_words", "True"]
    assert forescribe("a.wav", *pair, "-f", "srt,json", *rules).status == 0
    segments = json.loads((here / "a.json").read_text(encoding="utf-8"))["segments"]
    assert all("words" in segment for segment in segments)
    cues = (here / "a.srt").read_text(encoding="utf-8").split("\n\n")[:-1]
    texts = [re.sub("</?u>", "", cue.split("\n", 2)[2]) for cue in cues]
    assert texts and all(len(text.split()) <= 2 for text in texts)


def test_times_of_words_that_no_format_holds_are_said(forescribe, pair, here) -> None:
    done = forescribe("a.wav", *pair, "-f", "txt", "--word_timestamps", "True")
    assert done.status == 0 and done.err.splitlines()[0].startswith("note --word-timestamps: only")
    assert "note" not in forescribe("b.wav", *pair, "-f", "json", "--word_timestamps").err


# Help, version, models


def test_version_and_help_answer(forescribe) -> None:
    assert forescribe("--version").out.startswith("forescribe 0.")
    whole = forescribe("--help")
    assert whole.status == 0 and all(c in whole.out for c in ("transcribe", "audit", "models"))
    assert forescribe("-h").out == whole.out


def test_the_command_and_its_help_load_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "numpy", "av", "fastapi", "uvicorn"}
    code = (
        "import sys\nfrom forescribe.cli.main import main\n"
        f"assert not {heavy | {'pydantic'}!r} & sys.modules.keys()\n"
        "for typed in (['--help'], ['transcribe', '--help'], ['--version']):\n"
        "    sys.argv = ['forescribe', *typed]\n"
        "    try:\n        main()\n    except SystemExit as left:\n        assert not left.code\n"
        f"    assert not {heavy!r} & sys.modules.keys(), typed\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.count("Usage: ") == 2, done.stderr


def test_help_answers_in_half_a_second() -> None:
    """The least processor time: on a busy machine two threads share a core, and take longer each."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*COMMAND, "--help"], capture_output=True, cwd=ROOT, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(times) < 0.5


# What is refused


USAGE = {
    "--language klingon": "this model does not know Klingon ('klingon')",
    "--device tpu": "unknown device 'tpu'; known: auto, cuda",
    "--device cpu:5": "no device cpu:5",
    "--dtype int8": "unknown dtype 'int8'; known: auto, float32",
    "--task sing": "unknown task 'sing'; known: transcribe, translate",
    "-f doc": "unknown output format 'doc'; known: txt",
    "-o -": "stdout takes one format",
    "-o - -f txt --records": "both write to stdout",
    "-o a.wav/x": "cannot write to the output folder 'a.wav/x'",
    "--model nothing": "neither a local folder, nor a hub id",
    "--draft nothing": "neither a local folder, nor a hub id",
    "--model b.wav": "--model b.wav is a file: give the folder",
    "--draft ./b.wav": "--draft ./b.wav is a file: give the folder",
    f"--model {'x' * 300}": "neither a local folder, nor a hub id",
    "--model ~nobody/x": "neither a local folder, nor a preset",
    "-f b.wav": "unknown output format 'b.wav'",
    "a.wav": "a.wav was given twice",
    "*.mp3": "no recording matches '*.mp3'",
    "none.jsonl": "the list none.jsonl cannot be read",
    "--max_line_count 2": "give --max-line-width",
    "--max_line_width 9 --no-word-timestamps": "need the words' times",
    "--max_line_width 9 -f txt,json": "add srt or vtt",
    "--highlight_words True -f json": "add srt or vtt",
    "--no-guards --no_speech_threshold 0.6": "contradict",
    "--beam_size 0": "--beam-size 0 is neither auto nor a number from 1 to 32",
    "--beam-size 1000": "--beam-size 1000 is neither auto nor a number from 1 to 32",
    "--beam_size 5 --patience 0": "patience is 0.0; it must be above 0, up to 10",
    "--beam_size 5 --length_penalty 1.5": "length_penalty is 1.5; it must be from 0 to 1",
    "--beam-size 1 --patience 2": "--patience is for beams: add --beam-size 5",
    "--patience 2": "patience and length_penalty are for beams: give beam_size 2 or more",
    "--hf_token hf_abc": "set HF_TOKEN",
    "--condition_on_previous_text False": "--beam-size 5",
    "--initial-prompt <|endoftext|>": "special token",
}


@pytest.mark.parametrize("options", USAGE)
def test_what_makes_no_sense_is_refused_in_one_line(forescribe, pair, here, options) -> None:
    before = set(here.iterdir())
    done = forescribe("a.wav", *pair, *options.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("forescribe: ") and done.err.count("\n") == 1
    assert USAGE[options] in done.err
    assert set(here.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gamma", "99"], "--gamma"),
        (["--gamma", "-1"], "--gamma"),
        (["--gamma", "many"], "--gamma"),
        (["--batch-size", "0"], "--batch-size"),
        (["--max-line-width", "0"], "--max-line-width"),
        (["--beam_sise", "5"], "No such option: --beam-sise"),
        (["--word_timestamp"], "--word-timestamps)"),
    ],
)
def test_a_number_out_of_range_names_its_option(forescribe, pair, options, message) -> None:
    done = forescribe("a.wav", *pair, *options)
    assert (done.status, done.out) == (2, "")
    assert message in done.err.splitlines()[-1]


def test_a_missing_model_says_how_to_get_it(forescribe) -> None:
    done = forescribe("a.wav", "--device", "cpu", "--local-files-only")
    assert done.status == 2 and done.err.count("\n") == 1
    assert "openai/whisper-large-v3 is not in the model cache" in done.err
    assert "hf download openai/whisper-large-v3" in done.err and "--model tiny.en" in done.err


def damaged(here: Path) -> dict[str, str]:
    """Recordings that cannot be transcribed, with their codes."""
    (here / "text.mp3").write_text("These are the minutes of our last meeting.\n" * 20)
    (here / "zero.wav").touch()
    (here / "loop.wav").symlink_to("loop.wav")
    (here / "none").mkdir()
    return {
        "gone.mp3": "missing_file",
        "a.wav/x.wav": "missing_file",
        "text.mp3": "invalid_audio",
        "zero.wav": "empty_file",
        "loop.wav": "unreadable_file",
        "none": "unreadable_file",
        "/dev/null": "unreadable_file",
        "x" * 300: "unreadable_file",
    }


@pytest.fixture
def no_weights(monkeypatch) -> None:
    """A search for weights fails the test."""
    for module in (presets, presets, loading):
        for name in ("find", "locate"):
            monkeypatch.setattr(module, name, None, raising=False)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("more", [(), ("--diarize",), ("--report", "pages")])
def test_nothing_to_transcribe_needs_no_weights(forescribe, here, more) -> None:
    codes = damaged(here)
    done = forescribe(*codes, *more)
    assert (done.status, done.out) == (1, "")
    *failed, last = done.err.splitlines()
    assert len(failed) == len(codes) and all(line.startswith("failed ") for line in failed)
    assert last == f"{len(codes)} failed: " + "; ".join(f"{n}: {c}" for n, c in codes.items())


def test_nothing_to_diarize_needs_no_engine(forescribe, here, monkeypatch) -> None:
    for name in ("load", "resolve"):
        monkeypatch.setattr(registry, name, None)
    codes = damaged(here)
    done = forescribe("diarize", *codes)
    assert (done.status, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith(f"{len(codes)} failed: gone.mp3: missing_file; ")


@pytest.mark.usefixtures("no_weights")
def test_nothing_to_audit_needs_no_weights(forescribe, here) -> None:
    codes = damaged(here)
    done = forescribe("audit", *codes, "--json")
    records = list(map(json.loads, done.out.splitlines()))
    assert (done.status, done.err) == (1, "")
    assert [r["source"] for r in records] == list(codes)
    assert all(r["error"].startswith(r["source"]) and not r["equal"] for r in records)


def test_one_that_can_be_read_is_enough_for_a_model(forescribe, pair, here) -> None:
    codes = damaged(here)
    done = forescribe(*codes, "a.wav", *pair, "-f", "txt", "--records")
    records = {r["path"]: r["code"] for r in map(json.loads, done.out.splitlines())}
    assert done.status == 1 and records == {**codes, "a.wav": None}
    assert (here / "a.txt").exists()


NAMES = {
    "new\nline.wav": "new\\nline",
    "title\x1b]0;x\x07.wav": "title\\x1b]0;x\\x07",
    "gnp\u202etxt.wav": "gnp\\u202etxt",
    "caf\udce9.wav": "caf\\xe9",
    "two  spaces.wav": "two  spaces",
    "日本語.wav": "日本語",
}


def test_names_do_nothing_to_the_terminal(forescribe, pair, here) -> None:
    """Whatever a recording is called: a line is a line, and nothing but it."""
    for name in NAMES:
        (here / name).write_bytes((here / "a.wav").read_bytes())
    gone = [f"gone{name}" for name in NAMES]
    done = forescribe(*NAMES, *gone, *pair, "-o", "out", "-f", "txt,json", "--report", "pages")
    assert done.status == 1
    lines = done.err.splitlines()
    for shown in NAMES.values():
        assert f"{shown}.wav: 2.0 s of audio -> out/{shown} .txt .json" in lines
        assert f"failed gone{shown}.wav: no such file; check the path (missing_file)" in lines
    assert len(lines) == 2 * len(NAMES) + 2 + done.err.count("\nreport: ")
    listed = forescribe(*NAMES, *pair, "-o", "other", "-f", "txt", "--dry-run").out.splitlines()
    assert sorted(listed) == sorted(f"{n}.wav -> other/{n} .txt" for n in NAMES.values())
    for text in (done.err, *listed):
        assert not set("\x1b\u202e\udce9") & set(text)
    records = map(json.loads, (here / "out" / NAME).read_text().splitlines())
    assert {r["path"] for r in records} == {*NAMES, *gone}  # exactly


# Audit


def test_an_audit_in_json_parses_and_a_failure_is_counted(forescribe, guarded, here) -> None:
    data = (here / "a.wav").read_bytes()
    done = forescribe("audit", "-", "none.wav", *guarded, "--json", stdin=data)
    good, bad = map(json.loads, done.out.splitlines())
    assert done.status == 1
    assert good["equal"] and good["source"] == "-" and good["windows"] == 1
    assert not bad["equal"] and "no such file" in bad["error"]


def test_an_audit_needs_drafts(forescribe, guarded) -> None:
    done = forescribe("audit", "a.wav", *guarded, "--gamma", "0")
    assert done.status == 2 and "with plain decoding" in done.err


# In a process of its own


@pytest.mark.slow
def test_ctrl_c_ends_it_in_one_line_and_keeps_what_is_done(pair, here) -> None:
    """The second recording is a pipe without a writer: the command waits there."""
    os.mkfifo(here / "pipe")
    running = separate("a.wav", "pipe", *pair, "-f", "txt", "--batch-size", "1", cwd=here)
    try:
        deadline = time.monotonic() + 120
        record = here / NAME
        while not (record.exists() and record.read_text()) and running.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # from the record to the wait for the pipe
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130
    assert out == "" and "Traceback" not in err
    # Another thread writes the notice: at once, but on a busy machine it may come last.
    notices = [line for line in err.splitlines() if line.startswith("forescribe: interrupted; ")]
    others = [line for line in err.splitlines() if line not in notices]
    assert len(notices) == 1, err
    assert others[-1] == "1 cancelled; the same command goes on", err
    assert [p.name for p in here.glob("*.t*")] == ["a.txt"]
    records = [json.loads(line) for line in (here / NAME).read_text().splitlines()]
    assert {r["path"]: r["status"] for r in records} == {"a.wav": "succeeded", "pipe": "cancelled"}


def test_ctrl_c_before_anything_has_begun_is_one_line(forescribe, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "command", interrupted)
    assert forescribe("a.wav") == Run(130, "", "forescribe: interrupted\n")


@pytest.mark.parametrize(
    "where",
    ["forescribe.asr.model.presets.locate", "forescribe.asr.decode.transcriber.Transcriber.load"],
)
def test_ctrl_c_before_a_word_was_heard_claims_no_speed(
    forescribe, pair, monkeypatch, where
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    done = forescribe("a.wav", *pair)
    assert (done.status, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "forescribe: interrupted"
    assert "real time" not in done.err


def test_a_reader_that_has_gone_ends_it_quietly(here) -> None:
    """As `forescribe models | head -1`."""
    running = separate("models", cwd=here)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    assert running.wait(timeout=120) == 1
    assert "Traceback" not in err and "Exception ignored" not in err
