"""Results that workers write: the same as those of one machine, and nothing left to do for the command."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from forescribe.asr.batch.batch import Batch
from forescribe.asr.batch.results import Written
from forescribe.asr.decode.options import Options, Outcome
from forescribe.asr.records.record_store import MAX_CRASHES, RecordStore
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores, open_store
from forescribe.cluster.cluster_transcriber import ClusterTranscriber
from forescribe.cluster.order import WorkOrder
from forescribe.cluster.ray_fleet import Event, Lost, Reported, Started
from forescribe.cluster.results import Assigned, RunResults, WorkerResults
from forescribe.cluster.worker import ClusterWorker
from tests.asr.batch.remote.objects import CopyTypist, batch, files, merged, put_calls, put_wav, run
from tests.asr.storage.faults import memory, quick

COUNT = 12


class Workers:
    """A fleet whose workers are threads of this process. One that is given `poison` dies."""

    def __init__(self, workers: int = 2, *, poison: str = "", may_write: bool = True) -> None:
        self.workers, self.poison, self.may_write = workers, poison, may_write
        self.running: dict[int, ClusterWorker] = {}
        self.given: dict[int, list[str]] = {}
        self.reports: list[Outcome] = []
        self.events: list[Event] = []
        self.started = 0

    def begin(self, order: WorkOrder) -> int:
        self.order = pickle.loads(pickle.dumps(order))  # as on its way to another machine
        return self.workers

    def start(self) -> int:
        number, self.started = self.started, self.started + 1
        results = None
        if self.order.writing is not None and self.may_write:
            results = WorkerResults(self.order.writing, Stores(quick()))
        self.running[number] = ClusterWorker(
            self.order, lambda size: CopyTypist(ahead=2), results=results
        )
        self.given[number] = []
        self.events.append(Started(number, "machine"))
        return number

    def exchange(self, worker: int, sources: Sequence[Source]) -> None:
        self.given[worker] += [source.path for source in sources]
        if self.poison and any(path.endswith(self.poison) for path in self.given[worker]):
            self.running.pop(worker).close()
            self.events.append(Lost(worker, "SIGKILL"))
            return
        sent = pickle.loads(pickle.dumps(list(sources)))
        report = pickle.loads(pickle.dumps(self.running[worker].exchange(sent, 0.05)))
        self.reports += report.finished
        self.events.append(Reported(worker, report))

    def wait(self, seconds: float) -> list[Event]:
        return [self.events.pop(0)] if self.events else []

    def stop(self, worker: int) -> None:
        if worker in self.running:
            self.running.pop(worker).close()

    def close(self) -> None:
        for worker in list(self.running):
            self.stop(worker)


def on_cluster(made: Batch, fleet: Workers, spool: Path, *, whole: bool = False) -> list[Any]:
    order = WorkOrder("1", {}, Options(), batch=2, spool=str(spool))
    results = RunResults.of(made.outputs, made.settings, whole=whole)

    def make(size: int) -> ClusterTranscriber:
        return ClusterTranscriber(cast(Any, fleet), order, made.todo, results=results)

    return list(made.run(make, Options(), size=2, elsewhere=True))


@pytest.fixture
def calls() -> Location:
    folder = memory() / "calls"
    put_calls(folder, COUNT)
    return folder


def records(out: str) -> dict[str, dict[str, Any]]:
    """The records of an output, without who made them when."""
    found = {}
    for source, stored in RecordStore.open(out).load().items():
        record = stored.to_dict()
        found[source] = {
            name: value for name, value in record.items() if name not in ("worker", "at", "token")
        }
    return found


def test_files_and_records_are_those_of_one_machine(calls, tmp_path) -> None:
    alone, shared = str(memory() / "out"), str(memory() / "out")
    run([str(calls)], alone)
    fleet = Workers()
    results = on_cluster(batch([str(calls)], shared), fleet, tmp_path)
    assert len(results) == COUNT and not any(result.error for result in results)
    assert files(shared) == files(alone) and len(files(shared)) == 2 * COUNT
    assert records(shared) == records(alone)
    assert {line["source"] for line in merged(shared)} == set(records(shared))
    for result in results:  # as after results that were written here
        assert [str(file) for file in result.files] == [
            f"{shared}/{name}" for name in result.record.outputs
        ]
        assert result.transcript is not None and result.transcript.duration > 0


def test_the_command_gets_no_text_and_makes_no_request_for_a_recording(calls, tmp_path) -> None:
    made = batch([str(calls)], str(memory() / "out"))
    store = made.outputs.store
    before = store.requests.total()  # type: ignore[union-attr]
    fleet = Workers()
    results = on_cluster(made, fleet, tmp_path)
    assert all(each.transcript is None and isinstance(each, Written) for each in fleet.reports)
    assert all(result.transcript.segments == () for result in results)
    merging = 3  # a listing, the manifest of before, and the new one
    assert store.requests.total() == before + merging  # type: ignore[union-attr]


def test_a_report_gets_the_text(calls, tmp_path) -> None:
    made = batch([str(calls)], str(memory() / "out"))
    results = on_cluster(made, Workers(), tmp_path, whole=True)
    assert all(result.transcript.text for result in results)


def test_a_second_run_reads_nothing_and_another_format_is_added(calls, tmp_path) -> None:
    out = str(memory() / "out")
    on_cluster(batch([str(calls)], out, formats="txt"), Workers(), tmp_path)
    again = batch([str(calls)], out, formats="txt")
    assert not again.todo and len(again.done) == COUNT
    on_cluster(batch([str(calls)], out, formats="srt"), Workers(), tmp_path)
    assert len(files(out)) == 2 * COUNT
    both = batch([str(calls)], out, formats="txt,srt")
    assert not both.todo  # the later records name the files of both


def test_a_worker_that_may_not_write_leaves_it_to_the_command(calls, tmp_path) -> None:
    alone, shared = str(memory() / "out"), str(memory() / "out")
    run([str(calls)], alone)
    fleet = Workers(may_write=False)
    on_cluster(batch([str(calls)], shared), fleet, tmp_path)
    assert all(each.transcript is not None for each in fleet.reports)
    assert files(shared) == files(alone) and records(shared).keys() == records(alone).keys()


def test_a_folder_has_one_writer(calls, tmp_path) -> None:
    made = batch([str(calls)], str(tmp_path / "out"))
    assert RunResults.of(made.outputs, made.settings, whole=False) is None


def test_a_recording_that_fails_is_recorded_by_its_worker(tmp_path) -> None:
    calls, out = memory() / "calls", str(memory() / "out")
    put_wav(calls / "good.wav")
    made = batch([str(calls), str(calls / "gone.wav")], out)
    results = on_cluster(made, Workers(), tmp_path)
    status = {Path(r.record.path).name: r.record.status for r in results}
    assert status == {"good.wav": "succeeded", "gone.wav": "failed"}
    assert {r["status"] for r in records(out).values()} == {"succeeded", "failed"}


def test_crashes_leave_marks_that_the_next_run_knows(calls, tmp_path) -> None:
    out, poison = str(memory() / "out"), "03.wav"
    made = batch([str(calls)], out)
    results = on_cluster(made, Workers(poison=poison), tmp_path)
    codes = {Path(r.record.path).name: r.record.code for r in results if r.error}
    assert codes == {poison: "crashed_workers"}
    marks = [e.key for e in open_store(Location.parse(out)).list("_forescribe/crashes")]
    assert len(marks) >= MAX_CRASHES

    other = str(memory() / "out")
    made = batch([str(calls)], other)
    known = RunResults.of(made.outputs, made.settings, whole=False)
    assert known is not None
    path = next(source.path for source in made.todo if source.path.endswith(poison))
    for _ in range(MAX_CRASHES - 1):  # in a run whose command was killed then
        known.count_crash(path)
    fleet = Workers(poison=poison)
    on_cluster(batch([str(calls)], other), fleet, tmp_path)
    assert fleet.started <= 3, "one more worker died, with nothing else"
    assert json.loads(open_store(Location.parse(other)).read("manifest.jsonl").splitlines()[0])


def test_what_is_sent_for_a_recording_is_small(calls) -> None:
    made = batch([str(calls)], str(memory() / "out"))
    results = RunResults.of(made.outputs, made.settings, whole=False)
    assert results is not None
    assigned = results.assigned(made.todo[0])
    assert isinstance(assigned, Assigned) and assigned.stem
    assert len(pickle.dumps(assigned)) < 2000
