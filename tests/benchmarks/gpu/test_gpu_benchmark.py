"""`python -m benchmarks.gpu` on a CPU, with tiny dimensions; and the constructed models that it measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import construction, sections
from benchmarks.gpu.dimensions import SMALL
from benchmarks.gpu.pair import Pair, decode, differing, generate
from benchmarks.gpu.report import Section
from benchmarks.gpu.sections import AGREEMENTS, Bench
from forescribe.speculative.device import Device

CPU = Device("cpu", torch.float32)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair.build(SMALL, CPU, AGREEMENTS)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_writes_the_predicted_texts_from_features(dtype: torch.dtype) -> None:
    made = Pair.build(SMALL, Device("cpu", dtype), ())
    kinds = [0, 1, 2, 3]
    mel = construction.features(SMALL, kinds, torch.device("cpu"), dtype)
    work = made.requests(kinds, sections.encode(made, mel), 30)
    assert differing(generate(made, work), work) == 0
    states = made.states(kinds)
    wrong = made.requests(kinds, states[1:] + states[:1], 30)
    assert differing(generate(made, wrong), work) == len(work)  # the audio decides


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_a_draft_agrees_as_often_as_was_set(pair: Pair, agreement: float) -> None:
    wrong = pair.path.misled(agreement)
    usable = SMALL.steps - len(pair.path.ends)
    assert abs(len(wrong) / usable - (1 - agreement)) < 1 / usable
    assert all(step != other for step, other in wrong.items())
    kinds = [n % SMALL.classes for n in range(16)]
    work = pair.requests(kinds, pair.states(kinds), 60)
    engine = pair.engine(4, gamma=1, agreement=agreement)
    assert differing(decode(engine, work), work) == 0
    assert abs(engine.stats.acceptance_rate - agreement) < 0.1


def test_a_cut_head_changes_no_text_and_loses_no_draft(pair: Pair) -> None:
    kinds = [n % SMALL.classes for n in range(8)]
    work = pair.requests(kinds, pair.states(kinds), 40)
    rates = []
    for cut in (False, True):
        engine = pair.engine(4, gamma=3, agreement=0.8, cut=cut)
        assert differing(decode(engine, work), work) == 0
        rates.append(engine.stats.acceptance_rate)
    assert rates[0] == rates[1]


def test_a_device_that_is_missing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--device", "cuda:99"])
    assert "device" in capsys.readouterr().err.splitlines()[-1]
