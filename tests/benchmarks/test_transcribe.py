"""`python -m benchmarks.transcribe` measures what it says, on a random pair and a few seconds of speech.

Nothing here is fast or right in its words; equality, counts and reasons are what is looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from transformers import WhisperForConditionalGeneration

pytest.importorskip("jiwer", reason="word error rates need jiwer (group bench)")

from benchmarks import transcribe
from benchmarks.comparison import INSTALL, Equality, compare, error_rate
from benchmarks.systems import runs
from benchmarks.systems.jobs import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    GENERATE,
    OURS,
    SEQUENTIAL,
    Job,
    Material,
    Written,
)
from benchmarks.systems.runs import Outcome, Series
from forescribe.asr.errors import AudioError, UsageError
from tests.asr.model import folders
from tests.test_architecture import HEAVY, ROOT

MEMO, MEMO_TXT = (str(ROOT / "samples" / f"memo.{kind}") for kind in ("flac", "txt"))
PEERS = (ASSISTED, ASSISTED_DEFAULTS, GENERATE)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Few positions: a random model never ends. The draft carries the target's encoder."""
    root = tmp_path_factory.mktemp("pair")
    target = folders.write(root / "target", max_target_positions=24)
    draft = folders.write(root / "draft", layers=1, seed=1, max_target_positions=24)
    model, teacher = (WhisperForConditionalGeneration.from_pretrained(f) for f in (draft, target))
    model.model.encoder.load_state_dict(teacher.model.encoder.state_dict())
    model.save_pretrained(draft)
    return str(target), str(draft)


@pytest.fixture(scope="module")
def memo(tmp_path_factory):
    path = tmp_path_factory.mktemp("audio") / "memo.wav"
    samples, rate = soundfile.read(MEMO, frames=10 * 16000, dtype="float32")
    soundfile.write(path, samples, rate)
    path.with_suffix(".txt").write_text("This is a short memo.")
    return path


def here(windows: Path) -> runs.Runner:
    return lambda job: runs.perform(job, runs.load_windows(windows))


def measured(pair, memo, tmp_path, capsys, *arguments: str) -> tuple[int, dict, str]:
    """Status, record and table; jobs run in this process, where libraries are loaded once."""
    out = tmp_path / "out.json"
    given = [str(memo), "--model", pair[0], "--draft", pair[1], "--minutes", "0"]
    given += ["--batch", "1,2", "--gamma", "3", "--peer-batch", "2", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcribe, "child", here)
        status = transcribe.main([*given, "--repeats", "1", "--json", str(out), *arguments])
    return status, json.loads(out.read_text()), capsys.readouterr().out


def only(*systems: str) -> list[str]:
    return [word for system in systems for word in ("--only", system)]


def by_system(record: dict) -> dict[tuple, dict]:
    return {(r["system"], r["batch"], r["gamma"], r["dtype"]): r for r in record["rows"]}


def test_every_speed_has_its_equality_and_its_error_rate(pair, memo, tmp_path, capsys):
    given = ("--dtype", "float32,bfloat16", *only(*PEERS))
    status, record, told = measured(pair, memo, tmp_path, capsys, *given)
    rows = by_system(record)
    assert status == 0
    assert set(rows) == {
        *(
            (OURS, batch, gamma, dtype)
            for batch in (1, 2)
            for gamma in (0, 3, "auto")
            for dtype in ("float32", "bfloat16")
        ),
        *((GENERATE, batch, None, "float32") for batch in (1, 2)),
        (ASSISTED, 1, 3, "float32"),
        (ASSISTED_DEFAULTS, 1, 20, "float32"),
    }
    for row in rows.values():
        assert row["error"] is None
        assert row["wall_s"] > 0 and row["peak_bytes"] > 1e8 and row["threads"] == 1
        assert row["word_error_rate"] is not None and row["equality_float32"]["tokens_of"] > 0
        assert row["equality"]["windows"] == row["equality"]["windows_of"] >= 1
    assert rows[ASSISTED, 1, 3, "float32"]["acceptance_rate"] is not None
    windows = record["audio"]["windows"]
    assert f"{windows} assisted loops" in rows[ASSISTED, 1, 3, "float32"]["notes"]
    assert set(record["weights"]["target"]) == {"model.safetensors"}
    assert record["command"].startswith("python -m benchmarks.transcribe")
    expected = record["native_kernels"]
    assert (f"native kernels for {expected}" if expected else "no native kernels") in told
    assert "equal tokens" in told and "tokens as float32" in told


def test_converted_weights_write_the_tokens_of_the_original(pair, memo, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="faster-whisper's engine is not installed")
    pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    given = ("--batch", "1", "--gamma", "0", *only(SEQUENTIAL, BATCHED))
    _, record, _ = measured(pair, memo, tmp_path, capsys, *given)
    rows = by_system(record)
    for system, batch in ((SEQUENTIAL, 1), (BATCHED, 2)):
        row = rows[system, batch, None, "float32"]
        assert row["error"] is None
        # CTranslate2 stops at half of the 24 positions, and its kernels may flip a near-tie.
        assert row["equality"]["tokens"] >= 4
        assert rows[system, batch, None, "int8"]["error"] is None
        assert "set to multilingual" in row["notes"]


def test_without_a_package_its_rows_say_what_to_install(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    found = transcribe.converted_for([SEQUENTIAL], Path(pair[0]), tmp_path)
    assert found == ({}, f"faster-whisper is not installed: {INSTALL}")
    assert transcribe.converted_for(PEERS, Path(pair[0]), tmp_path) == ({}, None)
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(UsageError, match="needs jiwer"):
        transcribe.main([MEMO])


def series(system: str, dtype: str, tokens: list[list[int]] | None, gamma: int = 0) -> Series:
    job = Job(system, 1, gamma, dtype, "", None, 1)
    written = None if tokens is None else Written(tokens, ["words"])
    return Series(job, [Outcome(written, 1.0, error="no memory" if tokens is None else None)])


def test_each_dtype_is_compared_with_its_own_plain_decoding():
    material = Material((np.zeros(1, np.float32),), 16000, "words", ("clip",))
    rows = transcribe.rows_of(
        [
            series(OURS, "float32", [[1, 2, 3]]),
            series(OURS, "bfloat16", [[1, 2, 4]]),
            series(OURS, "bfloat16", [[1, 2, 4]], gamma=5),
            series(OURS, "int8", None),
            series(OURS, "int8", [[1]], gamma=5),
            series(BATCHED, "int8", [[1, 2, 9]]),
        ],
        material,
    )
    assert rows[2].equality == Equality(3, 3, 1, 1)
    assert rows[2].equality_first == Equality(2, 3, 0, 1)
    assert rows[4].error == "plain decoding in int8 failed: no reference"
    assert rows[5].equality == Equality(2, 3, 0, 1)
    assert transcribe.differing(rows) == [rows[3], rows[4]]


def test_a_child_brings_its_error_home(tmp_path):
    (tmp_path / "windows.npz").write_bytes(b"not windows")
    job = Job(OURS, 1, 0, "float32", "nowhere", None, 1)
    outcome = runs.child(tmp_path / "windows.npz")(job)
    assert outcome.written is None
    assert outcome.error is not None and "status 1" in outcome.error


def test_jobs_are_interleaved_and_a_failed_one_is_not_tried_again():
    jobs = [Job(name, 1, None, "float32", "", None, 1) for name in "abc"]
    walls = iter([3.0, 1.0, 2.0, 5.0, 1.5, 4.0])
    order: list[str] = []

    def run(job: Job) -> Outcome:
        order.append(job.system)
        if job.system == "b":
            return Outcome(error="no")
        return Outcome(Written([[1]], ["x"]), next(walls))

    a, b, c = runs.measure(jobs, run, 3, lambda _: None)
    assert order == list("abcacac")
    assert (a.median.wall_s, c.median.wall_s) == (2.0, 4.0)
    assert b.error == "no"


def test_tokens_count_as_equal_up_to_the_first_difference():
    plain = [[1, 2, 3, 4], [5, 6], [7]]
    other = [[1, 9, 3, 4], [5, 6], [7, 8]]
    assert compare(plain, other) == Equality(tokens=4, tokens_of=7, windows=1, windows_of=3)
    assert compare(plain, plain).complete


def test_error_rate_counts_words():
    assert error_rate("One, two three four.", "one two tree") == 0.5
    with pytest.raises(ValueError, match="no words"):
        error_rate(" . ", "one")


def test_a_worker_loads_no_library_before_its_system_does() -> None:
    """A peer's peak of memory is its own: torch alone is 200 MB."""
    code = f"import sys, benchmarks.systems.runs; print(*sorted({HEAVY!r} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ([MEMO, "--batch", "1 4"], SystemExit, "'1 4' is no number"),
        ([MEMO, "--json", str(ROOT)], UsageError, "name a file in a folder"),
        ([MEMO, "--reference", "nothing.txt"], UsageError, "no reference text nothing.txt"),
        (["still.wav"], UsageError, "the reference texts have no words"),
        (["still.wav", "--reference", MEMO_TXT], AudioError, "no speech was found"),
        (["nothing.wav", "--reference", MEMO_TXT], AudioError, "nothing.wav"),
    ],
)
def test_a_users_mistake_is_told_before_anything_is_measured(
    tmp_path, monkeypatch, capsys, arguments: list[str], error: Any, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("still.wav", np.full(16_000, 1 / 3), 16_000)
    Path("still.txt").write_text(" ... ")
    monkeypatch.setattr(transcribe, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(error) as caught:
        transcribe.main(arguments)
    assert said in str(caught.value) + capsys.readouterr().err
