"""The keeper: who is dead, what is lost, and whose clock does not count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from forescribe.api.jobs.completion import JobMetrics
from forescribe.api.jobs.recovery import (
    CHECK_S,
    DEAD_AFTER_S,
    MAX_DEATHS,
    MAX_RESTARTS,
    STUCK_AFTER_S,
    Recovery,
)
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.suspects import CrashTracker
from forescribe.api.jobs.tables import JOBS, TURNS, NewJob
from forescribe.api.jobs.workflows import Pending
from forescribe.api.metrics import Metrics


class Engine:
    """Says what it is told to say, and keeps what was asked of it."""

    executor = "me"

    def __init__(self) -> None:
        self.rows: list[Pending] = []
        self.mine: frozenset[str] = frozenset()
        self.gone: frozenset[str] = frozenset()
        self.resumed: list[str] = []
        self.cancelled: list[str] = []
        self.checks = 0

    def pending(self):
        return self.rows

    def running(self):
        return self.mine

    def broken(self, tx, ids):
        self.checks += 1
        return [id for id in tx.execute(ids).scalars() if id in self.gone]

    def resume(self, id, executor):
        self.resumed.append(id)

    def cancel(self, id):
        self.cancelled.append(id)

    def adopt(self):
        return 0


@pytest.fixture
def made(tmp_path):
    store, engine, now = Store.open(tmp_path), Engine(), [0.0]
    failed, left = [], []

    def restart(job: str, run: int) -> None:
        with store.transaction() as tx:
            assert store.jobs.current(tx, job, run) is not None
            store.jobs.restart(tx, job)

    active = SimpleNamespace(
        abandon=left.append,
        serving=SimpleNamespace(state="ready"),
        crashes=CrashTracker(store, "me"),
    )
    completion = SimpleNamespace(
        fail=lambda job, run, error: failed.append((job, run, error.code)),
        restart=restart,
    )
    metrics = JobMetrics(Metrics())

    def recovery(**given) -> Recovery:
        return Recovery(store, engine, active, completion, metrics, clock=lambda: now[0], **given)

    with store.transaction() as tx:
        store.jobs.insert(tx, NewJob("job", "", None, 60.0, {}, {}))
    yield SimpleNamespace(
        store=store,
        engine=engine,
        now=now,
        failed=failed,
        left=left,
        recovery=recovery,
        active=active,
    )
    store.close()


def test_alone_what_is_not_ours_is_nobodys(made) -> None:
    made.engine.rows = [Pending("job:1", "before"), Pending("job:1:webhook:0", "before")]
    made.recovery(exclusive=True).tick()
    assert made.engine.resumed == ["job:1", "job:1:webhook:0"]
    assert (
        made.store.jobs.get("job").crashes == made.store.crashes.deaths("job") == 0
    )  # it was not inside


def test_work_that_its_living_process_does_not_know_is_queued_again(made) -> None:
    recovery = made.recovery(exclusive=True)
    made.engine.rows = [Pending("job:1", "me")]
    for now in (0, STUCK_AFTER_S - 1):
        made.now[0] = now
        recovery.tick()
        assert made.engine.resumed == []
    made.now[0] = STUCK_AFTER_S
    recovery.tick()
    assert made.engine.resumed == ["job:1"]


def test_a_process_is_dead_when_it_does_not_beat_by_our_own_clock(made) -> None:
    """Its own clock is never read, so a jump by an hour reaps no process."""
    made.store.heartbeats.beat("other", ["job:1"])
    made.engine.rows = [Pending("job:1", "other")]
    recovery = made.recovery(exclusive=False)
    for now in range(int(3 * DEAD_AFTER_S)):  # heartbeats continue: no process is reaped
        made.now[0] = now
        made.store.heartbeats.beat("other", ["job:1"])
        recovery.tick()
    assert made.engine.resumed == []
    for now in range(int(3 * DEAD_AFTER_S), int(4 * DEAD_AFTER_S) - 1):
        made.now[0] = now
        recovery.tick()
        assert made.engine.resumed == []
    made.now[0] = 4 * DEAD_AFTER_S
    recovery.tick()
    assert made.engine.resumed == ["job:1"] and "other" not in made.store.heartbeats.all()


def test_a_keeper_that_slept_looks_again_before_it_judges(made) -> None:
    made.store.heartbeats.beat("other", ["job:1"])
    made.engine.rows = [Pending("job:1", "other")]
    recovery = made.recovery(exclusive=False)
    recovery.tick()
    made.now[0] = 3600.0  # we were suspended, not the other
    recovery.tick()
    assert made.engine.resumed == []
    made.store.heartbeats.beat("other", ["job:1"])
    made.now[0] = 3600.0 + DEAD_AFTER_S / 2
    recovery.tick()
    assert made.engine.resumed == []


def test_a_job_that_takes_processes_down_is_ended(made) -> None:
    made.engine.rows = [Pending("job:1", "before")]
    recovery = made.recovery(exclusive=True)
    for n in range(MAX_DEATHS - 1):
        made.store.crashes.expose(f"process {n}", "job")
        recovery.tick()
    assert made.failed == [] and len(made.engine.resumed) == MAX_DEATHS - 1
    made.store.crashes.expose("the last", "job")
    recovery.tick()
    assert made.failed == [("job", 1, "internal_error")] and made.engine.cancelled == ["job:1"]


def test_a_job_that_got_on_is_forgiven(made) -> None:
    made.engine.rows = [Pending("job:1", "before")]
    recovery = made.recovery(exclusive=True)
    for n in range(3 * MAX_DEATHS):
        made.store.crashes.expose(f"process {n}", "job")
        recovery.tick()
        with made.store.transaction() as tx:
            made.store.jobs.set_progress(tx, "job", 1.0)
    assert made.failed == []


def test_processes_that_die_without_the_job_inside_are_not_its_fault(made) -> None:
    """While the model is loaded, its audio decoded, its result written: however often."""
    made.engine.rows = [Pending("job:1", "before")]
    recovery = made.recovery(exclusive=True)
    for _ in range(2 * MAX_DEATHS):
        recovery.tick()
    assert made.failed == [] and made.store.crashes.deaths("job") == 0


def test_whose_process_lives_is_not_charged(made) -> None:
    made.store.heartbeats.beat("other", ["job:1"])
    made.store.crashes.expose("other", "job")
    made.engine.rows = [Pending("job:1", "other")]
    recovery = made.recovery(exclusive=False)
    for now in range(int(2 * DEAD_AFTER_S)):
        made.now[0] = now
        made.store.heartbeats.beat("other", ["job:1"])
        recovery.tick()
    assert made.store.crashes.deaths("job") == 0
    for now in range(int(2 * DEAD_AFTER_S), int(4 * DEAD_AFTER_S)):
        made.now[0] = now
        recovery.tick()
    assert made.store.crashes.deaths("job") == 1


def test_a_job_whose_work_has_ended_without_it_begins_anew_a_few_times(made) -> None:
    recovery = made.recovery(exclusive=True)

    def tick() -> None:
        made.now[0] += CHECK_S
        recovery.tick()

    for run in range(1, MAX_RESTARTS):
        made.engine.gone = frozenset({f"job:{run}"})
        tick()
        assert made.failed == [] and made.store.jobs.get("job").run == run + 1
        tick()  # the new run is at work
        assert made.store.jobs.get("job").run == run + 1
    made.engine.gone = frozenset({f"job:{MAX_RESTARTS}"})
    tick()
    assert made.failed == [("job", MAX_RESTARTS, "internal_error")]


def test_a_job_that_somebody_else_cancelled_is_left(made) -> None:
    recovery = made.recovery(exclusive=False)
    made.engine.mine = frozenset({"job:1"})
    recovery.tick()
    assert made.left == []
    with made.store.transaction() as tx:
        made.store.jobs.end(tx, "job", "cancelled")
    recovery.tick()
    assert made.left == ["job"]


def test_a_process_whose_engine_is_broken_does_not_beat(made) -> None:
    """So that others have its work, and it does not count its own jobs as crashed until they fail."""
    made.active.serving.state = "broken"
    made.engine.rows = [Pending("job:1", "before")]
    made.recovery(exclusive=False).tick()
    assert made.store.heartbeats.all() == {} and made.engine.resumed == []
    assert made.store.jobs.get("job").crashes == 0


def test_all_unfinished_work_is_checked_once_a_minute_by_one_process(made) -> None:
    """With 50,000 jobs in line, every process would load them all, every second."""
    first, second = made.recovery(exclusive=False), made.recovery(exclusive=False)
    statements: list[str] = []

    @sa.event.listens_for(made.store.database.engine, "before_cursor_execute")
    def heard(connection, cursor, statement, *_) -> None:
        statements.append(statement)

    for now in range(30):
        made.now[0] = now
        first.tick()
        second.tick()
    assert made.engine.checks == 1
    assert sum(JOBS.name in statement for statement in statements) == 1
    with made.store.transaction() as tx:  # a minute by the database's clock
        tx.execute(sa.update(TURNS).values(at=TURNS.c.at - CHECK_S))
    for now in range(30, 60):
        made.now[0] = now
        first.tick()
        second.tick()
    assert made.engine.checks == 2


def test_work_of_an_earlier_version_is_adopted_at_once_when_its_process_is_gone(made) -> None:
    adopted: list[float] = []
    made.engine.adopt = lambda: adopted.append(made.now[0])
    recovery = made.recovery(exclusive=True)
    recovery.tick()
    for made.now[0] in (1.0, 2.0):
        recovery.tick()
    made.engine.rows = [Pending("job:1", "before")]
    made.now[0] = 3.0
    recovery.tick()
    made.engine.rows = []
    made.now[0] = CHECK_S
    recovery.tick()
    assert adopted == [0.0, 3.0, CHECK_S]
