"""The queue: leases on SQLite and PostgreSQL, whose deaths count against a job, and who does what next."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from forescribe.api.access.limits import Admission, Client
from forescribe.api.errors import ApiError
from forescribe.api.jobs.callbacks import JobMetrics
from forescribe.api.jobs.database import database_time
from forescribe.api.jobs.store import ALONE_AFTER_S, BESIDE, LEASE_S, Store
from forescribe.api.jobs.tables import JOBS, Claim, Job
from forescribe.api.jobs.walk import RunReplaced, Stopping
from forescribe.api.jobs.worker import ASK_EVERY_S, ASK_S, Worker
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from forescribe.api.telemetry import Metrics
from tests.api.conftest import until
from tests.api.jobs.application import database_of

HOOK = {"hook_url": "https://example.com/", "hook_state": "pending"}


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    store = Store.open(tmp_path, database_of(request.param))
    yield store
    store.close()


def insert(store: Store, *ids: str, **given) -> None:
    for id in ids:
        with store.transaction() as tx:
            store.jobs.insert(tx, Job(id=id, owner="team", total_s=60.0, **given))


def lapse(store: Store) -> None:
    """All leases are over, those of callbacks too: by the database's clock."""
    past = {"claimed_until": JOBS.c.claimed_until - 1e6, "hook_at": JOBS.c.hook_at - 1e6}
    with store.transaction() as tx:
        tx.execute(sa.update(JOBS).values(**past))


def died(store: Store, risk: str = "beside", id: str = "a") -> None:
    """A process that has the job dies over its work."""
    assert claimed(store) == id
    with store.transaction() as tx:
        store.jobs.update(tx, id, risk=risk)
    lapse(store)


def deaths(store: Store, id: str = "a") -> tuple[int, int]:
    job = store.jobs.get(id)
    assert job is not None
    return job.deaths_beside, job.deaths_alone


def claimed(store: Store, worker: str = "one", **given) -> str | None:
    found = store.jobs.claim(worker, **{"beside": (), **given})
    return found if found is None or found == "lonely" else found[0].id


def test_a_job_has_one_process_until_its_lease_is_over(store) -> None:
    insert(store, "a", "b")
    assert [claimed(store, name) for name in ("one", "two", "three")] == ["a", "b", None]
    assert store.jobs.renew(Claim("a", 1, "one")) and not store.jobs.renew(Claim("a", 1, "three"))
    lapse(store)
    assert store.jobs.renew(Claim("b", 1, "two"))  # nobody was faster
    assert claimed(store, "three", calm_s=LEASE_S - 1) is None
    assert claimed(store, "one", beside=["a"]) is None  # it is at work on it
    assert claimed(store, "three") == "a" and claimed(store, "three") is None
    with store.transaction() as tx:
        assert store.jobs.held(tx, Claim("a", 1, "one")) is None
        assert store.jobs.held(tx, Claim("a", 1, "three")) is not None
    assert not store.jobs.renew(Claim("a", 1, "one"))


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


def test_a_job_fails_at_the_second_death_of_a_process_that_did_nothing_else(store) -> None:
    insert(store, "a", **HOOK)
    died(store)
    died(store)
    died(store, "alone")
    assert claimed(store) == "a" and deaths(store) == (2, 1)
    with store.transaction() as tx:
        store.jobs.forget_deaths(tx, "a")  # it goes on
        store.jobs.update(tx, "a", risk="beside")
    lapse(store)
    for risk in ("beside", "alone", "alone"):
        died(store, risk)
    job, _ = store.jobs.claim("one", beside=())
    assert (job.state, job.error_code) == ("failed", "crashed")
    assert "4 processes" in job.error_message
    assert claimed(store) is None
    due = store.jobs.claim_callback(10.0)
    assert due is not None and due.id == "a"


def test_deaths_beside_other_work_never_fail_a_job(store) -> None:
    insert(store, "a")
    for _ in range(30):
        died(store)
    assert claimed(store) == "a" and store.jobs.get("a").state == "running"


def test_a_diarization_that_crashes_keeps_the_transcript(store) -> None:
    insert(store, "a")
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "succeeded")
        store.jobs.new_run(tx, store.jobs.locked(tx, "a"), "diarize", {})
    for risk in ("beside", "beside", "alone", "alone"):
        died(store, risk)
    job, _ = store.jobs.claim("one", beside=())
    assert (job.state, job.error_code) == ("succeeded", "crashed")


def test_no_death_is_counted_that_a_job_did_not_cause(store) -> None:
    """Given back, or its process died before it did anything with the job; also after an earlier death was
    forgotten, which once left -1."""
    insert(store, "a")
    died(store)
    assert claimed(store) == "a" and deaths(store) == (1, 0)
    with store.transaction() as tx:
        store.jobs.forget_deaths(tx, "a")
    for _ in range(4):
        with store.transaction() as tx:
            store.jobs.update(tx, "a", risk="beside")
        store.jobs.release(Claim("a", 1, "one"))
        assert claimed(store) == "a" and deaths(store) == (0, 0)
        lapse(store)
        assert claimed(store) == "a" and deaths(store) == (0, 0)
    store.jobs.release(Claim("a", 1, "another"))  # who has it no more changes nothing
    assert claimed(store) is None


def test_a_job_of_two_dead_processes_is_done_by_one_that_is_well_and_does_nothing_else(
    store,
) -> None:
    """While machines go away every few seconds it waits, and the jobs behind it are done."""
    insert(store, "a", "b")
    died(store)
    died(store)
    first, second = ALONE_AFTER_S
    assert claimed(store, calm_s=first - 1) == "b"
    store.jobs.release(Claim("b", 1, "one"))
    assert claimed(store, calm_s=first, alone=False) == "lonely"
    assert claimed(store, calm_s=first) == "a" and deaths(store) == (BESIDE, 0)
    with store.transaction() as tx:
        store.jobs.update(tx, "a", risk="alone")
    lapse(store)
    assert claimed(store, calm_s=second - 1) == "b"
    assert claimed(store, calm_s=second) == "a" and deaths(store) == (BESIDE, 1)


def test_a_cancelled_job_is_nobodys_and_nothing_is_written_to_it(store) -> None:
    insert(store, "a")
    assert claimed(store) == "a"
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "cancelled")
        assert store.jobs.held(tx, Claim("a", 1, "one")) is None
        store.jobs.new_run(tx, store.jobs.locked(tx, "a"), "transcribe", {})
    assert not store.jobs.renew(Claim("a", 1, "one")) and claimed(store, "two") == "a"
    with store.transaction() as tx:
        assert store.jobs.held(tx, Claim("a", 1, "one")) is None


def test_a_callback_is_one_process_at_a_time_until_it_is_confirmed(store) -> None:
    insert(store, "a", **HOOK)
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
    assert third is not None and third.hook_tries == 1
    with store.transaction() as tx:
        store.jobs.new_run(tx, store.jobs.locked(tx, "a"), "transcribe", {})
    store.jobs.set_callback(third, "failed")  # of a run that was replaced
    assert store.jobs.get("a").hook_state == "pending"


class Bench:
    """A worker with a walk that waits, whose time stands still."""

    def __init__(self, store: Store, tmp_path, concurrency: int = 2) -> None:
        self.store, self.now, self.go = store, 0.0, threading.Event()
        self.progressed = threading.Event()  # each job has stored something
        self.faulty: set[str] = set()  # jobs whose thread ends with an unexpected exception, once
        self.seen: dict[str, BaseException | None] = {}
        settings = Settings(model="random", data_dir=tmp_path, min_free_bytes=0)
        self.serving = Serving(settings, None, Mock())
        self.serving.life.state = "ready"
        self.worker = Worker(
            store,
            self.serving,
            self.walk,
            SimpleNamespace(timeout_s=1.0),
            JobMetrics(Metrics()),
            threading.Event(),
            concurrency=concurrency,
            clock=lambda: self.now,
        )

    def walk(self, run) -> None:
        try:
            if run.id in self.faulty:
                self.faulty.remove(run.id)
                raise RuntimeError("none that a step raises")
            while not self.go.is_set():
                run.alone = run.alone and not self.progressed.is_set()
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


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    monkeypatch.setattr("forescribe.api.jobs.worker.RENEW_S", 0.02)


def leased(store: Store, *ids: str) -> bool:
    """Whether the leases are not over."""
    with store.database.engine.connect() as tx:
        query = sa.select(JOBS.c.claimed_until).where(JOBS.c.id.in_(ids))
        return all(until > database_time(tx) for until in tx.execute(query).scalars())


def test_a_worker_takes_as_many_as_it_may_and_each_renews_its_lease(bench, store) -> None:
    insert(store, "a", "b", "c")
    assert bench.tick(0.0) == {"a", "b"}
    lapse(store)
    until(lambda: leased(store, "a", "b"))
    assert claimed(store, "other") == "c" and claimed(store, "other") is None


def test_a_job_whose_thread_has_ended_is_free_although_others_go_on(bench, store) -> None:
    """Leases of a whole process were renewed for the dead one too."""
    insert(store, "a", "b")
    bench.faulty.add("a")
    bench.tick(0.0)
    until(lambda: bench.worker.running() == {"b"})
    lapse(store)
    until(lambda: leased(store, "b"))
    assert not leased(store, "a")
    assert bench.tick(*[float(second) for second in range(int(LEASE_S) + 1)]) == {"a", "b"}


def test_a_worker_abandons_what_another_one_has(bench, store) -> None:
    insert(store, "a")
    bench.tick(0.0)
    lapse(store)
    with store.transaction() as tx:
        tx.execute(sa.update(JOBS).values(claimed_by="other"))
    until(lambda: not bench.worker.running())
    assert isinstance(bench.seen["a"], RunReplaced)
    assert store.jobs.renew(Claim("a", 1, "other"))


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
    time.sleep(0.1)  # five renewals
    assert not leased(store, "a") and claimed(store, "other") == "a"


def test_a_worker_that_is_told_to_leave_gives_its_jobs_back(bench, store) -> None:
    insert(store, "a")
    bench.tick(0.0)
    bench.worker.stop()
    assert isinstance(bench.seen["a"], Stopping)
    assert claimed(store, "next") == "a" and deaths(store) == (0, 0)


def test_a_job_that_may_kill_its_process_has_it_for_itself(bench, store) -> None:
    """Neither jobs nor uploads beside it: those inside are waited for, and others are told to come later."""
    insert(store, "a", "b")
    with store.transaction() as tx:
        tx.execute(sa.update(JOBS).where(JOBS.c.id == "a").values(deaths_beside=BESIDE))
    times = [float(second) for second in range(int(ALONE_AFTER_S[0]))]
    assert bench.tick(*times) == {"b"}
    admission = bench.serving.admission
    upload = admission.start(Client())
    assert bench.tick(20.0) == {"b"}  # which is waited for
    bench.go.set()
    until(lambda: not bench.worker.running())
    bench.go.clear()
    with store.transaction() as tx:
        store.jobs.end(tx, "b", "succeeded")
    insert(store, "c")
    assert bench.tick(21.0) == bench.tick(22.0) == frozenset()
    with pytest.raises(ApiError, match="no other beside it"):
        admission.start(Client())
    with admission.reserve(Client(), stored=True):  # a job that is accepted needs no model
        upload.release()
        assert bench.tick(23.0) == bench.tick(24.0) == {"a"}
    bench.go.set()
    until(lambda: not bench.worker.running())
    bench.go.clear()
    with store.transaction() as tx:
        store.jobs.end(tx, "a", "succeeded")
    assert bench.tick(25.0) == {"c"}
    admission.start(Client()).release()


def test_requests_are_let_in_again_once_a_job_that_was_alone_progresses(bench, store) -> None:
    """Also if there is room for no other job."""
    insert(store, "a")
    with store.transaction() as tx:
        store.jobs.update(tx, "a", deaths_beside=BESIDE)
    bench.worker.concurrency = 1
    admission, times = bench.serving.admission, [float(second) for second in range(22)]
    assert bench.tick(*times) == {"a"}
    with pytest.raises(ApiError):
        admission.check()
    bench.progressed.set()
    time.sleep(0.1)
    bench.tick(22.5)
    admission.check()


def test_a_second_job_is_done_alone_however_long_the_first_one_takes(bench, store) -> None:
    insert(store, "a", "b")
    with store.transaction() as tx:
        tx.execute(sa.update(JOBS).values(deaths_beside=BESIDE))
    bench.tick(*map(float, range(22)))
    (first,) = bench.worker.running()
    later = 22.0 + ASK_S
    assert bench.tick(later) == {first}
    bench.go.set()
    until(lambda: not bench.worker.running())
    bench.go.clear()
    with store.transaction() as tx:
        store.jobs.end(tx, first, "succeeded")
    calm = [later + second for second in range(1, 2 + int(ALONE_AFTER_S[0]))]
    assert bench.tick(*calm) == {"a", "b"} - {first}


def refused(admission: Admission) -> bool:
    try:
        admission.check()
    except ApiError:
        return True
    return False


def test_a_live_session_keeps_out_others_for_a_minute_at_most(bench, store) -> None:
    insert(store, "a")
    with store.transaction() as tx:
        store.jobs.update(tx, "a", deaths_beside=BESIDE)
    admission = bench.serving.admission
    with admission.start(Client()):
        times = range(20 + int(ASK_EVERY_S) + 90)
        closed = []
        for second in times:
            assert bench.tick(float(second)) == frozenset()
            closed.append(refused(admission))
        assert sum(closed) == 2 * ASK_S and not any(closed[: int(ALONE_AFTER_S[0])])
    assert bench.tick(len(times) + ASK_EVERY_S, len(times) + ASK_EVERY_S + 1) <= {"a"}
