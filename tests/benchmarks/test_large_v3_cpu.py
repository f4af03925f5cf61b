"""large-v3 on a CPU, with tiny dimensions: every row is measured, and equal to plain decoding."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.gpu.dimensions import SMALL
from benchmarks.gpu.pair import Pair, decode
from benchmarks.large_v3 import ctranslate2_rows, decoding_rows
from benchmarks.large_v3.__main__ import main
from forescribe.speculative.device import choose
from forescribe.speculative.native.library import missing

ENGINES = ["lean"] if missing() is not None else ["native", "lean"]
PEER = importlib.util.find_spec("ctranslate2") is not None


def test_the_program_measures_every_engine_head_and_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    arguments = ["--small", "--json", str(path), "--engines", *ENGINES, "--batches", "1", "3"]
    assert main([*arguments, "--peer", "int8" if PEER else "none"]) == 0
    record = json.loads(path.read_text())
    rows = record["rows"]
    found = {(row["engine"], row["batch"], row["head"]) for row in rows}
    assert found == {(e, b, h) for e in ENGINES for b in (1, 3) for h in (None, "full", "frequent")}
    assert all(row["equal"] for row in rows)
    assert all(row["gamma"] == 0 for row in rows if row["head"] is None)
    for row in rows:
        assert row["round_ms"] > 0 and row["tokens_per_s"] > 0 and row["prefill_s"] > 0
        if row["head"] is not None:
            assert row["drafted_ms"] > 0 and row["acceptance"] > 0.5
    rates = {(r["engine"], r["batch"], r["head"]): r["acceptance"] for r in rows}
    assert all(rates[e, b, "full"] == rates[e, b, "frequent"] for e in ENGINES for b in (1, 3))
    assert record["encoder"]["modules_s"] > 0 and record["stored"] == "bfloat16"
    if "native" in ENGINES:
        assert record["encoder"]["native_s"] > 0 and record["encoder"]["int8_s"] > 0
        assert record["encoder"]["problem"] is None
    out = capsys.readouterr().out
    assert "frequent" in out and "per window" in out
    if PEER:
        assert [row["batch"] for row in record["peer"]] == [1, 3]
        assert all(row["equal"] for row in record["peer"])


def test_a_missing_peer_costs_its_rows_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> None:
        raise RuntimeError("refused")

    monkeypatch.setattr(ctranslate2_rows, "rows", refuse)
    arguments = ["--small", "--engines", "lean", "--batches", "1", "--no-encoder"]
    assert main(arguments) == 0
    assert "no rows of CTranslate2: RuntimeError: refused" in capsys.readouterr().out


def test_a_text_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decoding_rows.work

    def wrong(*given: object) -> object:
        made = right(*given)  # type: ignore[arg-type]
        object.__setattr__(made[0], "text", (1, 2, 3))
        return made

    monkeypatch.setattr(decoding_rows, "work", wrong)
    arguments = ["--small", "--engines", "lean", "--batches", "1", "--no-encoder"]
    assert main([*arguments, "--peer", "none"]) == 1


def test_windows_have_texts_of_the_asked_length_or_end() -> None:
    pair = Pair.build(SMALL, choose("cpu", "float32"), [0.9], encoder=False)
    known = decoding_rows.work(pair, 4, 24)
    assert len({k.request.prompt for k in known}) == 4
    assert all(len(k.text) == 24 or k.text[-1] == SMALL.eos for k in known)
    assert decode(pair.engine(2), known) == {k.request.tag: k.text for k in known}
