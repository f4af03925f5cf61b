"""`python -m benchmarks.text` on a tiny random pair: every system, equality beside every speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import text
from benchmarks.rows import Row
from benchmarks.systems import text as systems
from benchmarks.text import Result, TextOptions, compared, reference
from forescribe.asr.errors import UsageError
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Stats
from forescribe.text.presets import Pair
from tests.benchmarks.command import bench
from tests.text.language_models import POSITIONS, write

WRITTEN = [(1, 2, 3), (4,)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    """The target's own settings ask for a penalty, as some published models' do: greedy has none."""
    target = write(tmp_path_factory.mktemp("text") / "target")
    draft = write(target.parent / "draft", seed=1, near=target)
    settings = target / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"repetition_penalty": 1.5}))
    return str(target), str(draft)


@pytest.fixture
def prompts(tmp_path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("the other\n\na\non and on and\n", encoding="utf-8")
    return str(path)


def row(
    name: str,
    walls: list[float],
    texts: list[tuple[int, ...]],
    steady: bool = True,
    dtype: str = "float32",
) -> Row:
    return Row(name, 1, dtype=dtype, walls_s=walls, tokens=texts, steady=steady)


def result(*rows: Row, dtype: str = "float32") -> Result:
    options, pair = TextOptions(dtype=dtype), Pair("target", None)
    return Result(options, pair, [(1,), (2,)], compared(rows), "cpu", "lean", 1)


def test_a_table_says_how_fast_and_how_equal():
    first = row("transformers greedy", [2.0, 2.0, 9.0], WRITTEN)
    other = row("forescribe plain", [1.0, 1.0, 1.0], [(1, 2, 9), (4,)], steady=False)
    found = result(first, other)
    *_, line, note = found.text().splitlines()
    assert line.split() == "forescribe plain 1 1.00 4.0 2.00 1 of 2 3 of 4 - -".split()
    assert note == "forescribe plain, batch 1, float32: its turns gave different texts"
    assert found.rows[1].record("equality") == {
        "equality": {"tokens": 3, "tokens_of": 4, "windows": 1, "windows_of": 2}
    }
    assert found.differing == [found.rows[1]]


def test_rows_of_a_further_dtype_must_equal_plain_decoding_in_it():
    rounded = [(1, 2, 9), (4,)]
    theirs = row("transformers greedy", [1.0], [(1, 8, 9), (4,)], dtype="bfloat16")
    plain = row("forescribe plain", [1.0], rounded, dtype="bfloat16")
    drafted = row("forescribe draft 3", [0.5], rounded, dtype="bfloat16")
    wrong = row("forescribe draft auto", [0.5], WRITTEN, dtype="bfloat16")
    first = row("transformers greedy", [2.0], WRITTEN)
    found = result(first, theirs, plain, drafted, wrong, dtype="float32,bfloat16")
    assert found.differing == [found.rows[4]]
    assert reference(found.rows[4], found.rows) is found.rows[2]
    assert reference(found.rows[0], found.rows) is found.rows[0]
    head, _, *lines = found.text().splitlines()[-7:]
    assert "dtype" in head and "tokens as float32" in head
    assert lines[3].split() == (
        "forescribe draft 3 1 bfloat16 0.50 8.0 4.00 2 of 2 4 of 4 3 of 4 - -".split()
    )
    assert (
        "1 of 2" in lines[1] and "2 of 4" in lines[1]
    )  # the modules, beside this engine's plain row


def test_a_row_that_differs_is_named_and_the_status_is_1(monkeypatch, tmp_path):
    first = row("transformers greedy", [1.0], WRITTEN)
    found = result(first, row("forescribe draft 3", [1.0], [(9,), (4,)]))
    monkeypatch.setattr(text, "measured", lambda options, say: found)
    monkeypatch.setattr(Result, "record", lambda self: {"found": 1})
    done = bench("text", "--json", str(tmp_path / "made.json"))
    assert done.exit_code == 1
    assert (
        "forescribe draft 3, batch 1, float32: differs from transformers greedy, batch 1, float32"
        in done.stderr
    )
    made = json.loads((tmp_path / "made.json").read_text())
    assert (made["benchmark"], made["found"]) == ("text", 1)
    assert made["command"].startswith("python -m benchmarks.text")


def test_a_system_whose_drafts_fail_is_not_measured():
    """It would write the same, decoded plainly."""
    stats = iter([Stats(), Stats(faults=3, draft_faults=2)])
    system = systems.System("forescribe draft 3", 1, lambda prompts: [(1,)], lambda: next(stats))
    with pytest.raises(SpeculativeError, match="drafts failed 2 times"):
        systems.take_turns([system], [(5,)], 1, lambda line: None)


def test_all_systems_write_the_same_on_the_same_weights(pair, prompts):
    arguments = ["--model", pair[0], "--draft", pair[1], "--batch", "2", "--gamma", "3"]
    arguments += ["--repeats", "1", "--max-tokens", "12", "--prompts", prompts, "--json", "-"]
    done = bench("text", *arguments)
    assert done.exit_code == 0
    assert "transformers greedy" in done.stderr  # stdout is the record's alone
    record = json.loads(done.stdout)
    rows = {(each["system"], each["batch"]): each for each in record["rows"]}
    assert len(rows) == len(record["rows"]) == 2 + 3 + 2 * 5
    assert {"transformers assisted 3", "transformers lookup 3", "forescribe draft auto"} <= {
        name for name, _ in rows
    }
    for each in rows.values():
        assert each["equality"]["windows"] == each["equality"]["windows_of"] == 3, each["system"]
        assert each["steady"] and each["wall_s"] > 0
    assert rows["forescribe draft 3", 2]["acceptance_rate"] > 0
    assert record["prompts"] == 3
    assert set(record["weights"]["target"]) == {"model.safetensors"}
    assert record["weights"]["target"] != record["weights"]["draft"]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["--model", "./nothing"], SpeculativeError, "--model ./nothing"),
        (["--draft", "nonsense"], SpeculativeError, "nonsense"),
        (["--prompts", "nothing.txt"], UsageError, "--prompts nothing.txt cannot be read"),
        (["--prompts", "empty.txt"], UsageError, "empty.txt has no prompt"),
        (["--prompts", "noise.txt"], UsageError, "noise.txt cannot be read as UTF-8"),
        (["--max-tokens", "90"], UsageError, f"prompt 3 has .* {POSITIONS} for both"),
        (["--batch", "1,none"], UsageError, "--batch 1,none: 'none' is no number from 1 to 1024"),
        (["--gamma", "0"], UsageError, "--gamma 0: '0' is no number from 1 to 64"),
        (["--dtype", "float32,int4"], UsageError, "--dtype float32,int4: 'int4' is none of auto"),
        (["--device", "toaster"], SpeculativeError, "unknown device 'toaster'"),
        (["--json", "."], UsageError, "--json . is a folder"),
        (["--json", "no/where.json"], UsageError, "there is no folder no"),
    ],
)
def test_a_users_mistake_is_one_line_before_anything_is_measured(
    pair, prompts, tmp_path, monkeypatch, arguments, error, said
):
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "noise.txt").write_bytes(b"\xff\xfe\xff")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(systems, "take_turns", lambda *_: pytest.fail("it was measured"))
    given = ["--model", pair[0], "--draft", pair[1], "--prompts", Path(prompts).name]
    with pytest.raises(error, match=said):
        bench("text", *given, *arguments)
