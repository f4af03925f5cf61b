"""The operator on real Ray Data: results, and errors as rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .local_cluster import LocalCluster

pytest.importorskip("ray", reason="needs `scripts/setup cluster`")

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

SAMPLES = Path(__file__).parents[2] / "samples"

PIPELINE = """
import json, sys
import ray
from forescribe.ray import transcribe

address, out, diarize, *paths = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
dataset = ray.data.from_items([{"path": path} for path in paths])
given = {"diarize": True, "diarizer": "embedded"} if diarize == "yes" else {}
rows = transcribe(dataset, model="tiny.en", workers=1, num_cpus=1, device="cpu", **given).take_all()
with open(out, "w") as file:
    json.dump(rows, file)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(cpus=2, more={"HF_HUB_OFFLINE": "1"}) as running:
        yield running


def pipeline(cluster: LocalCluster, folder: Path, paths: list[Path], *, diarize: str) -> dict:
    out = folder / "rows.json"
    subprocess.run(
        [sys.executable, "-c", PIPELINE, cluster.address, str(out), diarize, *map(str, paths)],
        env=cluster.environment,
        check=True,
        timeout=600,
    )
    return {Path(row["path"]).name: row for row in json.loads(out.read_text())}


def test_rows_are_transcripts_or_errors(cluster: LocalCluster, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.wav"
    damaged.write_bytes(b"RIFF")
    names = ("memo", "noisy", "silence")
    paths = [*(SAMPLES / f"{name}.flac" for name in names), damaged, tmp_path / "none.wav"]
    rows = pipeline(cluster, tmp_path, paths, diarize="no")
    assert len(rows) == 5
    assert "printing plant" in rows["memo.flac"]["text"]
    assert json.loads(rows["memo.flac"]["transcript"])["segments"]
    assert rows["none.wav"]["code"] == "missing_file"
    assert rows["damaged.wav"]["code"] == "invalid_audio"
    assert rows["damaged.wav"]["transcript"] is None


def test_speakers(cluster: LocalCluster, tmp_path: Path) -> None:
    rows = pipeline(cluster, tmp_path, [SAMPLES / "conversation.flac"], diarize="yes")
    segments = json.loads(rows["conversation.flac"]["transcript"])["segments"]
    assert len({segment["speaker"] for segment in segments}) == 2
