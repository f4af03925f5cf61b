"""The text benchmark on a tiny random pair: every system, equality beside every speed."""

from __future__ import annotations

import json

from benchmarks import text
from benchmarks.text import Row, System
from speculative.stats import Stats
from tests.speculative.language_models import write


def row(name: str, walls: list[float], texts: list[tuple[int, ...]]) -> Row:
    return Row(System(name, 1, lambda prompts: texts), walls, texts)


def test_a_table_says_how_fast_and_how_equal():
    reference = row("transformers greedy", [2.0, 2.0, 9.0], [(1, 2, 3), (4,)])
    other = row("forescribe plain", [1.0, 1.0, 1.0], [(1, 2, 9), (4,)])
    line = text.table([reference, other]).splitlines()[-1].split()
    assert line == "forescribe plain 1 1.00 4.0 2.00 1 of 2 3 of 4 - -".split()
    assert text.describe(other, reference)["equality"] == {
        "tokens": 3, "tokens_of": 4, "windows": 1, "windows_of": 2
    }  # fmt: skip


def test_turns_are_watched_for_texts_that_change():
    written = iter([[(1,)], [(1,)], [(2,)]])
    watched = Row(System("forescribe draft 3", 1, lambda prompts: next(written), lambda: Stats()))
    for steady in (True, True, False):
        watched.turn([(5,)])
        assert watched.steady is steady
    assert len(watched.walls) == 3 and watched.acceptance_rate is None


def test_all_systems_write_the_same_on_the_same_weights(tmp_path, capsys):
    target = write(tmp_path / "target")
    draft = write(tmp_path / "draft", seed=1, near=target)
    (tmp_path / "prompts.txt").write_text("the other\na\non and on and\n", encoding="utf-8")
    arguments = ["--model", str(target), "--draft", str(draft), "--batch", "2", "--gamma", "3"]
    arguments += ["--repeats", "1", "--max-tokens", "12", "--json", str(tmp_path / "made.json")]
    assert text.main([*arguments, "--prompts", str(tmp_path / "prompts.txt")]) == 0
    record = json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    rows = {(each["system"], each["batch"]): each for each in record["rows"]}
    assert len(rows) == len(record["rows"]) == 2 + 3 + 2 * 5
    assert {"transformers assisted 3", "transformers lookup 3", "forescribe draft auto"} <= {
        name for name, _ in rows
    }
    for each in rows.values():
        assert each["equality"]["windows"] == each["equality"]["windows_of"] == 3, each["system"]
        assert each["steady"] and each["wall_s"] > 0
    assert rows["forescribe draft 3", 2]["acceptance_rate"] > 0
    assert "transformers greedy" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_line(tmp_path, capsys):
    assert text.main(["--model", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("benchmarks.text: --model ")
