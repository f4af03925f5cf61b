"""The benchmark measures what it says, on a random pair and a few seconds of transcribe.

Nothing here is fast or right in its words; equality, counts and reasons are what is looked at.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from transformers import WhisperForConditionalGeneration

pytest.importorskip("jiwer", reason="word error rates need jiwer (group bench)")

from benchmarks import drafts, speech_tables, transcribe
from benchmarks.rows import Equality, compare, error_rate
from benchmarks.systems import runs, whisper_cpp
from benchmarks.systems.jobs import (
    ASSISTED,
    ASSISTED_DEFAULTS,
    BATCHED,
    CPP,
    CPP_FLASH,
    GENERATE,
    MODULES,
    OPENVINO,
    OURS,
    SEQUENTIAL,
    Job,
    Material,
    Written,
)
from benchmarks.systems.runs import Outcome, Series
from benchmarks.systems.whisper_cpp import WhisperCpp
from benchmarks.transcribe import TranscribeOptions
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import UsageError
from forescribe.speculative.models.quantized import as_floats
from tests.asr.model import folders
from tests.benchmarks.command import bench

SAMPLE = Path(__file__).parents[2] / "samples" / "memo.flac"
PLAIN = ("--batch", "1", "--gamma", "0")
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
    samples, rate = soundfile.read(SAMPLE, frames=10 * 16000, dtype="float32")
    soundfile.write(path, samples, rate)
    path.with_suffix(".txt").write_text("This is a short memo.")
    return path


def here(windows: Path, **how: bool) -> runs.Runner:
    return lambda job: runs.perform(job, runs.load_windows(windows))


def measured(pair, memo, tmp_path, *arguments: str) -> tuple[int, dict]:
    """The command's status and record; jobs run in this process, where libraries are loaded once."""
    out = tmp_path / "out.json"
    given = [str(memo), "--model", pair[0], "--draft", pair[1], "--minutes", "0"]
    given += ["--batch", "1,2", "--gamma", "3", "--peer-batch", "2", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcribe, "child", here)
        done = bench("transcribe", *given, "--repeats", "1", "--json", str(out), *arguments)
    (tmp_path / "out.txt").write_text(done.stdout)
    return done.exit_code, json.loads(out.read_text())


def options_of(memo: object, **given: Any) -> TranscribeOptions:
    return TranscribeOptions([str(memo)], **given)


def only(*systems: str) -> list[str]:
    return [word for system in systems for word in ("--only", system)]


def by_system(record: dict) -> dict[tuple, dict]:
    return {(r["system"], r["batch"], r["gamma"], r["dtype"]): r for r in record["rows"]}


def test_every_speed_has_its_equality_and_its_error_rate(pair, memo, tmp_path):
    status, record = measured(pair, memo, tmp_path, *only(*PEERS))
    rows = by_system(record)
    assert status == 0
    assert set(rows) == {
        *((OURS, batch, gamma, "float32") for batch in (1, 2) for gamma in (0, 3, "auto")),
        *((GENERATE, batch, None, "float32") for batch in (1, 2)),
        (ASSISTED, 1, 3, "float32"),
        (ASSISTED_DEFAULTS, 1, 20, "float32"),
    }
    for row in rows.values():
        assert row["error"] is None
        assert row["wall_s"] > 0 and row["peak_bytes"] > 1e8 and row["threads"] == 1
        assert row["word_error_rate"] is not None
        assert row["equality"]["windows"] == row["equality"]["windows_of"] >= 1
    assert rows[ASSISTED, 1, 3, "float32"]["acceptance_rate"] is not None
    windows = record["audio"]["windows"]
    assert f"{windows} assisted loops" in rows[ASSISTED, 1, 3, "float32"]["notes"]
    assert set(record["weights"]["target"]) == {"model.safetensors"}
    assert "equal tokens" in (tmp_path / "out.txt").read_text()


def test_drafters_of_recordings_write_the_tokens_of_plain_decoding(
    pair, memo, tmp_path, monkeypatch
):
    monkeypatch.setattr(drafts, "child", here)
    given = ["--model", pair[0], "--draft", pair[1], "--batch", "1", "--gamma", "3"]
    out = tmp_path / "out.json"
    done = bench("drafts", str(memo), *given, "--threads", "1", "--json", str(out))
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert [row["drafter"] for row in record["rows"]] == ["plain", Path(pair[1]).name]
    assert record["material"]["windows"] >= 1
    for row in record["rows"]:
        assert row["equality"]["windows"] == row["equality"]["windows_of"] >= 1
        assert row["speed_up"] > 0 and row["word_error_rate"] is not None
    assert "WER %" in done.stdout


def test_converted_weights_write_the_tokens_of_the_original(pair, memo, tmp_path):
    pytest.importorskip("ctranslate2", reason="faster-whisper's engine is not installed")
    pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    _, record = measured(pair, memo, tmp_path, *PLAIN, *only(SEQUENTIAL, BATCHED))
    rows = by_system(record)
    for system, batch in ((SEQUENTIAL, 1), (BATCHED, 2)):
        row = rows[system, batch, None, "float32"]
        assert row["error"] is None
        # CTranslate2 stops at half of the 24 positions, and its kernels may flip a near-tie.
        assert row["equality"]["tokens"] >= 4
        assert rows[system, batch, None, "int8"]["error"] is None
        assert "set to multilingual" in row["notes"]


@pytest.mark.parametrize(
    ("module", "package", "systems"),
    [
        ("faster_whisper", "faster-whisper", (SEQUENTIAL, BATCHED)),
        ("pywhispercpp", "pywhispercpp", (CPP, CPP_FLASH)),
        ("openvino_genai", "openvino-genai", (OPENVINO,)),
    ],
)
def test_without_a_package_its_rows_say_what_to_install(
    pair, memo, tmp_path, monkeypatch, module, package, systems
):
    monkeypatch.setitem(sys.modules, module, None)
    trouble = f"{package} is not installed: run `scripts/setup bench` in forescribe's folder"
    found = transcribe.converted_for(options_of(memo, only=None), Path(pair[0]), tmp_path)
    assert {name: found[1][name] for name in systems} == dict.fromkeys(systems, trouble)
    assert not any(name in systems for name, _ in found[0])
    without = options_of(memo, only=list(PEERS))
    assert transcribe.converted_for(without, Path(pair[0]), tmp_path) == ({}, {})


def test_whisper_cpp_writes_what_it_hears_of_weights_in_its_format(tmp_path):
    """The bundled target in float16 and in 8 bits; its own features and rules."""
    pytest.importorskip("pywhispercpp", reason="whisper.cpp is not installed")
    model = as_floats(SAMPLE.parents[1] / "bundled" / "tiny.en", tmp_path / "floats")
    files, trouble = whisper_cpp.convert(model, tmp_path)
    assert trouble is None and set(files) == {"float16", "int8"}
    samples = read_audio(SAMPLE)[: 20 * 16_000]
    for dtype, flash in (("float16", False), ("float16", True), ("int8", False)):
        job = Job(CPP, 1, None, dtype, str(model), None, 1, files[dtype])
        written = WhisperCpp(job, flash=flash).run([samples, samples])
        assert written.tokens[0] == written.tokens[1] and len(written.tokens[0]) > 20
        assert "new plant manager" in written.texts[0]


SAME, OTHER = Equality(4, 4, 1, 1), Equality(3, 4, 0, 1)


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
            series(MODULES, "float32", [[1, 2, 3]]),
            series(MODULES, "bfloat16", [[1, 5, 4]]),
            series(BATCHED, "int8", [[1, 2, 3]]),
        ],
        material,
    )
    options = options_of("a", dtype="float32,bfloat16", modules=True)
    result = transcribe.Result(options, Path("target"), None, material, rows)
    drafted = rows[2]
    assert drafted.equality == Equality(3, 3, 1, 1)
    assert drafted.equality_first == Equality(2, 3, 0, 1)
    assert drafted.equality_modules == Equality(1, 3, 0, 1)
    assert rows[5].equality == Equality(3, 3, 1, 1) and rows[5].equality_modules is None
    assert result.differing == []
    changed = [*rows[:3], replace(rows[3], equality=OTHER), *rows[4:]]
    assert replace(result, rows=changed).differing == [changed[3]]
    head = speech_tables.results(rows).splitlines()[0]
    assert "tokens as float32" in head and "tokens as modules" in head
    assert "tokens as" not in speech_tables.results([replace(rows[0], equality_modules=None)])


def test_one_run_measures_float32_and_bfloat16(pair, memo, tmp_path):
    given = ("--dtype", "float32,bfloat16", "--modules", "--batch", "1,2", *only(GENERATE))
    status, record = measured(pair, memo, tmp_path, *given)
    rows = by_system(record)
    assert status == 0
    for batch in (1, 2):
        for gamma in (0, 3, "auto"):
            for dtype in ("float32", "bfloat16"):
                same = rows[OURS, batch, gamma, dtype]["equality"]
                assert same["windows"] == same["windows_of"] >= 1
            assert rows[OURS, batch, gamma, "bfloat16"]["equality_float32"]["tokens_of"] > 0
    assert rows[MODULES, 1, 0, "float32"]["engine"] == "modules"
    assert rows[MODULES, 1, 0, "float32"]["equality"] == rows[OURS, 1, 0, "float32"]["equality"]
    assert rows[MODULES, 1, 0, "bfloat16"]["engine"] == "modules"
    assert record["options"]["dtype"] == ["float32", "bfloat16"]
    said = (tmp_path / "out.txt").read_text()
    expected = record["native_kernels"]
    assert (f"native kernels for {expected}" if expected else "no native kernels") in said
    assert "1 threads" in said and "tokens as modules" in said


def test_with_avx2_what_cannot_keep_to_it_is_refused(memo):
    assert options_of(memo, avx2=True).draft_dtypes == ("float32",)
    assert not {"whisper.cpp", "OpenVINO"} & set(options_of(memo, avx2=True).systems)
    for given, reason in (
        ({"dtype": "bfloat16"}, "no bfloat16"),
        ({"only": ["whisper.cpp"]}, "cannot be kept by whisper.cpp"),
    ):
        with pytest.raises(UsageError, match=reason):
            _ = options_of(memo, avx2=True, **given).systems


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
