"""A folder that several processes write records to, without locks, while some of them are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from forescribe.asr.records.record_store import RecordStore

ROOT = Path(__file__).parents[3]

WORKER = """
import random, sys
from forescribe.asr.batch.manifest import Record
from forescribe.asr.records.record_store import RecordStore

folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
records = RecordStore.open(folder)
records.begin(settings="5e77", formats=("txt",), total=count)
names = [f"{n}.mp3" for n in range(count)]
random.Random(seed).shuffle(names)
ours = 0
for name in names:
    ours += records.create(Record(name, "succeeded", source=name, outputs=(name + ".txt",)))
    print(ours, flush=True)
"""

COUNT = 300


def start(folder: Path, seed: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), str(COUNT), str(seed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_every_recording_has_one_record_whoever_was_killed(tmp_path: Path) -> None:
    killed = [start(tmp_path, seed) for seed in range(2)]
    for process in killed:  # in the middle of its work
        for _ in range(COUNT // 4):
            assert process.stdout is not None and process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    survivors = [start(tmp_path, seed) for seed in range(2, 4)]
    won = [int(process.communicate(timeout=300)[0].split()[-1]) for process in survivors]
    for process in killed:
        process.communicate()
    store = RecordStore.open(tmp_path)
    found = store.load()
    assert len(found) == COUNT and {stored.generation for stored in found.values()} == {1}
    assert sum(won) < COUNT, "the killed ones had recorded something"
    assert store.join().number == 1
    by_worker = Counter(stored.worker for stored in found.values())
    assert set(won) - {0} <= set(by_worker.values())
    assert store.all_doubled >= 2 * COUNT - sum(won)
    assert store.merge() == COUNT
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
    assert len(lines) == COUNT
