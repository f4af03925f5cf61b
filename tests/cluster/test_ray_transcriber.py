"""ClusterTranscriber in place of the local transcriber, on a fleet without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from forescribe.asr.batch.batch import Batch
from forescribe.asr.batch.inputs import Source
from forescribe.asr.batch.outputs import Outputs
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.outcome import Progress
from forescribe.asr.errors import CapacityError, ForescribeError, ModelError, UsageError
from forescribe.asr.formats.transcript import Coverage, Span, Transcript
from forescribe.cluster.cluster_transcriber import GIVE_UP_S, NOTICE_S, ClusterTranscriber
from forescribe.cluster.fleet import Event, Lost, Refused, Reported, Started
from forescribe.cluster.work_records import Finished, Report, WorkerInfo, WorkOrder
from forescribe.speculative.engine.stats import Stats

ORDER = WorkOrder("1", {}, Options(), batch=2)


class FakeFleet:
    """Workers that end a recording per exchange. `poison` kills its worker, `script` holds events by the
    number of the call, in place of an answer."""

    def __init__(self, workers: int = 2, *, poison: Sequence[str] = (), refuse=None) -> None:
        self.workers, self.poison, self.refuse = workers, set(poison), refuse
        self.script: dict[int, Event] = {}
        self.held: dict[int, list[str]] = {}
        self.events: list[Event] = []
        self.calls = self.started = self.most = 0
        self.stopped: list[int] = []
        self.leaving: set[int] = set()
        self.closed = False
        self.silent = False
        self.order: WorkOrder | None = None

    def begin(self, order: WorkOrder) -> int:
        self.order = order
        return self.workers

    def start(self) -> int:
        worker, self.started = self.started, self.started + 1
        self.held[worker] = []
        self.most = max(self.most, len(self.held))
        if self.silent:
            return worker
        if self.refuse is not None:
            event: Event = Refused(worker, self.refuse)
        else:
            event = Started(worker, WorkerInfo("host", worker, "cpu"))
        self.events.append(event)
        return worker

    def exchange(self, worker: int, sources: Sequence[Source]) -> None:
        self.calls += 1
        self.held[worker] += [source.path for source in sources]
        own = self.held[worker]
        if worker in self.leaving:  # what has begun ends, and nothing is begun
            self.events.append(Reported(worker, replace(self._report(own), leaving=True)))
        elif self.calls in self.script:
            event = replace(self.script[self.calls], worker=worker)
            if isinstance(event, Lost):
                del self.held[worker]
            elif event.report.leaving:
                self.leaving.add(worker)
                own[:] = [path for path in own if path not in event.report.returned]
            self.events.append(event)
        elif own and Path(own[0]).name in self.poison:
            del self.held[worker]
            self.events.append(Lost(worker, "SIGKILL"))
        else:
            self.events.append(Reported(worker, self._report(own)))

    def _report(self, own: list[str]) -> Report:
        if not own:
            return Report()
        path = own.pop(0)
        text = Transcript((), 16000, Coverage((Span(0, 16000, "decoded"),)), language="en")
        progress = Progress(path, 1.0, 1.0, (), Stats())
        return Report(
            (Finished(path, text, None, 0.5, "c" * 64),),
            progress=(progress,),
            stats=Stats(rounds=1),
        )

    def wait(self, seconds: float) -> list[Event]:
        return [self.events.pop(0)] if self.events else []

    def stop(self, worker: int) -> None:
        self.stopped.append(worker)
        self.held.pop(worker, None)
        self.events = [event for event in self.events if event.worker != worker]

    def shortage(self) -> str:
        return "each needs 1 GPU; the cluster has 4 CPU"

    def close(self) -> None:
        self.closed = True


def transcriber(fleet: FakeFleet, paths: Sequence[str], **more) -> ClusterTranscriber:
    return ClusterTranscriber(fleet, ORDER, [Source(path, length_s=20.0) for path in paths], **more)


def names(count: int) -> list[str]:
    return [f"{number:02}.wav" for number in range(count)]


def test_every_recording_gets_an_outcome_and_the_fleet_is_closed() -> None:
    fleet, paths = FakeFleet(), names(20)
    outcomes = list(transcriber(fleet, paths).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert all(outcome.transcript is not None and outcome.content for outcome in outcomes)
    assert {outcome.worker for outcome in outcomes} == {"0", "1"}
    assert fleet.closed
    assert fleet.started == 2


def test_there_are_no_more_workers_than_recordings() -> None:
    fleet = FakeFleet(workers=8)
    list(transcriber(fleet, ["a.wav"]).transcribe(["a.wav"]))
    assert fleet.started == 1


def test_nothing_is_started_for_nothing() -> None:
    fleet = FakeFleet()
    assert list(transcriber(fleet, []).transcribe([])) == []
    assert fleet.started == 0


@pytest.mark.parametrize("kills", [{3: Lost(0, "SIGKILL")}, {3: Lost(0, "x"), 5: Lost(0, "y")}])
def test_a_lost_worker_costs_no_recording(kills: dict[int, Event]) -> None:
    fleet, paths, said = FakeFleet(), names(20), []
    fleet.script = kills
    outcomes = list(transcriber(fleet, paths, notice=said.append).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert all(outcome.error is None for outcome in outcomes)
    assert fleet.started == 2 + len(kills)
    assert len(said) == len(kills)


def test_a_poisonous_recording_costs_three_workers_and_fails() -> None:
    fleet, paths = FakeFleet(poison=["03.wav"]), names(12)
    outcomes = list(transcriber(fleet, paths).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    (failed,) = [outcome for outcome in outcomes if outcome.error is not None]
    assert failed.name == "03.wav"
    assert failed.error is not None and failed.error.code == "crashed_workers"
    assert fleet.started == 2 + 3


def test_the_only_recording_may_be_poisonous() -> None:
    fleet = FakeFleet(poison=["a.wav"])
    (outcome,) = transcriber(fleet, ["a.wav"]).transcribe(["a.wav"])
    assert outcome.error is not None
    assert fleet.started == 3


def test_a_broken_worker_is_replaced() -> None:
    fleet, paths = FakeFleet(), names(8)
    fleet.script = {4: Reported(0, Report(broken="the GPU does not answer"))}
    outcomes = list(transcriber(fleet, paths).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert fleet.stopped[:1] in ([0], [1])
    assert fleet.started == 3


def test_a_leaving_worker_gets_nothing_more_and_is_replaced() -> None:
    fleet, paths, said = FakeFleet(workers=1), names(4), []
    fleet.script = {1: Reported(0, Report(returned=("00.wav", "01.wav"), leaving=True))}
    run = transcriber(fleet, paths, notice=said.append).transcribe(paths)
    first = next(run)
    assert first.name in paths
    outcomes = [first, *run]
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert all(outcome.error is None for outcome in outcomes)
    assert fleet.started == 2
    assert len(said) == 1


@pytest.mark.parametrize("error", [ModelError("no weights"), UsageError("another version")])
def test_what_no_worker_can_do_ends_the_run(error: ForescribeError) -> None:
    fleet = FakeFleet(refuse=error)
    with pytest.raises(type(error)):
        list(transcriber(fleet, ["a.wav"]).transcribe(["a.wav"]))
    assert fleet.closed


def test_an_error_of_the_request_ends_the_run() -> None:
    fleet = FakeFleet()
    fleet.script = {1: Reported(0, Report(error=UsageError("no such language")))}
    with pytest.raises(UsageError, match="language"):
        list(transcriber(fleet, names(4)).transcribe(names(4)))
    assert fleet.closed


def test_workers_that_die_while_they_load_end_the_run() -> None:
    class Dying(FakeFleet):
        def start(self) -> int:
            worker = super().start()
            self.events = [Lost(worker, "killed for memory") if event.worker == worker else event
                           for event in self.events]  # fmt: skip
            return worker

    fleet = Dying(workers=1)
    with pytest.raises(CapacityError, match="3 workers in a row .* killed for memory"):
        list(transcriber(fleet, ["a.wav"]).transcribe(["a.wav"]))
    assert fleet.started == 3


def test_that_no_worker_starts_is_said_and_ends_the_run_at_last() -> None:
    fleet, said, now = FakeFleet(), [], [0.0]
    fleet.silent = True

    def clock() -> float:
        now[0] += NOTICE_S / 2
        return now[0]

    run = transcriber(fleet, ["a.wav"], notice=said.append, clock=clock).transcribe(["a.wav"])
    with pytest.raises(CapacityError, match="each needs 1 GPU"):
        next(run)
    assert said == ["no worker has started yet: each needs 1 GPU; the cluster has 4 CPU"]
    assert now[0] <= 2 * GIVE_UP_S


def test_closing_the_run_ends_the_workers() -> None:
    fleet, paths = FakeFleet(), names(8)
    run = transcriber(fleet, paths).transcribe(paths)
    next(run)
    run.close()
    assert fleet.closed


def test_progress_has_the_statistics_of_all_workers() -> None:
    fleet, paths, seen = FakeFleet(), names(6), []
    run = transcriber(fleet, paths)
    outcomes = list(run.transcribe(paths, hook=seen.append))
    assert len(outcomes) == len(seen) == 6
    assert fleet.order is not None and fleet.order.progress
    assert seen[-1].stats == run.stats()
    assert run.stats() == Stats(rounds=2)


def test_a_batch_records_what_workers_have_read_and_resumes(tmp_path: Path) -> None:
    """The driver reads no recording: their hashes come with the outcomes."""
    paths = [str(tmp_path / name) for name in names(5)]
    for path in paths:
        Path(path).write_bytes(b"RIFF")
    sources = [Source(path) for path in paths]

    def batch() -> Batch:
        outputs = Outputs.plan(sources, str(tmp_path / "out"), "txt")
        return Batch(sources, outputs, settings="s" * 16)

    fleet = FakeFleet(poison=["03.wav"])
    results = list(
        batch().run(lambda size: transcriber(fleet, paths), Options(), size=2, elsewhere=True)
    )
    assert [result.record.code for result in results if result.error] == ["crashed_workers"]
    marks = {result.record.fingerprint for result in results if not result.error}
    assert marks == {f"sha256:{'c' * 64}+{'s' * 16}"}
    assert len((tmp_path / "out" / "manifest.jsonl").read_text().splitlines()) == 5
