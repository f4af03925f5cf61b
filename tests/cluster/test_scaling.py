"""Eight workers of one machine do eight times the work of one, where devices do it.

    python -m tests.cluster.test_scaling ADDRESS WORKERS FOLDER      prints recordings per second

A device's time is slept, so that two cores can be the host of eight. What two cores cannot show: eight
processes that decode audio and prepare windows at the same time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forescribe.asr.decode.options import Options
from forescribe.asr.storage.locations import Source
from forescribe.cluster.order import WorkOrder
from forescribe.cluster.workers import ClusterTranscriber
from tests.asr.batch.remote.objects import CopyTypist
from tests.asr.typists import Outcome, write_wav

pytest.importorskip("ray", reason="needs `scripts/setup cluster`")

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
DEVICE_S = 0.2
"""Of a recording: five minutes of audio at 1,500 times real time."""
EACH = 40  # recordings for each worker


class Device(CopyTypist):
    """Types after a device's time."""

    def _typed(self, source: Any) -> Outcome:
        time.sleep(DEVICE_S)
        return super()._typed(source)


def main(address: str, workers: int, folder: Path) -> None:
    sources = [Source(str(path)) for path in sorted(folder.iterdir())[: EACH * workers]]
    order = WorkOrder.of(
        partial(Device), Options(), sources, target="tiny.en", batch=4, network=False, spool=None
    )
    ended = [
        time.monotonic()
        for outcome in ClusterTranscriber(address, order, sources, workers=workers).transcribe(
            [source.path for source in sources]
        )
        if outcome.transcript is not None
    ]
    assert len(ended) == len(sources)
    # Of the middle half: on two cores workers start one after the other, and end likewise.
    first, last = len(ended) // 4, 3 * len(ended) // 4
    sys.stdout.write(f"{(last - first) / (ended[last] - ended[first])}\n")


def test_eight_workers_do_eight_times_the_work_of_one(tmp_path: Path) -> None:
    from .local_cluster import LocalCluster

    for number in range(8 * EACH):
        write_wav(tmp_path / f"{number:03}.wav", 0.1, number)
    with LocalCluster(cpus=10, more={"PYTHONPATH": str(ROOT)}) as cluster:
        rates = {}
        for workers in (1, 8):
            command = [sys.executable, "-m", "tests.cluster.test_scaling", cluster.address]
            done = subprocess.run(
                [*command, str(workers), str(tmp_path)],
                env=cluster.environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=900,
            )
            assert done.returncode == 0, done.stderr
            rates[workers] = float(done.stdout.split()[-1])
    sys.stdout.write(f"recordings per second by workers: {rates}\n")
    assert rates[8] >= 0.9 * 8 * rates[1], rates


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
