"""Status: what records say about a run, in figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forescribe.asr.batch.manifest import Record
from forescribe.asr.errors import UsageError
from forescribe.asr.records.record_store import RecordStore
from forescribe.asr.records.status import BARS, RunStatus, StatusReader
from forescribe.asr.records.stored_records import Run, StoredRecord
from forescribe.cli.main import app
from forescribe.cli.status import status_lines
from tests.asr.storage.faults import memory

RUN = Run("5e77", ("json",), total=10, total_bytes=1000, started=1000.0)


def stored(number: int, at: float, *, status: str = "succeeded", **more) -> StoredRecord:
    done = status == "succeeded"
    record = Record(
        path=f"s3://calls/{number}.mp3",
        source=f"s3://calls/{number}.mp3",
        status=status,
        code=None if done else more.pop("code", "invalid_audio"),
        audio_s=60.0 if done else None,
        wall_s=2.0,
        version=f"{more.pop('size', 100)}:tag",
    )
    return StoredRecord(record, **{"settings": "5e77", "run": 1, "at": at, "worker": "w"} | more)


def test_counts_audio_and_failures() -> None:
    records = [stored(n, 1010 + 10 * n) for n in range(4)]
    records += [stored(n, 1050, status="failed") for n in range(4, 8)]
    records += [stored(8, 1050, status="failed", code="storage_denied", worker="v")]
    status = RunStatus.of(records, RUN, now=1060, doubled=2, crashes=1)
    assert (status.succeeded, status.failed, status.left, status.total) == (4, 5, 1, 10)
    assert status.audio_s == 240 and status.workers == 2
    assert list(status.failures) == ["invalid_audio", "storage_denied"]
    assert status.failures["invalid_audio"].count == 4
    assert status.failures["invalid_audio"].names == tuple(f"s3://calls/{n}.mp3" for n in (4, 5, 6))


def test_speed_and_end_by_bytes() -> None:
    """Half of the bytes in 50 s: the other half takes 50 s more, however many recordings it is."""
    records = [stored(0, 1050, size=500)]
    status = RunStatus.of(records, RUN, now=1050)
    assert status.speed == status.recent_speed == 60 / 50
    assert status.left == 9 and status.left_s == pytest.approx(50)
    by_number = RunStatus.of(records, Run("5e77", total=10, started=1000.0), now=1050)
    assert by_number.left_s == pytest.approx(450)


def test_throughput_over_time_adds_up() -> None:
    records = [stored(n, 1000 + 10 * (n + 1)) for n in range(10)]
    status = RunStatus.of(records, RUN, now=1100)
    assert len(status.throughput) == BARS
    assert sum(status.throughput) * 100 / BARS == pytest.approx(600, rel=1e-3)


def test_a_run_that_stands_still_promises_no_end() -> None:
    status = RunStatus.of([stored(0, 1050)], RUN, now=9999)
    assert status.left_s is None and status.recent_speed is None and status.speed


def test_records_of_replaced_runs_do_not_count() -> None:
    again = Run("5e77", ("json",), number=2, since=2, total=10, started=2000.0)
    status = RunStatus.of([stored(0, 1010), stored(1, 2010, run=2)], again, now=2020)
    assert status.succeeded == 1 and status.since == 2000.0


def test_nothing_yet() -> None:
    status = RunStatus.of([], RUN, now=1010)
    assert (status.left, status.speed, status.left_s, status.throughput) == (10, None, None, ())
    lines = status_lines("s3://out", status, now=1010)
    assert lines[0] == "s3://out: 0 of 10 recordings have ended (0.0%): 0 succeeded, 0 failed"


# From outputs


def test_the_reader_sees_what_workers_do() -> None:
    out = memory() / "out"
    worker, other = RecordStore.open(out), RecordStore.open(out)
    for each in (worker, other):
        each.begin(settings="5e77", formats=("json",), total=3)
    reader = StatusReader(str(out))
    assert reader.read().left == 3
    worker.create(Record("a", "succeeded", source="a", audio_s=5.0))
    other.create(Record("a", "succeeded", source="a", audio_s=5.0))
    other.create(Record("b", "failed", source="b", code="empty_file"))
    other.count_crash("c")
    status = reader.read()
    assert (status.succeeded, status.failed, status.left) == (1, 1, 1)
    assert (status.doubled, status.crashes, status.workers) == (1, 1, 2)


def test_a_folder_with_a_manifest_alone(tmp_path: Path) -> None:
    lines = [
        Record("a", "failed", source="a", code="missing_file"),
        Record("b", "succeeded", source="b", audio_s=7200.0, outputs=("b.txt",)),
        Record("c", "cancelled", source="c"),
        Record("a", "succeeded", source="a", audio_s=1.0),
    ]
    text = "".join(json.dumps(line.to_dict()) + "\n" for line in lines)
    (tmp_path / "manifest.jsonl").write_text(text + '{"half')
    for output in (str(tmp_path), f"file://{tmp_path}"):
        reader = StatusReader(output)
        status = reader.read()
        assert (status.succeeded, status.failed, status.total) == (2, 0, None)
        assert status.audio_s == 7201.0 and status.speed is None
        assert reader.where == str(tmp_path)


def test_an_output_without_a_run_is_refused(tmp_path: Path) -> None:
    for output in (str(tmp_path), str(tmp_path / "nope"), str(memory())):
        with pytest.raises(UsageError, match="no run has written there"):
            StatusReader(output).read()
    assert not (tmp_path / "nope").exists()


def test_the_command_prints_lines_and_json() -> None:
    out = memory() / "out"
    records = RecordStore.open(out)
    records.begin(settings="5e77", formats=("json",), total=2)
    records.create(Record("\x1b[31ma", "failed", source="a", code="empty_file"))
    records.create(Record("b", "succeeded", source="b", audio_s=3600.0))
    shown = CliRunner().invoke(app, ["status", str(out), "--watch"])  # ends: nothing is left
    assert shown.exit_code == 0, shown.output
    assert "2 of 2 recordings have ended (100.0%): 1 succeeded, 1 failed" in shown.output
    assert "1 empty_file: \\x1b[31ma" in shown.output and "60 min of audio" in shown.output
    printed = CliRunner().invoke(app, ["status", str(out), "--json"])
    values = json.loads(printed.output)
    assert values["output"] == str(out) and values["left"] == 0
    assert values["failures"] == {"empty_file": {"count": 1, "names": ["\x1b[31ma"]}}
