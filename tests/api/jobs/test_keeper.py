"""The keeper: who is dead, what is lost, and whose clock does not count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from forescribe.api.jobs.engines.workflow_engine import Pending
from forescribe.api.jobs.in_progress import Inside
from forescribe.api.jobs.job_metrics import JobMetrics
from forescribe.api.jobs.keeper import MOST_CRASHES, MOST_DEATHS, PATIENCE_S, STUCK_S, Keeper
from forescribe.api.jobs.records import New
from forescribe.api.jobs.store import Store


class Engine:
    """Says what it is told to say, and keeps what was asked of it."""

    executor = "me"

    def __init__(self) -> None:
        self.rows: list[Pending] = []
        self.mine: frozenset[str] = frozenset()
        self.gone: frozenset[str] = frozenset()
        self.resumed: list[str] = []
        self.cancelled: list[str] = []

    def pending(self):
        return self.rows

    def running(self):
        return self.mine

    def broken(self, ids):
        return self.gone & set(ids)

    def resume(self, id):
        self.resumed.append(id)

    def cancel(self, id):
        self.cancelled.append(id)

    def adopt(self):
        return 0


@pytest.fixture
def made(tmp_path):
    store, engine, now = Store.at(tmp_path), Engine(), [0.0]
    failed, left = [], []

    def restart(job: str, run: int) -> None:
        with store.writing() as tx:
            assert store.mine(tx, job, run) is not None
            store.restart(tx, job)

    steps = SimpleNamespace(
        fail=lambda job, run, error: failed.append((job, run, error.code)),
        leave=left.append,
        restart=restart,
        serving=SimpleNamespace(state="ready"),
        inside=Inside(store, "me"),
    )
    metrics = JobMetrics(CollectorRegistry())

    def keeper(**given) -> Keeper:
        return Keeper(store, engine, steps, metrics, clock=lambda: now[0], **given)

    with store.writing() as tx:
        store.insert(tx, New("job", "", None, 60.0, {}, {}))
    yield SimpleNamespace(
        store=store, engine=engine, now=now, failed=failed, left=left, keeper=keeper, steps=steps
    )
    store.close()


def test_alone_what_is_not_ours_is_nobodys(made) -> None:
    made.engine.rows = [Pending("job:1", "before"), Pending("job:1:webhook:0", "before")]
    made.keeper(alone=True).tick()
    assert made.engine.resumed == ["job:1", "job:1:webhook:0"]
    assert made.store.job("job").crashes == made.store.deaths("job") == 0  # it was not inside


def test_work_that_its_living_process_does_not_know_is_queued_again(made) -> None:
    keeper = made.keeper(alone=True)
    made.engine.rows = [Pending("job:1", "me")]
    for now in (0, STUCK_S - 1):
        made.now[0] = now
        keeper.tick()
        assert made.engine.resumed == []
    made.now[0] = STUCK_S
    keeper.tick()
    assert made.engine.resumed == ["job:1"]


def test_a_process_is_dead_when_it_does_not_beat_by_our_own_clock(made) -> None:
    """Its own clock is never read, so one that jumps by an hour reaps nobody."""
    made.store.beat("other", ["job:1"])
    made.engine.rows = [Pending("job:1", "other")]
    keeper = made.keeper(alone=False)
    for now in range(int(3 * PATIENCE_S)):  # it beats: nobody is reaped
        made.now[0] = now
        made.store.beat("other", ["job:1"])
        keeper.tick()
    assert made.engine.resumed == []
    for now in range(int(3 * PATIENCE_S), int(4 * PATIENCE_S) - 1):
        made.now[0] = now
        keeper.tick()
        assert made.engine.resumed == []
    made.now[0] = 4 * PATIENCE_S
    keeper.tick()
    assert made.engine.resumed == ["job:1"] and "other" not in made.store.workers()


def test_a_keeper_that_slept_looks_again_before_it_judges(made) -> None:
    made.store.beat("other", ["job:1"])
    made.engine.rows = [Pending("job:1", "other")]
    keeper = made.keeper(alone=False)
    keeper.tick()
    made.now[0] = 3600.0  # we were suspended, not the other
    keeper.tick()
    assert made.engine.resumed == []
    made.store.beat("other", ["job:1"])
    made.now[0] = 3600.0 + PATIENCE_S / 2
    keeper.tick()
    assert made.engine.resumed == []


@pytest.mark.parametrize(("alone", "most"), [(True, MOST_CRASHES), (False, MOST_DEATHS)])
def test_a_job_that_takes_processes_down_is_ended(made, alone, most) -> None:
    made.engine.rows = [Pending("job:1", "before")]
    keeper = made.keeper(alone=True)
    for n in range(most - 1):
        made.store.expose(f"process {n}", "job", alone=alone)
        keeper.tick()
    assert made.failed == [] and len(made.engine.resumed) == most - 1
    made.store.expose("the last", "job", alone=alone)
    keeper.tick()
    assert made.failed == [("job", 1, "internal_error")] and made.engine.cancelled == ["job:1"]


def test_a_job_that_got_on_is_forgiven(made) -> None:
    made.engine.rows = [Pending("job:1", "before")]
    keeper = made.keeper(alone=True)
    for n in range(3 * MOST_CRASHES):
        made.store.expose(f"process {n}", "job", alone=True)
        keeper.tick()
        with made.store.writing() as tx:
            made.store.progress(tx, "job", 1.0)
    assert made.failed == []


def test_processes_that_die_without_the_job_inside_are_not_its_fault(made) -> None:
    """While the model is loaded, its audio decoded, its result written: however often."""
    made.engine.rows = [Pending("job:1", "before")]
    keeper = made.keeper(alone=True)
    for _ in range(2 * MOST_DEATHS):
        keeper.tick()
    assert made.failed == [] and made.store.deaths("job") == 0


def test_whose_process_lives_is_not_charged(made) -> None:
    made.store.beat("other", ["job:1"])
    made.store.expose("other", "job", alone=True)
    made.engine.rows = [Pending("job:1", "other")]
    keeper = made.keeper(alone=False)
    for now in range(int(2 * PATIENCE_S)):
        made.now[0] = now
        made.store.beat("other", ["job:1"])
        keeper.tick()
    assert made.store.deaths("job") == 0
    for now in range(int(2 * PATIENCE_S), int(4 * PATIENCE_S)):
        made.now[0] = now
        keeper.tick()
    assert (made.store.deaths("job"), made.store.job("job").crashes) == (1, 1)


def test_a_job_whose_work_has_ended_without_it_begins_anew_a_few_times(made) -> None:
    keeper = made.keeper(alone=True)
    for run in range(1, MOST_CRASHES):
        made.engine.gone = frozenset({f"job:{run}"})
        keeper.tick()
        assert made.failed == [] and made.store.job("job").run == run + 1
        keeper.tick()  # the new run is at work
        assert made.store.job("job").run == run + 1
    made.engine.gone = frozenset({f"job:{MOST_CRASHES}"})
    keeper.tick()
    assert made.failed == [("job", MOST_CRASHES, "internal_error")]


def test_a_job_that_somebody_else_cancelled_is_left(made) -> None:
    keeper = made.keeper(alone=False)
    made.engine.mine = frozenset({"job:1"})
    keeper.tick()
    assert made.left == []
    with made.store.writing() as tx:
        made.store.end(tx, "job", "cancelled")
    keeper.tick()
    assert made.left == ["job"]


def test_a_process_whose_engine_is_broken_does_not_beat(made) -> None:
    """So that others have its work, and it does not count its own jobs as crashed until they fail."""
    made.steps.serving.state = "broken"
    made.engine.rows = [Pending("job:1", "before")]
    made.keeper(alone=False).tick()
    assert made.store.workers() == {} and made.engine.resumed == []
    assert made.store.job("job").crashes == 0
