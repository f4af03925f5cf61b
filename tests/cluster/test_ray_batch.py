"""`transcribe --cluster` on real Ray: workers and drivers die, results stay those of one process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from .local_cluster import LocalCluster

ray = pytest.importorskip("ray", reason="needs `scripts/setup cluster`")

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

SAMPLES = Path(__file__).parents[2] / "samples"
COUNT, KILLS = 24, 4
RUN_S = 1200.0

POISON = """
import os, sys
def poison(event, arguments):
    if event == "open" and str(arguments[0]).endswith("poison.wav"):
        os._exit(137)
if any("default_worker" in part for part in getattr(sys, "orig_argv", [])):
    sys.addaudithook(poison)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two cores; a worker that opens `poison.wav` dies."""
    hooks = tmp_path_factory.mktemp("hooks")
    (hooks / "sitecustomize.py").write_text(POISON)
    path = os.pathsep.join([str(hooks), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with LocalCluster(cpus=2, more={"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}) as running:
        yield running


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short recordings of 3 to 8 seconds, cut from the samples."""
    folder, rng = tmp_path_factory.mktemp("calls"), random.Random(18)
    audio = {
        name: soundfile.read(SAMPLES / f"{name}.flac") for name in ("memo", "conversation", "noisy")
    }
    for number in range(COUNT):
        samples, rate = audio[rng.choice(sorted(audio))]
        length = int(rng.uniform(3, 8) * rate)
        start = rng.randrange(len(samples) - length)
        soundfile.write(folder / f"{number:02}.wav", samples[start : start + length], rate)
    return folder


def command(folder: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "forescribe", "transcribe", str(folder), "-o", str(out)] + [
        "--model", "tiny.en", "--records", *more
    ]  # fmt: skip


@pytest.fixture(scope="module")
def expected(calls: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one process."""
    out = tmp_path_factory.mktemp("expected")
    subprocess.run(command(calls, out), check=True, capture_output=True, timeout=RUN_S)
    return out


def records(out: Path) -> list[dict]:
    manifest = out / "manifest.jsonl"
    lines = manifest.read_text().splitlines() if manifest.exists() else []
    return [json.loads(line) for line in lines]


def content(path: Path) -> object:
    """A result without its times: text as bytes, JSON without what the run cost. Probabilities to four
    digits: how many drafts a round has depends on measured speed, and other shapes round differently."""
    if path.suffix != ".json":
        return path.read_bytes()
    data = json.loads(path.read_text(), parse_float=lambda number: round(float(number), 4))
    return {name: value for name, value in data.items() if name != "stats"}


def assert_same(out: Path, expected: Path) -> None:
    names = {path.name for path in expected.iterdir()} - {"manifest.jsonl"}
    assert {path.name for path in out.iterdir()} - {"manifest.jsonl"} == names
    different = [name for name in sorted(names) if content(out / name) != content(expected / name)]
    assert not different


def wait_for(condition, process: subprocess.Popen, limit_s: float = RUN_S) -> bool:
    """Whether the condition came true while the process ran."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    raise AssertionError("the run does not go on")


def test_workers_drivers_and_runs_are_killed_and_every_recording_is_recorded_once(
    cluster: LocalCluster, calls: Path, expected: Path, tmp_path: Path
) -> None:
    out, rng = tmp_path / "out", random.Random(1)
    victims = ["worker"] * (KILLS - 2) + ["driver", "run"]
    rng.shuffle(victims)
    driver = [*command(calls, out), "--cluster", cluster.address, "--workers", "2"]

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            driver, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=log, cwd=tmp_path
        )

    with (tmp_path / "log").open("w+") as log:
        process = start()
        for number, victim in enumerate(victims, 1):
            due = number * (COUNT - 8) // KILLS

            def ready(due: int = due) -> bool:
                return len(records(out)) >= due and len(cluster.workers()) > 0

            assert wait_for(ready, process), log.seek(0) or log.read()
            assert len(records(out)) < COUNT, "the work ended before the kills"
            if victim == "driver":
                process.kill()
                process.wait()
                process = start()
            elif victim == "run":  # whose workers end with it
                (run,) = cluster.titled("ray::DatasetRun")
                os.kill(run, signal.SIGKILL)
            else:
                os.kill(rng.choice(cluster.workers()), signal.SIGKILL)
        assert process.wait(RUN_S) == 0, log.seek(0) or log.read()
    done = Counter(record["source"] for record in records(out))
    assert len(done) == COUNT
    assert set(done.values()) == {1}
    assert {record["status"] for record in records(out)} == {"succeeded"}
    assert_same(out, expected)


def test_a_file_that_kills_its_worker_fails_and_harms_no_other(
    cluster: LocalCluster, calls: Path, expected: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "calls", tmp_path / "out"
    folder.mkdir()
    some = sorted(calls.iterdir())[:8]
    for path in some:
        (folder / path.name).symlink_to(path)
    (folder / "poison.wav").write_bytes(some[0].read_bytes())
    run = subprocess.run(
        [*command(folder, out), "--cluster", cluster.address, "--workers", "2"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert run.returncode == 1, run.stderr
    printed = [json.loads(line) for line in run.stdout.splitlines()]  # and nothing of Ray's
    assert len(printed) == 9
    by_name = {Path(record["path"]).name: record for record in records(out)}
    assert len(by_name) == len(records(out)) == 9
    poison = by_name.pop("poison.wav")
    assert (poison["status"], poison["code"]) == ("failed", "crashed_workers")
    assert {record["status"] for record in by_name.values()} == {"succeeded"}
    for path in some:
        assert content(out / f"{path.stem}.srt") == content(expected / f"{path.stem}.srt")


def test_a_client_outside_of_the_cluster_gets_the_same_results(
    cluster: LocalCluster, calls: Path, expected: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "calls", tmp_path / "out"
    folder.mkdir()
    some = sorted(calls.iterdir())[:4]
    for path in some:
        (folder / path.name).symlink_to(path)
    (folder / "damaged.wav").write_bytes(b"RIFF")
    run = subprocess.run(
        [*command(folder, out), "--cluster", cluster.client],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert run.returncode == 1, run.stderr
    by_name = {Path(record["path"]).name: record for record in records(out)}
    assert by_name.pop("damaged.wav")["code"] == "invalid_audio"
    assert {record["status"] for record in by_name.values()} == {"succeeded"}
    for path in some:
        for suffix in (".txt", ".srt", ".json"):
            name = path.with_suffix(suffix).name
            assert content(out / name) == content(expected / name)
