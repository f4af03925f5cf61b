"""The word time benchmark with a random pair, and its table."""

from __future__ import annotations

import json

import pytest

from benchmarks.quality import word_times
from tests.asr.model import folders
from training.speech.timed_speech import speak_timed
from training.speech.voices import held_out_voices


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
