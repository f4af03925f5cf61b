"""The benchmark of forwards and rounds: every figure stands beside its equality."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.speed.decoder import __main__ as decoder
from benchmarks.speed.decoder import pairs, turns


@pytest.fixture(autouse=True)
def threads():
    """The benchmark chooses torch's threads for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_engine_has_rows_with_its_equality(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(pairs, "TOKENS", 6)
    out = tmp_path / "out.json"
    given = "--pairs text --batch 1,3 --nodes 1,2 --gamma 0,2,auto --threads 1 --turns 1".split()
    assert decoder.main([*given, "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    names = set(pairs.text_pair().engines)
    forwards = {(r["engine"], r["batch"], r["nodes"]) for r in record["forwards"]}
    assert forwards >= {("modules", batch, nodes) for batch in (1, 3) for nodes in (1, 2)}
    assert {engine for engine, *_ in forwards} == names
    for row in record["forwards"]:
        assert row["argmax_equal"] == row["positions"] == row["batch"] * row["nodes"]
        assert row["ms"] > 0 and row["largest_difference"] < 1e-3
    assert {(r["batch"], r["gamma"]) for r in record["rounds"]} == {
        (batch, gamma) for batch in (1, 3) for gamma in (0, 2, None)
    }
    for row in record["rounds"]:
        assert row["texts_equal"] == row["texts"] >= len(pairs.QUESTIONS)
        assert row["ms_per_token"] > 0 and row["tokens_per_round"] >= 1
    assert "all tokens equal" in capsys.readouterr().out


def test_jobs_take_turns_and_the_best_counts() -> None:
    order: list[str] = []

    def job(name: str):
        def run() -> torch.Tensor:
            order.append(name)
            return torch.tensor([len(order)])

        return run

    found = turns.in_turns({"a": job("a"), "b": job("b")}, lambda key: 1, 2)
    assert "".join(order) == "ab" + "aabb" * 2
    assert set(found) == {"a", "b"} and found["a"].ms > 0
    assert found["a"].output.tolist() == [1]


def test_a_token_that_differs_fails_the_run(monkeypatch, capsys) -> None:
    monkeypatch.setattr(pairs, "TOKENS", 3)
    true = decoder.rounds.decoded

    def other(pair, engine, batch, gamma):
        stats, written = true(pair, engine, batch, gamma)
        return stats, {
            tag: (*tokens[:-1], 1) for tag, tokens in written.items()
        } if gamma else written

    monkeypatch.setattr(decoder.rounds, "decoded", other)
    given = "--pairs text --batch 1 --nodes 1 --gamma 1 --threads 1 --turns 1".split()
    assert decoder.main(given) == 1
    assert "TOKENS DIFFER" in capsys.readouterr().out
