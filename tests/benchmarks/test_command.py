"""What the comparisons share, and what a user's mistakes give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.options import INSTALL
from benchmarks.systems.jobs import CPP, SEQUENTIAL
from forescribe.asr.errors import AudioError, UsageError
from tests.benchmarks.command import bench
from tests.test_architecture import HEAVY, ROOT

SAMPLES = ROOT / "samples"
MEMO, MEMO_TXT = (str(SAMPLES / f"memo.{kind}") for kind in ("flac", "txt"))


@pytest.mark.parametrize("program", ["transcribe", "text", "drafts"])
def test_help_loads_nothing_heavy(program: str) -> None:
    """What they measure with is loaded when it is needed."""
    heavy = {*HEAVY, "jiwer", "faster_whisper", "ctranslate2"}
    code = f"import sys, benchmarks.{program}; print(*sorted({heavy!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


def test_a_worker_loads_no_library_before_its_system_does() -> None:
    """A peer's peak of memory is its own: torch alone is 200 MB."""
    code = f"import sys, benchmarks.systems.runs; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ([MEMO, "--only", "vosk"], UsageError, "--only 'vosk' is no system; known"),
        ([MEMO, "--batch", "1 4"], UsageError, "--batch 1 4: '1 4' is no number"),
        (
            [MEMO, "--dtype", "float32,int4"],
            UsageError,
            "--dtype float32,int4: 'int4' is none of float32, bfloat16",
        ),
        ([MEMO, "--minutes", "inf"], UsageError, "--minutes inf is no length"),
        ([MEMO, "--json", str(ROOT)], UsageError, "is a folder: name a file in it"),
        ([MEMO, "--reference", "a.txt", "--reference", "b.txt"], UsageError, "1 recordings, but 2"),
        ([MEMO, "--reference", "nothing.txt"], UsageError, "no reference text nothing.txt"),
        (["still.wav"], UsageError, "the reference texts have no words"),
        (["still.wav", "--reference", MEMO_TXT], AudioError, "no speech was found"),
        (
            ["still.wav", "--reference", "still.wav"],
            UsageError,
            "still.wav cannot be read as UTF-8",
        ),
        (["nothing.wav"], UsageError, "no reference text"),
        (["nothing.wav", "--reference", MEMO_TXT], AudioError, "nothing.wav"),
    ],
)
def test_a_users_mistake_is_one_line_before_anything_is_measured(
    tmp_path, monkeypatch, arguments, error, said
) -> None:
    pytest.importorskip("jiwer", reason="without it, that is what is said")
    monkeypatch.chdir(tmp_path)
    from benchmarks import transcribe

    soundfile.write("still.wav", np.full(16_000, 1 / 3), 16_000)
    Path("still.txt").write_text(" ... ")
    monkeypatch.setattr(transcribe, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(error, match=said):
        bench("transcribe", *arguments)


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("jiwer", [MEMO], f"benchmarks.transcribe needs jiwer: {INSTALL}"),
        ("faster_whisper", [MEMO, "--only", SEQUENTIAL],
         f"--only 'faster-whisper' needs faster-whisper: {INSTALL}"),
        ("pywhispercpp", [MEMO, "--only", CPP], f"--only 'whisper.cpp' needs pywhispercpp: {INSTALL}"),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_is_named(monkeypatch, module, arguments, said) -> None:
    pytest.importorskip("jiwer", reason="is missing in any case")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as caught:
        bench("transcribe", *arguments)
    assert caught.value.message == said


def test_the_console_entry_says_it_in_one_line_with_status_2(tmp_path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.text", "--gamma", "many"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("forescribe: --gamma many: ") and run.stderr.count("\n") == 1
