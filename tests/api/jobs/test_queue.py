"""The queue: leases on SQLite and PostgreSQL, whose death a job is charged with, and who does what next."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from forescribe.api.jobs.callbacks import JobMetrics
from forescribe.api.jobs.running import Outages, RunReplaced, Stopping
from forescribe.api.jobs.store import LEASE_S, MAX_CRASHES, Store
from forescribe.api.jobs.tables import JOBS, Callback, Claim, NewJob
from forescribe.api.jobs.worker import Worker
from forescribe.api.settings import Settings
from forescribe.api.telemetry import Metrics
from tests.api.conftest import until
from tests.api.jobs.application import database_of

HOOK = Callback("https://example.com/", "whsec_x")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    store = Store.open(tmp_path, database_of(request.param))
    yield store
    store.close()


def insert(store: Store, *ids: str, **given) -> None:
    for id in ids:
        with store.transaction() as tx:
            store.jobs.insert(tx, NewJob(id, "team", None, 60.0, {}, {}, **given))


def lapse(store: Store) -> None:
    """All leases are over, those of callbacks too: by the database's clock."""
    past = {"claimed_until": JOBS.c.claimed_until - 1e6, "hook_at": JOBS.c.hook_at - 1e6}
    with store.transaction() as tx:
        tx.execute(sa.update(JOBS).values(**past))


def died(store: Store, id: str = "a") -> None:
    """A process that has the job dies over its work."""
    assert claimed(store) == id
    with store.transaction() as tx:
        store.jobs.enter(tx, id)
    lapse(store)


def claimed(store: Store, worker: str = "one", **given) -> str | None:
    found = store.jobs.claim(worker, **{"beside": (), **given})
    return None if found is None else found[0].id


def test_a_job_has_one_process_until_its_lease_is_over(store) -> None:
    insert(store, "a", "b")
    assert [claimed(store, name) for name in ("one", "two", "three")] == ["a", "b", None]
    assert store.jobs.renew("one") == {("a", 1)} and store.jobs.renew("three") == set()
    lapse(store)
    assert store.jobs.renew("two") == {("b", 1)}  # nobody was faster
    assert claimed(store, "three", take_over=False) is None
    assert claimed(store, "one", beside=["a"]) is None  # it is at work on it
    assert claimed(store, "three") == "a" and claimed(store, "three") is None
    with store.transaction() as tx:
        assert store.jobs.held(tx, Claim("a", 1, "one")) is None
        assert store.jobs.held(tx, Claim("a", 1, "three")) is not None
    assert store.jobs.renew("one") == set()


def test_two_processes_never_have_the_same_job(store) -> None:
    ids = [f"job{n}" for n in range(20)]
    insert(store, *ids)
    got: list[str] = []

    def work(name: str) -> None:
        while (id := claimed(store, name)) is not None:
            got.append(id)

    threads = [threading.Thread(target=work, args=(f"worker {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == sorted(ids)


def test_a_job_fails_after_three_deaths_without_progress(store) -> None:
    insert(store, "a", callback=HOOK)
    for _ in range(MAX_CRASHES - 1):
        died(store)
    assert claimed(store) == "a"
    with store.transaction() as tx:
        store.jobs.set_progress(tx, "a", 30.0)  # it goes on: all is forgiven
    lapse(store)
    for _ in range(MAX_CRASHES):
        died(store)
    job, _ = store.jobs.claim("one", beside=())
    assert (job.state, job.error[0]) == ("failed", "crashed") and "3 processes" in job.error[1]
    assert claimed(store) is None
    due = store.jobs.claim_callback(10.0)
    assert due is not None and due.id == "a"


def test_a_diarization_that_crashes_keeps_the_transcript(store) -> None:
    insert(store, "a")
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "succeeded")
        store.jobs.new_run(tx, "a", "diarize")
    for _ in range(MAX_CRASHES):
        died(store)
    job, _ = store.jobs.claim("one", beside=())
    assert (job.state, job.error[0]) == ("succeeded", "crashed")


def test_a_job_is_not_charged_for_what_it_did_not_cause(store) -> None:
    """Given back, or its process died before it did anything with the job."""
    insert(store, "a")
    for _ in range(2 * MAX_CRASHES):
        assert claimed(store) == "a"
        with store.transaction() as tx:
            store.jobs.enter(tx, "a")
        store.jobs.release(Claim("a", 1, "one"), entered=True)
        assert claimed(store) == "a"
        lapse(store)
    assert store.jobs.get("a").crashes == 0
    store.jobs.release(Claim("a", 1, "another"))  # who has it no more changes nothing
    assert claimed(store) == "a" and claimed(store) is None


def test_a_job_that_was_in_two_dead_processes_is_done_while_its_process_does_no_other(
    store,
) -> None:
    insert(store, "a", "b")
    died(store)
    died(store)
    assert claimed(store, beside=("b",)) is None
    assert claimed(store) == "a" and store.jobs.get("a").crashes == 2


def test_a_cancelled_job_is_nobodys_and_nothing_is_written_to_it(store) -> None:
    insert(store, "a")
    assert claimed(store) == "a"
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "cancelled")
        assert store.jobs.held(tx, Claim("a", 1, "one")) is None
        store.jobs.new_run(tx, "a", "transcribe")
    assert store.jobs.renew("one") == set() and claimed(store, "two") == "a"
    with store.transaction() as tx:
        assert store.jobs.held(tx, Claim("a", 1, "one")) is None


def test_a_callback_is_one_process_at_a_time_until_it_is_confirmed(store) -> None:
    insert(store, "a", callback=HOOK)
    assert store.jobs.claim_callback(10.0) is None  # it has not ended
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "cancelled")
    job = store.jobs.claim_callback(10.0)
    assert job is not None and store.jobs.claim_callback(10.0) is None
    lapse(store)  # its process died
    again = store.jobs.claim_callback(10.0)
    assert again is not None
    store.jobs.set_callback(again, "pending", wait_s=300.0)
    assert store.jobs.claim_callback(10.0) is None
    lapse(store)
    third = store.jobs.claim_callback(10.0)
    assert third is not None and third.callback.tries == 1
    with store.transaction() as tx:
        store.jobs.new_run(tx, "a", "transcribe")
    store.jobs.set_callback(third, "failed")  # of a run that was replaced
    assert store.jobs.get("a").callback.state == "pending"


class Bench:
    """A worker with a walk that waits, whose time stands still."""

    def __init__(self, store: Store, tmp_path, concurrency: int = 2) -> None:
        self.store, self.now, self.go = store, 0.0, threading.Event()
        self.seen: dict[str, BaseException | None] = {}
        self.serving = SimpleNamespace(life=SimpleNamespace(state="ready"))
        metrics = JobMetrics(Metrics())
        settings = Settings(model="random", data_dir=tmp_path, min_free_bytes=0)
        outages = Outages(settings, store, threading.Event())
        self.worker = Worker(
            store,
            self.serving,
            self.walk,
            SimpleNamespace(timeout_s=1.0),
            outages,
            metrics,
            concurrency=concurrency,
            clock=lambda: self.now,
        )

    def walk(self, run) -> None:
        try:
            while not self.go.is_set():
                run.check()
                self.go.wait(0.01)
            self.seen[run.id] = None
        except BaseException as error:
            self.seen[run.id] = error
            raise

    def tick(self, *times: float) -> frozenset[str]:
        for self.now in times:
            self.worker.tick()
        return self.worker.running()


@pytest.fixture
def bench(store, tmp_path):
    bench = Bench(store, tmp_path)
    yield bench
    bench.go.set()
    bench.worker.stop()


def test_a_worker_takes_as_many_as_it_may_and_renews_their_leases(bench, store) -> None:
    insert(store, "a", "b", "c")
    assert bench.tick(0.0) == {"a", "b"}
    lapse(store)
    bench.tick(3.0)
    assert claimed(store, "other") == "c" and claimed(store, "other") is None


def test_a_worker_abandons_what_another_one_has(bench, store) -> None:
    insert(store, "a")
    bench.tick(0.0)
    lapse(store)
    assert claimed(store, "other") == "a"
    bench.tick(3.0)
    until(lambda: not bench.worker.running())
    assert isinstance(bench.seen["a"], RunReplaced)
    assert store.jobs.renew("other") == {("a", 1)}


def test_a_worker_that_was_away_looks_before_it_takes_over(bench, store) -> None:
    """It was suspended, or without its database, as others may have been: they renew first."""
    insert(store, "a")
    assert claimed(store, "other") == "a"
    lapse(store)
    times = [float(second) for second in range(int(LEASE_S))]
    assert bench.tick(*times) == frozenset() and bench.tick(LEASE_S) == {"a"}
    insert(store, "b")
    assert claimed(store, "other") == "b"
    lapse(store)
    assert bench.tick(3600.0) == {"a"}  # suspended for an hour
    assert bench.tick(*(3600.0 + time for time in [*times, LEASE_S])) == {"a", "b"}


def test_a_worker_without_a_model_takes_nothing_and_with_a_broken_one_renews_nothing(
    bench, store
) -> None:
    insert(store, "a", "b")
    bench.serving.life.state = "loading"
    assert bench.tick(0.0) == frozenset()
    bench.serving.life.state = "ready"
    bench.worker.concurrency = 1
    assert bench.tick(1.0) == {"a"}
    bench.serving.life.state = "broken"
    lapse(store)
    bench.tick(5.0)
    assert claimed(store, "other") == "a"


def test_a_worker_that_is_told_to_leave_gives_its_jobs_back(bench, store) -> None:
    insert(store, "a")
    bench.tick(0.0)
    bench.worker.stop()
    assert isinstance(bench.seen["a"], Stopping)
    assert claimed(store, "next") == "a" and store.jobs.get("a").crashes == 0


def test_a_job_that_may_kill_its_process_is_alone_in_it(bench, store) -> None:
    insert(store, "a", "b")
    with store.transaction() as tx:
        tx.execute(sa.update(JOBS).where(JOBS.c.id == "a").values(crashes=2))
    assert bench.tick(0.0) == {"a"} and bench.tick(1.0) == {"a"}
    bench.go.set()
    until(lambda: not bench.worker.running())
    bench.go.clear()
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "succeeded")
    assert bench.tick(2.0) == {"b"}
