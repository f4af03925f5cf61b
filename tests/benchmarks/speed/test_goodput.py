"""The goodput benchmark: turns, equality and the bound, on a random pair and on made-up runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

from benchmarks.speed import goodput
from benchmarks.speed.goodput import Compared, Run
from forescribe.asr.model.loading import load
from forescribe.asr.model.presets import Pair
from forescribe.speculative import choose
from tests.asr.model import folders

SAMPLE = Path(__file__).parents[3] / "samples" / "memo.flac"


def made(wall: float, tokens: tuple[int, ...] = (1, 2)) -> Run:
    return Run(wall, wall / 2, {("a", 0): tokens}, 0.5)


def test_a_slow_turn_counts_once_and_a_token_that_differs_always():
    plain = [made(1.0), made(3.0), made(1.0)]
    auto = [made(0.9), made(2.7), made(9.0)]
    row = Compared("its own", 1, plain, auto)
    assert row.equal and row.ratio("wall_s") == pytest.approx(0.9)
    assert not Compared("its own", 1, plain, [*auto[:2], made(0.9, (1, 3))]).equal
    line = goodput.table([row]).splitlines()[2].split()
    assert line == ["its", "own", "1", "1.00", "2.70", "0.900", "0.900", "50.0%", "yes"]


def test_a_useless_draft_leaves_the_pair_as_it_was(tmp_path):
    target = folders.write(tmp_path / "target")
    draft = folders.write_distilled(tmp_path / "draft", target)
    whisper = load(Pair(target, draft), choose("cpu"), network=False)
    before = {k: v.clone() for k, v in whisper.draft.state_dict().items()}
    other = goodput.useless(whisper)
    after = whisper.draft.state_dict()
    assert all(before[name].equal(after[name]) for name in before)
    weights = other.draft.model.decoder.layers[0].fc1.weight
    assert not weights.equal(whisper.draft.model.decoder.layers[0].fc1.weight)
    assert other.target is whisper.target and other.shared_encoder


@pytest.mark.slow
def test_a_run_compares_both_drafts_at_every_batch_size(tmp_path, capsys):
    target = folders.write(tmp_path / "target")
    draft = folders.write_distilled(tmp_path / "draft", target)
    samples, rate = soundfile.read(SAMPLE, frames=20 * 16000, dtype="float32")
    soundfile.write(tmp_path / "memo.wav", samples, rate)
    arguments = [
        "--model",
        str(target),
        "--draft",
        str(draft),
        "--repeats",
        "1",
        "--batch",
        "1",
        "2",
    ]
    more = ["--audio", str(tmp_path / "memo.wav"), "--json", str(tmp_path / "out.json")]
    assert goodput.main([*arguments, *more]) in (0, 1)  # the speed of a toy says nothing
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(r["draft"], r["batch"]) for r in rows] == [
        ("its own", 1),
        ("its own", 2),
        ("random", 1),
        ("random", 2),
    ]
    assert all(row["equal"] and row["plain"][0]["tokens"] > 0 for row in rows)
    assert "bound" in capsys.readouterr().out
