"""The memory benchmark sees what a process takes, and a long recording takes no more than a short one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks import memory
from tests.asr import folders

MEMO = Path(__file__).parents[2] / "samples" / "memo.flac"
LINUX = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc")


def test_every_ten_minutes_hold_the_speech_once_and_a_room_for_the_rest(tmp_path):
    period, speech_s = memory.cycle([MEMO])
    speech, rate = soundfile.read(MEMO, dtype="float32")
    assert len(period) == 600 * rate
    assert speech_s == pytest.approx(len(speech) / rate + 1)
    assert np.abs(period[: len(speech)] - speech).max() < 0.001
    assert 0 < np.abs(period[len(speech) :]).max() < 0.001
    memory.write(tmp_path / "a.flac", 12.5, period)
    info = soundfile.info(tmp_path / "a.flac")
    assert (info.frames, info.samplerate) == (750 * rate, rate)
    with pytest.raises(ValueError, match="too long"):
        memory.cycle([MEMO] * 20)


@LINUX
def test_the_peak_is_the_largest_size_and_not_the_last():
    code = "x = bytearray(150_000_000); del x; import time; time.sleep(1.2)"
    status, peak, resident = memory.run([sys.executable, "-c", code])
    assert status == 0
    assert 150e6 < peak < 200e6
    assert resident[0] < 200


@LINUX
@pytest.mark.slow
def test_an_hour_takes_no_more_than_ten_minutes(tmp_path, capsys):
    pair = folders.write(tmp_path / "pair", max_target_positions=24)
    arguments = ["--model", str(pair), "--audio", str(MEMO), "--minutes", "10", "60"]
    record = tmp_path / "out.json"
    # Two windows at a time: the minute of speech in the short one has to fill the batch too.
    # Random weights fail every guard, so each window would be decoded six times.
    options = ["--with", "--language", "en", "--batch-size", "2", "--no-guards"]
    more = ["--json", str(record), "--bound", "100", *options]
    assert memory.main([*arguments, *more]) == 0
    assert "bound 100 MB" in capsys.readouterr().out
    rows = json.loads(record.read_text())["rows"]
    assert [row["minutes"] for row in rows] == [10, 60]
    assert rows[1]["words"] > 3 * rows[0]["words"] > 0


def test_a_command_that_fails_measures_nothing(tmp_path, capsys):
    assert memory.main(["--model", str(tmp_path / "none"), "--minutes", "10", "10"]) == 2
    assert "status" in capsys.readouterr().err
