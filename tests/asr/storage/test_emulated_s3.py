"""`forescribe transcribe` from and to an emulated S3: real processes, real requests, real damage. What killed
and interrupted runs leave in a store: tests/asr/batch/remote."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from forescribe.asr.batch.destinations import Bucket
from forescribe.asr.batch.ledger import Record
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores
from tests.asr.storage.emulator import CUT_OFF, EXPIRED, OK, RESET, ROOT, S3, SLOW_DOWN, running

pytestmark = pytest.mark.nightly

CLIPS = 5


@pytest.fixture(scope="module")
def emulator() -> Iterator[S3]:
    with running() as s3:
        yield s3


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of some seconds each, no two alike."""
    folder = tmp_path_factory.mktemp("clips")
    samples, rate = soundfile.read(ROOT / "samples" / "memo.flac")
    for number in range(CLIPS):
        start = 6 * number * rate
        clip = samples[start : start + (4 + number // 2) * rate].astype(np.float32)
        soundfile.write(folder / f"{number}.wav", clip, rate)
    return folder


@pytest.fixture(scope="module")
def here(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the same recordings give from a folder to a folder."""
    out = tmp_path_factory.mktemp("here")
    done = forescribe(str(clips), "-o", str(out))
    assert done.returncode == 0, done.stderr
    return {path.name: comparable(path.name, path.read_text()) for path in out.glob("[0-9].*")}


_NUMBERS = iter(range(1000))


@pytest.fixture
def s3(emulator: S3, clips: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
    """Two new buckets, `calls-N` with the clips and `out-N`."""
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    emulator.fate = lambda call: OK
    number = next(_NUMBERS)
    emulator.inputs, emulator.output = f"s3://calls-{number}/2026", f"s3://out-{number}/x"
    for name in (f"calls-{number}", f"out-{number}"):
        emulator.make_bucket(name)
    store = Stores().at(Location.parse(emulator.inputs))
    for clip in clips.iterdir():
        store.put(clip.name, clip)
    emulator.calls.clear()
    return emulator


def command(*arguments: str) -> list[str]:
    fixed = ["--model", "tiny.en", "-f", "json,srt,txt", "--local-files-only", "--beam-size", "1"]
    return [sys.executable, "-m", "forescribe", "transcribe", *arguments, *fixed]


def forescribe(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def from_store(s3: S3, *more: str) -> subprocess.CompletedProcess[str]:
    return forescribe(s3.inputs, "-o", s3.output, *more)


def comparable(name: str, text: str) -> str:
    """A result without how it was made: times, speeds, and the number of drafted tokens."""
    if not name.endswith(".json"):
        return text
    values = json.loads(text)
    del values["stats"], values["settings"]
    return json.dumps(values)


def results(s3: S3) -> dict[str, str]:
    store = Stores().at(Location.parse(s3.output))
    names = [entry.key for entry in store.list() if "/" not in entry.key]
    names.remove("manifest.jsonl")
    return {name: comparable(name, store.read(name).decode()) for name in names}


def statuses(s3: S3) -> Counter[str]:
    return Counter(record.code or record.status for record in records(s3))


def records(s3: S3) -> list[Record]:
    return list(Bucket(Location.parse(s3.output), Stores(), dry_run=True).fresh())


def nothing_secret(done: subprocess.CompletedProcess[str]) -> None:
    for text in (done.stdout, done.stderr):
        assert "secret-of-the-test" not in text and "Signature" not in text
        assert "Traceback" not in text


def test_results_are_those_of_a_local_run_and_the_second_run_reads_no_audio(s3, here) -> None:
    done = from_store(s3)
    assert done.returncode == 0, done.stderr
    assert results(s3) == here and len(here) == 3 * CLIPS
    assert s3.audio_read() == CLIPS
    s3.calls.clear()
    again = from_store(s3)
    assert again.returncode == 0 and f"{CLIPS} of {CLIPS}: already done" in again.stderr
    assert s3.audio_read() == 0
    assert not [call for call in s3.calls if call.method == "PUT" and "probe" not in call.key]
    nothing_secret(done)


def test_throttling_resets_and_broken_bodies_lose_nothing(s3, here) -> None:
    draw, lock = random.Random(3), threading.Lock()

    def fate(call) -> str:
        with lock:
            return draw.choices([OK, SLOW_DOWN, RESET, CUT_OFF], [12, 2, 2, 2])[0]

    s3.fate = fate
    done = from_store(s3)
    assert done.returncode == 0, done.stderr
    s3.fate = lambda call: OK
    assert results(s3) == here and statuses(s3) == {"succeeded": CLIPS}


def test_credentials_that_expire_fail_recordings_and_not_the_run(s3, here) -> None:
    s3.fate = lambda call: EXPIRED if call.reads_audio and call.key[-5] in "13" else OK
    done = from_store(s3)
    assert done.returncode == 1
    assert "ExpiredToken" in done.stderr and "renew them" in done.stderr
    assert statuses(s3) == {"succeeded": CLIPS - 2, "storage_denied": 2}
    nothing_secret(done)
    s3.fate = lambda call: OK
    assert from_store(s3).returncode == 0
    assert statuses(s3) == {"succeeded": CLIPS} and results(s3) == here


def test_a_bucket_that_does_not_exist_is_one_line_and_an_answer(s3) -> None:
    done = forescribe(s3.inputs, "-o", "s3://no-such-bucket-here/x")
    assert done.returncode == 2 and "there is no such bucket" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    missing = forescribe("s3://no-such-bucket-here/a.wav", "-o", s3.output)
    assert missing.returncode == 1 and "missing_file" in missing.stderr
