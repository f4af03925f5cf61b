"""ClusterTranscriber in place of the local transcriber, on a fleet without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from forescribe.asr.batch.batch import Batch
from forescribe.asr.batch.outputs import Outputs
from forescribe.asr.decode.options import Options, Outcome, Progress
from forescribe.asr.errors import CapacityError, ForescribeError, ModelError, UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Span
from forescribe.asr.records.sources import Source
from forescribe.cluster.cluster_transcriber import GIVE_UP_S, NOTICE_S, ClusterTranscriber
from forescribe.cluster.order import WorkOrder
from forescribe.cluster.ray_fleet import Event, Lost, Refused, Reported, Started
from forescribe.cluster.worker import Report
from forescribe.speculative.stats import Stats

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
            event = Started(worker)
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
            (Outcome(path, text, wall_s=0.5, content="c" * 64),),
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


class Cluster(FakeFleet):
    """A fleet of machines, each with room for `each` workers. A worker takes the first machine with room;
    `bad` machines answer its start with their event."""

    def __init__(self, machines: int, bad: dict[str, Event], *, each: int = 1) -> None:
        super().__init__(workers=machines * each)
        self.bad, self.each = bad, each
        self.free = [f"m{number}" for number in range(machines) for _ in range(each)]
        self.at: dict[int, str] = {}
        self.excluded: list[str] = []

    def start(self) -> int | None:
        here = next((name for name in self.free if name not in self.excluded), None)
        if here is None:
            return None
        self.free.remove(here)
        worker = super().start()
        self.at[worker] = here
        event = self.bad.get(here, self.events.pop())
        self.events = [each for each in self.events if each.worker != worker]
        self.events.append(replace(event, worker=worker, machine=here))
        if isinstance(event, Lost):
            self.free.insert(0, self.at.pop(worker))  # Ray has room there, and would use it
        return worker

    def stop(self, worker: int) -> None:
        super().stop(worker)
        if worker in self.at:
            self.free.append(self.at.pop(worker))

    def exclude(self, machine: str) -> None:
        self.excluded.append(machine)


DYING = Lost(0, "CUDA driver mismatch")
WITHOUT_MOUNT = Refused(0, UsageError("m7 does not see /mnt/calls/a.wav"))


def test_machines_whose_workers_die_at_the_start_are_excluded_and_the_run_goes_on() -> None:
    """They fail before any other machine has loaded its model."""
    fleet, paths, said = Cluster(20, {f"m{n}": DYING for n in range(3)}), names(60), []
    outcomes = list(transcriber(fleet, paths, notice=said.append).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert all(outcome.error is None for outcome in outcomes)
    assert sorted(fleet.excluded) == ["m0", "m1", "m2"]
    for machine in fleet.excluded:
        (line,) = [text for text in said if f"no more workers on {machine}" in text]
        assert "CUDA driver mismatch" in line


@pytest.mark.parametrize("late", ["m0", "m7", "m19"])
def test_a_machine_that_refuses_is_excluded_and_its_worker_ended(late: str) -> None:
    fleet, paths, said = Cluster(20, {late: WITHOUT_MOUNT}), names(60), []
    outcomes = list(transcriber(fleet, paths, notice=said.append).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert fleet.excluded == [late]
    assert len(fleet.stopped) == 1  # it would hold its GPU
    assert len(said) == 1 and late in said[0] and "does not see" in said[0]


def test_a_machine_that_fails_at_work_gives_its_recordings_to_others() -> None:
    """What is no fault of a recording or of the request, such as a full disk."""
    fleet, paths = Cluster(4, {}), names(20)
    fleet.script = {6: Reported(0, Report(error=ForescribeError("No space left on device")))}
    outcomes = list(transcriber(fleet, paths).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths
    assert all(outcome.error is None for outcome in outcomes)
    assert len(fleet.excluded) == 1


def test_a_machine_with_workers_that_work_does_not_count_as_failed() -> None:
    """One of two GPUs of every machine is broken: half of the workers are enough."""
    fleet, paths = Cluster(4, {}, each=2), names(30)
    start = fleet.start

    def start_or_die() -> int | None:
        worker = start()
        if worker is not None and worker % 2:
            event = replace(DYING, worker=worker, machine=fleet.at[worker])
            fleet.events = [event if each.worker == worker else each for each in fleet.events]
        return worker

    fleet.start = start_or_die  # type: ignore[method-assign]
    outcomes = list(transcriber(fleet, paths).transcribe(paths))
    assert sorted(outcome.name for outcome in outcomes) == paths


def test_the_run_ends_where_most_machines_fail() -> None:
    fleet, paths = Cluster(20, {f"m{n}": WITHOUT_MOUNT for n in range(11)}), names(60)
    with pytest.raises(UsageError, match="does not see"):
        list(transcriber(fleet, paths).transcribe(paths))
    assert fleet.closed


@pytest.mark.parametrize("machines", [1, 2, 3, 20])
def test_the_run_ends_where_no_machine_can_start_a_worker(machines: int) -> None:
    fleet = Cluster(machines, {f"m{n}": DYING for n in range(machines)})
    with pytest.raises(CapacityError, match="CUDA driver mismatch"):
        list(transcriber(fleet, names(60)).transcribe(names(60)))


def test_a_machine_that_joins_later_gets_a_worker() -> None:
    """An autoscaler replaces the machine that was excluded."""
    fleet, paths, now = Cluster(2, {"m1": WITHOUT_MOUNT}), names(30), [0.0]

    def clock() -> float:
        now[0] += 1.0
        if now[0] == 10:
            fleet.free.append("m2")
        return now[0]

    list(transcriber(fleet, paths, clock=clock).transcribe(paths))
    assert fleet.started == 3


def test_workers_that_die_while_they_load_end_the_run() -> None:
    fleet = Cluster(1, {"m0": Lost(0, "killed for memory")})
    with pytest.raises(CapacityError, match="while they loaded the model: killed for memory"):
        list(transcriber(fleet, ["a.wav"]).transcribe(["a.wav"]))
    assert fleet.started == 3


def test_workers_of_unknown_machines_that_die_while_they_load_end_the_run() -> None:
    fleet = Cluster(1, {"m0": Lost(0, "killed for memory")})
    wait = fleet.wait
    fleet.wait = lambda seconds: [replace(each, machine="") for each in wait(seconds)]  # type: ignore[method-assign]
    with pytest.raises(CapacityError, match="killed for memory"):
        list(transcriber(fleet, ["a.wav"]).transcribe(["a.wav"]))
    assert fleet.started == 4


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
