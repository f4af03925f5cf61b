"""`python -m benchmarks.text` on a tiny random pair: every system, equality beside every speed."""

from __future__ import annotations

import json

import pytest

from benchmarks import text
from benchmarks.comparison import Row
from forescribe.asr.errors import UsageError
from forescribe.speculative.errors import SpeculativeError
from forescribe.speculative.requests import Stats
from tests.text.language_models import POSITIONS, write

WRITTEN = [(1, 2, 3), (4,)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> list[str]:
    """The target's own settings ask for a penalty, as some published models' do: greedy has none."""
    target = write(tmp_path_factory.mktemp("text") / "target")
    draft = write(target.parent / "draft", seed=1, near=target)
    settings = target / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"repetition_penalty": 1.5}))
    return ["--model", str(target), "--draft", str(draft)]


@pytest.fixture
def prompts(tmp_path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("the other\n\na\non and on and\n", encoding="utf-8")
    return str(path)


def row(name: str, walls: list[float], texts: list[tuple[int, ...]], *, steady: bool = True) -> Row:
    return Row(name, 1, walls_s=walls, tokens=texts, steady=steady)


def test_a_table_says_how_fast_and_how_equal():
    first = row("transformers greedy", [2.0, 2.0, 9.0], WRITTEN)
    other = row("forescribe plain", [1.0, 1.0, 1.0], [(1, 2, 9), (4,)], steady=False)
    rows = text.compared([first, other])
    *_, line, note = text.text(rows).splitlines()
    assert line.split() == "forescribe plain 1 1.00 4.0 2.00 1 of 2 3 of 4 - -".split()
    assert note == "forescribe plain, batch 1, float32: its turns gave different texts"
    assert rows[1].record("equality") == {
        "equality": {"tokens": 3, "tokens_of": 4, "windows": 1, "windows_of": 2}
    }
    assert text.differing(rows) == [rows[1]]


def test_a_system_whose_drafts_fail_is_not_measured():
    """It would write the same, decoded plainly."""
    stats = iter([Stats(), Stats(faults=3, draft_faults=2)])
    system = text.System("forescribe draft 3", 1, lambda prompts: [(1,)], lambda: next(stats))
    with pytest.raises(SpeculativeError, match="drafts failed 2 times"):
        text.take_turns([system], [(5,)], 1)


def test_all_systems_write_the_same_on_the_same_weights(pair, prompts, tmp_path):
    out = tmp_path / "text.json"
    given = [*pair, "--batch", "2", "--gamma", "3", "--repeats", "1", "--max-tokens", "12"]
    assert text.main([*given, "--prompts", prompts, "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    rows = {(each["system"], each["batch"]): each for each in record["rows"]}
    assert len(rows) == len(record["rows"]) == 2 + 3 + 2 * 5
    assert {"transformers assisted 3", "transformers lookup 3", "forescribe draft auto"} <= {
        name for name, _ in rows
    }
    for each in rows.values():
        assert each["equality"]["windows"] == each["equality"]["windows_of"] == 3, each["system"]
        assert each["steady"] and each["wall_s"] > 0
    assert rows["forescribe draft 3", 2]["acceptance_rate"] > 0
    assert (record["benchmark"], record["prompts"]) == ("text", 3)
    assert record["weights"]["target"] != record["weights"]["draft"]


def test_a_row_that_differs_is_named_and_the_status_is_1(pair, prompts, monkeypatch, capsys):
    def wrong(systems, prompts, repeats) -> list[Row]:
        first = row("transformers greedy", [1.0], WRITTEN)
        return [first, row("forescribe draft 3", [1.0], [(9,), (4,)])]

    monkeypatch.setattr(text, "take_turns", wrong)
    assert text.main([*pair, "--max-tokens", "12", "--prompts", prompts]) == 1
    assert (
        "forescribe draft 3, batch 1, float32: differs from transformers greedy, batch 1, float32"
        in capsys.readouterr().err
    )


def test_a_text_that_the_context_would_cut_is_refused(pair, prompts):
    with pytest.raises(UsageError, match=f"has {POSITIONS} for both; ask for fewer"):
        text.main([*pair, "--prompts", prompts, "--max-tokens", str(POSITIONS)])
    with pytest.raises(UsageError, match="cannot be read as UTF-8"):
        text.main([*pair, "--prompts", "nothing.txt"])
