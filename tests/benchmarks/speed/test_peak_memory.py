"""The memory benchmark sees what a process takes, and a long recording takes no more than a short one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.speed import memory
from tests.asr.model import folders

MEMO = Path(__file__).parents[3] / "samples" / "memo.flac"
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
    status, usage = memory.run([sys.executable, "-c", code])
    assert status == 0
    assert 150e6 < usage.peak_bytes < 200e6
    assert usage.resident[0] < 200


@LINUX
def test_pages_of_a_file_are_in_the_peak_and_not_its_own(tmp_path):
    (tmp_path / "library").write_bytes(bytes(60_000_000))
    code = (
        "import mmap, sys; own = bytearray(80_000_000)\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "read = sum(pages[::4096]); print('ready', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "library"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        watch = memory.Watch(process.pid)
        watch.look()
        process.communicate(b"\n")
    assert 80e6 < watch.usage.own_bytes < 110e6
    assert watch.usage.peak_bytes > 140e6


@LINUX
@pytest.mark.nightly
def test_an_hour_takes_no_more_than_ten_minutes(tmp_path, capsys):
    pair = folders.write(tmp_path / "pair", max_target_positions=24)
    # Two windows at a time, and two minutes of speech: the short one has to fill several batches too.
    # Random weights fail every guard, so each window is decoded six times.
    arguments = ["--model", str(pair), "--audio", str(MEMO), str(MEMO), "--minutes", "10", "60"]
    record = tmp_path / "out.json"
    more = ["--with", "--language", "en", "--batch-size", "2"]
    assert memory.main([*arguments, "--json", str(record), "--bound", "60", *more]) == 0
    assert "bound 60 MB" in capsys.readouterr().out
    rows = json.loads(record.read_text())["rows"]
    assert [row["minutes"] for row in rows] == [10, 60]
    assert rows[1]["words"] > 3 * rows[0]["words"] > 0


def test_a_command_that_fails_measures_nothing(tmp_path, capsys):
    assert memory.main(["--model", str(tmp_path / "none"), "--minutes", "10", "10"]) == 2
    assert "status" in capsys.readouterr().err
