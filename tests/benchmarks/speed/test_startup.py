"""The startup benchmark against its bound."""

from __future__ import annotations

from benchmarks.speed import startup


def test_startup_fails_above_its_bound(monkeypatch, capsys):
    monkeypatch.setattr(startup, "wall_s", lambda: 0.3)
    assert startup.main(["--runs", "3"]) == 0
    assert startup.main(["--runs", "3", "--bound", "0.2"]) == 1
    assert "median 0.300" in capsys.readouterr().out
