"""The benchmark of readers: its rows, and that it notices other windows."""

from __future__ import annotations

import json
from dataclasses import replace

from benchmarks.speed import readers
from tests.docs.pages import ROOT

SMALL = ["--audio", str(ROOT / "samples" / "memo.flac"), "--minutes", "0.2", "--count", "2"]


def test_rows_say_what_was_read(tmp_path, capsys):
    out = tmp_path / "record.json"
    assert readers.main([*SMALL, "--readers", "0", "1", "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    rows = record["rows"]
    assert [(row["kind"], row["readers"]) for row in rows] == [
        (kind, count) for kind in ("flac", "mp3", "m4a") for count in (0, 1)
    ]
    assert all(row["audio_s"] > 20 and row["processor_s"] > 0 for row in rows)
    assert [row["spooled"] > 0 for row in rows] == [False, True] * 3
    assert capsys.readouterr().out.count(" yes") == 6


def test_other_windows_are_noticed(monkeypatch, capsys):
    measured = readers.measured

    def changed(path, kind, count, *rest):
        row = measured(path, kind, count, *rest)
        return replace(row, digest="other") if count else row

    monkeypatch.setattr(readers, "measured", changed)
    assert readers.main([*SMALL, "--readers", "0", "1"]) == 1
    assert " NO" in capsys.readouterr().out
