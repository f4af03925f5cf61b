"""`python -m benchmarks.gpu` on a CPU, with tiny dimensions; and the constructed models that it measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.report import Section
from benchmarks.gpu.sections import Bench
from forescribe.speculative.device import Device

CPU = Device("cpu", torch.float32)


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
