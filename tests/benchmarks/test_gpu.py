"""`python -m benchmarks.gpu` on a CPU, with tiny dimensions; and the constructed models that it measures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.report import Section
from benchmarks.gpu.sections import Bench


def test_the_whole_program_runs_and_its_texts_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.json"
    arguments = ["--device", "cpu", "--small", "--batches", "1", "2", "--tokens", "20"]
    assert command.main([*arguments, "--json", str(record)]) == 0
    found = json.loads(record.read_text())
    assert set(found["sections"]) == set(command.SECTIONS)
    assert not found["failed"] and not found["unequal"]
    assert "constructed" in found["weights"] and "constructed" in capsys.readouterr().out
    checked = [v for v in found["sections"]["equality"].values() if isinstance(v, dict)]
    assert len(checked) == 10 and all(v["texts"] and not v["differ"] for v in checked)
    rounds = found["sections"]["rounds"].values()
    assert all(v["share_of_copy"] > 0 for v in rounds if isinstance(v, dict))
    ends = [v for v in found["sections"]["end to end"].values() if isinstance(v, dict)]
    assert all(v["times_real_time"] > 0 and not v["differ"] for v in ends) and len(ends) == 10


@pytest.mark.nightly
def test_everything_is_rehearsed_and_continued(tmp_path: Path) -> None:
    record, expected = tmp_path / "record.json", tmp_path / "expected.json"
    small = ["--everything", "--device", "cpu", "--small", "--batches", "1", "2", "--tokens", "12"]
    small += ["--json", str(record), "--expected", str(expected)]
    assert command.main([*small, "--sections", "build", "equality"]) == 0
    assert command.main([*small, "--continue"]) == 0
    found = json.loads(record.read_text())
    assert set(found["sections"]) == set(command.EVERYTHING)
    assert not found["failed"] and not found["unequal"]
    checked = list(equalities(found["sections"]))
    assert len(checked) > 30 and not any(each["differ"] for each in checked)
    assert {"words", "five beams", "quiet"} < set(json.loads(expected.read_text())["tiny.en"])
    assert "no time left" not in record.read_text()


def equalities(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All records that count texts."""
    for each in found.values():
        if isinstance(each, dict):
            yield from [each] if "differ" in each else equalities(each)


def test_a_section_that_hangs_or_raises_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def hangs(bench: Bench) -> dict[str, Any]:
        bench.figure(bench.record, "first", lambda: {"ms": 1})
        bench.figure(bench.record, "second", lambda: {"ms": time.sleep(60)})
        return bench.record

    def raises(bench: Bench) -> dict[str, Any]:
        record: dict[str, Any] = {}
        bench.figure(record, "first", lambda: {"ms": 1 / 0})
        bench.figure(record, "second", lambda: {"ms": 1})
        return record

    record = tmp_path / "record.json"
    monkeypatch.setattr(command, "REHEARSAL_S", 2.0)
    monkeypatch.setitem(command.SECTIONS, "encoder", Section(hangs, 0.2))
    monkeypatch.setitem(command.SECTIONS, "rounds", Section(raises, 10))
    monkeypatch.setitem(command.SECTIONS, "bandwidth", Section(lambda bench: {"ms": 1}, 10))
    small = ["--device", "cpu", "--small", "--json", str(record)]
    assert command.main([*small, "--sections", "encoder", "rounds", "bandwidth"]) == 2
    found = json.loads(record.read_text())
    assert "stopped after" in found["sections"]["encoder"]["error"]
    assert found["sections"]["encoder"]["first"] == {"ms": 1}
    assert found["sections"]["rounds"]["second"] == {"ms": 1}
    assert found["failed"] == ["encoder", "rounds, first"]
    assert found["sections"]["bandwidth"]["ms"] == 1


def test_a_text_that_differs_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(bench: Bench) -> dict[str, Any]:
        work = bench.work(2)
        return bench.check("planted", {k.request.tag: k.text[:-1] for k in work}, work)

    monkeypatch.setitem(command.SECTIONS, "equality", Section(wrong, 10))
    small = ["--device", "cpu", "--small", "--sections", "build"]
    assert command.main([*small, "equality"]) == 1
    assert command.main([*small]) == 0
    assert command.main([*small[:3], "--sections", "encoder"]) == 2  # nothing has been built


def test_a_device_that_is_missing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--device", "cuda:99"])
    assert "device" in capsys.readouterr().err.splitlines()[-1]
