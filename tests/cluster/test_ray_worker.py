"""ClusterWorker: what a worker tells its driver, with a transcriber that is a script."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from forescribe.asr.batch import fingerprint
from forescribe.asr.decode.options import Options, Outcome, Progress
from forescribe.asr.errors import AudioError, ForescribeError, UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Span
from forescribe.asr.records.sources import Source
from forescribe.asr.storage.locations import Location
from forescribe.cluster.order import WorkOrder
from forescribe.cluster.worker import ClusterWorker, Report
from forescribe.speculative.errors import BrokenError
from forescribe.speculative.stats import Stats

WAIT_S = 30.0


def transcript() -> Transcript:
    return Transcript((), 16000, Coverage((Span(0, 16000, "decoded"),)), language="en")


class Script:
    """Makes transcribers that do what `acts` say by the name of a recording; else they succeed."""

    def __init__(self, **acts) -> None:
        self.acts, self.sizes, self.calls = acts, [], []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, size: int) -> Script:
        self.sizes.append(size)
        return self

    def transcribe(self, sources: Iterable[str], options=None, hook=None) -> Iterator[Outcome]:
        call: list[str] = []
        self.calls.append(call)
        for source in sources:
            call.append(str(source))
            self.gate.wait(WAIT_S)
            if hook:
                hook(Progress(source, 1.0, 2.0, (), Stats(rounds=1)))
            act = self.acts.get(Path(source).name)
            if isinstance(act, list):
                act = act.pop(0) if act else None
            if isinstance(act, AudioError):
                yield Outcome(source, error=act)
            elif isinstance(act, Exception):
                raise act
            else:
                yield Outcome(source, transcript(), wall_s=0.5)


def order(**more) -> WorkOrder:
    return WorkOrder("1", {}, Options(), **({"batch": 8} | more))


def collect(worker: ClusterWorker, count: int) -> list:
    """The recordings of the next reports, until there are `count`."""
    finished: list = []
    while len(finished) < count:
        report = worker.exchange((), WAIT_S)
        assert report.error is None
        finished += report.finished
    return finished


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    files = [tmp_path / f"{name}.wav" for name in "abc"]
    for file in files:
        file.write_bytes(file.name.encode())
    return list(map(str, files))


def test_recordings_end_with_the_hash_of_what_was_read(recordings: list[str]) -> None:
    worker = ClusterWorker(order(), Script())
    worker.exchange([Source(path) for path in recordings])
    for finished in collect(worker, 3):
        assert finished.error is None
        assert finished.transcript is not None
        assert finished.content == fingerprint.content(finished.name)
    worker.close()


def test_a_path_may_be_asked_for_twice(recordings: list[str]) -> None:
    worker = ClusterWorker(order(), Script())
    worker.exchange([Source(recordings[0]), Source(recordings[0])])
    assert [each.name for each in collect(worker, 2)] == [recordings[0]] * 2
    worker.close()


def test_reports_and_orders_can_be_pickled(recordings: list[str]) -> None:
    error = AudioError("b.wav: nothing in it", code="empty_file")
    worker = ClusterWorker(order(progress=True), Script(**{"b.wav": error}))
    report = Report()
    worker.exchange([Source(path) for path in recordings])
    while len(report.finished) < 3:
        more = worker.exchange((), WAIT_S)
        report = Report(
            (*report.finished, *more.finished), progress=(*report.progress, *more.progress)
        )
    copy = pickle.loads(pickle.dumps(report))
    failed = next(each for each in copy.finished if each.error is not None)
    assert (failed.error.code, failed.error.message) == ("empty_file", "b.wav: nothing in it")
    assert {type(each.source) for each in copy.progress} == {str}
    assert pickle.loads(pickle.dumps(worker.order)) == worker.order
    worker.close()


def test_an_empty_queue_ends_a_call_and_the_next_task_begins_another(recordings) -> None:
    script = Script()
    worker = ClusterWorker(order(), script)
    for path in recordings:
        worker.exchange([Source(path)])
        collect(worker, 1)
    assert script.calls == [[path] for path in recordings]
    worker.close()


def test_out_of_memory_halves_the_batch_once_and_then_fails_recordings(recordings) -> None:
    script = Script(**{"a.wav": [MemoryError(), MemoryError()]})
    script.gate.clear()
    worker = ClusterWorker(order(batch=8), script)
    worker.exchange([Source(path) for path in recordings])
    script.gate.set()
    finished, notices = [], []
    while len(finished) < 3:
        report = worker.exchange((), WAIT_S)
        finished += report.finished
        notices += report.notices
    assert script.sizes[:2] == [8, 4]
    assert [each.name for each in finished if each.error] == [recordings[0]]
    assert next(each.error.code for each in finished if each.error) == "overloaded"
    assert ["going on with 4" in text for text in notices] == [True]
    worker.close()


def test_a_recording_that_ran_out_of_memory_halves_the_batch_too(recordings) -> None:
    error = AudioError("a.wav: RuntimeError")
    error.__cause__ = RuntimeError("CUDA out of memory")
    script = Script(**{"a.wav": [error]})
    worker = ClusterWorker(order(batch=8), script)
    worker.exchange([Source(path) for path in recordings])
    assert [each.error for each in collect(worker, 3)] == [None] * 3
    assert script.sizes[:2] == [8, 4]
    worker.close()


def test_what_the_model_cannot_serve_ends_the_run(recordings) -> None:
    worker = ClusterWorker(order(), Script(**{"a.wav": UsageError("no such language")}))
    report = worker.exchange([Source(recordings[0])], WAIT_S)
    assert isinstance(report.error, UsageError)


def test_errors_of_others_are_sent_as_our_own(recordings) -> None:
    class Odd(Exception):
        """Defined here, so that it cannot be unpickled elsewhere."""

    worker = ClusterWorker(order(), Script(**{"a.wav": Odd("no driver")}))
    report = pickle.loads(pickle.dumps(worker.exchange([Source(recordings[0])], WAIT_S)))
    assert isinstance(report.error, ForescribeError)
    assert report.error.message == "a worker failed with Odd: no driver"


def test_a_broken_device_ends_the_worker_and_not_the_run(recordings) -> None:
    worker = ClusterWorker(order(), Script(**{"a.wav": BrokenError("the GPU is gone")}))
    report = worker.exchange([Source(recordings[0])], WAIT_S)
    assert report.error is None
    assert report.broken is not None and "GPU" in report.broken


def test_draining_gives_back_what_has_not_begun_and_finishes_the_rest(recordings) -> None:
    script = Script()
    script.gate.clear()
    worker = ClusterWorker(order(), script)
    worker.exchange([Source(path) for path in recordings])
    while not script.calls or not script.calls[0]:
        worker.exchange((), 0.01)
    worker.drain(within_s=1e6)
    report = worker.exchange((), WAIT_S)
    assert report.leaving
    assert list(report.returned) == recordings[1:]
    assert worker.exchange([Source("late.wav")], WAIT_S).returned == ("late.wav",)
    script.gate.set()
    (finished,) = collect(worker, 1)
    assert finished.name == recordings[0]
    assert worker.idle
    worker.close()


def test_what_does_not_end_in_time_is_given_back_and_its_outcome_dropped(recordings) -> None:
    now = [0.0]
    script = Script()
    script.gate.clear()
    worker = ClusterWorker(order(), script, clock=lambda: now[0])
    worker.exchange([Source(recordings[0])])
    while not script.calls or not script.calls[0]:
        worker.exchange((), 0.01)
    worker.drain(within_s=20.0)
    assert worker.exchange((), 0.0).returned == ()
    now[0] = 20.0
    assert worker.exchange((), WAIT_S).returned == (recordings[0],)
    script.gate.set()
    while worker._thread.is_alive() and not script.calls[-1]:
        pass
    assert worker.exchange((), 0.2).finished == ()
    worker.close()


def test_progress_of_several_windows_is_merged(recordings) -> None:
    script = Script()
    worker = ClusterWorker(order(progress=True), script, stats=lambda: Stats(rounds=7))
    worker.exchange([Source(recordings[0])])
    progress, stats = [], Stats()
    finished: list = []
    while not finished or stats.rounds != 7:
        report = worker.exchange((), 0.2)
        finished += report.finished
        progress += report.progress
        stats = report.stats
    assert [(each.source, each.done_s) for each in progress] == [(recordings[0], 1.0)]
    worker.close()


def located(path: str) -> Source:
    location = Location.parse(f"file://{path}")
    return Source(location.identity, location=location)


def test_recordings_at_locations_are_fetched_and_their_copies_removed(recordings, tmp_path) -> None:
    spool = tmp_path / "spool"
    script = Script()
    worker = ClusterWorker(order(spool=str(spool)), script)
    sources = [located(path) for path in recordings]
    worker.exchange(sources)
    finished = {each.name: each for each in collect(worker, 3)}
    assert set(finished) == {source.path for source in sources}
    for source, path in zip(sources, recordings, strict=True):
        each = finished[source.path]
        assert each.error is None
        assert each.content == fingerprint.content(path)
        assert each.entry is not None and each.entry.size == Path(path).stat().st_size
    assert sorted(name for call in script.calls for name in call) == sorted(finished)
    assert [path for path in spool.rglob("*") if path.suffix == ".wav"] == []
    worker.close()


def test_a_location_that_cannot_be_fetched_fails_alone(recordings, tmp_path) -> None:
    worker = ClusterWorker(order(spool=str(tmp_path)), Script())
    missing = located(str(tmp_path / "missing.wav"))
    worker.exchange([missing, located(recordings[0])])
    finished = {each.name: each.error for each in collect(worker, 2)}
    assert finished.pop(missing.path).code == "missing_file"
    assert list(finished.values()) == [None]
    worker.close()


def test_a_location_may_be_asked_for_again(recordings, tmp_path) -> None:
    worker = ClusterWorker(order(spool=str(tmp_path)), Script())
    for _ in range(2):
        worker.exchange([located(recordings[0])])
        (finished,) = collect(worker, 1)
        assert finished.error is None
    worker.close()


def test_a_spool_without_room_ends_a_call_and_the_next_one_goes_on(recordings, tmp_path) -> None:
    for path in recordings:
        Path(path).write_bytes(bytes(600))
    script = Script()
    worker = ClusterWorker(order(spool=str(tmp_path / "spool"), spool_bytes=1000), script)
    worker.exchange([located(path) for path in recordings])
    assert [each.error for each in collect(worker, 3)] == [None] * 3
    worker.close()
