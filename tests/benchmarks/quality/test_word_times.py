"""The word time benchmark with a random pair, and its table."""

from __future__ import annotations

import json

import pytest

from benchmarks.quality import word_times
from tests.asr.model import folders
from training.speech.timed_speech import speak_timed
from training.speech.voices import held_out_voices
from training.speech.word_errors import WordErrors


def test_both_sets_are_read_in_their_proportion():
    mixed = word_times.mixed({"domain": ["a", "b", "c", "d"], "open": ["x", "y"]})
    assert mixed == ["a", "x", "b", "c", "y", "d"]


def test_errors_are_shown_in_milliseconds_by_voice():
    rows = {
        "flite slt": WordErrors(10, 9, [0.02] * 9, [-0.04] * 9),
        "none": WordErrors(5, 0, [], []),
    }
    lines = [line.split() for line in word_times.table(rows).splitlines()]
    assert lines[2] == ["flite", "slt", "10", "90.0%", "20", "20", "40", "40", "30", "40"]
    assert lines[3] == ["none", "5", "0.0%", *["inf"] * 6]


@pytest.mark.slow
def test_an_untrained_pair_misses_the_targets(tmp_path, capsys):
    try:
        speak_timed("Good morning.", held_out_voices()[0])
    except OSError as error:
        pytest.skip(str(error))
    pair = folders.write(tmp_path / "pair", max_target_positions=24)
    arguments = ["--model", str(pair), "--per-voice", "2", "--voices", "2"]
    assert word_times.main([*arguments, "--json", str(tmp_path / "out.json")]) == 1
    assert "missed" in capsys.readouterr().out
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["rows"].keys() == {"flite slt", "flite rms"}
    assert all(row["spoken"] > 5 for row in record["rows"].values())
    assert (
        word_times.main(["--model", str(tmp_path / "none"), "--per-voice", "1", "--voices", "1"])
        == 2
    )


def test_missing_libraries_are_named(monkeypatch, capsys):
    def missing(text, voice):
        raise OSError("libflite.so.1 is missing: install the Debian package libflite1")

    monkeypatch.setattr(word_times, "speak_timed", missing)
    assert word_times.main(["--per-voice", "1", "--voices", "1"]) == 2
    assert "libflite1" in capsys.readouterr().err
