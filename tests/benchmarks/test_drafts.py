"""`python -m benchmarks.drafts`: its figures, its tables, and a run over the bundled text pair."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import drafts
from benchmarks.drafts import PLAIN, DraftsOptions, Material, compared, winners
from benchmarks.rows import Row
from forescribe.asr.errors import UsageError
from forescribe.speculative.requests import Stats
from tests.benchmarks.command import bench

TEXT = [(1, 2, 3, 4, 5, 6), (7, 8, 9)]
PLAIN_RUN = Row(
    PLAIN,
    1,
    0,
    walls_s=[4.0, 2.0, 3.0],
    tokens=TEXT,
    stats=Stats(rounds=9, row_rounds=9, emitted=9, seconds={"score": 1.5, "accept": 0.3}),
)
DRAFTED = Row(
    "model",
    1,
    "auto",
    walls_s=[1.5],
    tokens=TEXT,
    stats=Stats(
        rounds=3,
        row_rounds=3,
        emitted=9,
        drafted_at_depth=(3, 3, 3),
        accepted_at_depth=(3, 2, 1),
        seconds={"draft": 0.12, "score": 0.6, "accept": 0.03},
    ),
)


def test_figures_follow_from_counts_and_seconds():
    plain, drafted = compared([PLAIN_RUN, DRAFTED])
    assert plain.wall_s == 3.0 and plain.speed_up == 1.0 and plain.exact
    assert plain.tokens_per_round == 1.0 and plain.price is None and plain.acceptance_rate is None
    assert drafted.speed_up == pytest.approx(2.0)
    assert drafted.decoding_speed_up == pytest.approx(1.8 / 0.75)
    assert drafted.tokens_per_round == pytest.approx(3.0)
    assert drafted.acceptance_at_depth == pytest.approx((1.0, 2 / 3, 1 / 3))
    assert drafted.draft_ms == pytest.approx(40.0)
    assert drafted.price == pytest.approx(40.0 / 200.0)  # a plain round takes 0.2 s


def test_a_row_with_other_tokens_never_wins():
    wrong = replace(DRAFTED, system="wrong", walls_s=[0.5], tokens=[TEXT[0], (7, 8, 1)])
    restless = replace(DRAFTED, system="restless", walls_s=[0.4], steady=False)
    failed = Row("failed", 1, "auto", error="no such head")
    rows = compared([PLAIN_RUN, DRAFTED, wrong, restless, failed])
    assert [row.system for row in winners(rows)] == ["model"]
    result = drafts.Result(DraftsOptions(), Material("x", {}), rows)
    assert [row.system for row in result.differing] == ["wrong", "restless"]
    table = drafts.results(rows)
    assert "8 of 9" in table and "failed, batch 1: no such head" in table
    assert "WER" not in table  # nothing has an error rate
    assert drafts.fastest(rows) == "fastest at batch 1: model, gamma auto, 2.00x plain"


def test_the_bundled_text_pair(tmp_path: Path):
    record, prompts = tmp_path / "drafts.json", tmp_path / "prompts.txt"
    prompts.write_text('Define "lantern".\nUse "quiet" in a sentence.\n')
    settings = ("--batch", "1,2", "--max-tokens", "12", "--gamma", "3")
    done = bench("drafts", *settings, "--prompts", str(prompts), "--json", str(record))
    assert done.exit_code == 0, done.output
    made = json.loads(record.read_text())
    rows = {(row["drafter"], row["batch"]): row for row in made["rows"]}
    assert set(rows) == {(d, b) for d in ("plain", "ngram", "text-draft") for b in (1, 2)}
    for row in rows.values():
        assert row["equality"]["windows"] == row["equality"]["windows_of"] == 2
    draft = rows["text-draft", 1]
    assert draft["tokens_per_round"] > 1.5 and len(draft["acceptance_at_depth"]) == 3
    assert draft["draft_ms"] > 0 and draft["price"] > 0
    assert "demo-text, 2 prompts" in done.output and "fastest at batch 2" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gamma", "0"], "'0' is no number from 1 to 64"),
        (["--reference", "x"], "--reference is for recordings, and none is given"),
        (["a.flac", "--prompts", "x.txt"], "is for text: leave out the recordings"),
        (["--draft-dtype", "int1"], "--draft-dtype int1 is none of"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        bench("drafts", *arguments)
