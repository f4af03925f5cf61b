"""What an engine of jobs must keep to: the same tests for the one that lasts and the one for tests."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import sqlalchemy as sa

from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import WorkItem
from forescribe.api.jobs.workflows import Stopping
from tests.api.conftest import until
from tests.api.jobs.application import database_of
from tests.api.jobs.memory_engine import MemoryEngine


class Bench:
    """An engine, its database, and plays whose steps wait for `go`."""

    def __init__(self, folder, kind: str) -> None:
        self.kind = kind
        self.store = Store.open(folder, database_of(kind))
        self.waiting = threading.Event()
        self.go, self.stopping = threading.Event(), threading.Event()
        self.done: Counter[tuple] = Counter()
        self.engine = self._engine()

    def _engine(self):
        if self.kind == "memory":
            made = MemoryEngine(concurrency=2)
        else:
            from forescribe.api.jobs.dbos_engine import DbosEngine

            made = DbosEngine(self.store.database.engine, concurrency=2)
        made.start(self._step, {"transcribe": _play, "diarize": _broken})
        return made

    def _step(self, step: str, *args):
        if step == "wait":
            self.waiting.set()
            while not self.go.wait(0.01):
                if self.stopping.is_set():
                    raise Stopping
        if step == "break":
            raise RuntimeError("secret")
        self.done[step, *args] += 1
        return f"{step}{args}"

    def enqueue(self, *works: WorkItem) -> None:
        with self.store.transaction() as tx:
            for work in works:
                self.engine.enqueue(tx, work)

    def broken(self, *ids: str) -> set[str]:
        rows = sa.union_all(*(sa.select(sa.literal(id).label("id")) for id in ids)).subquery()
        with self.store.database.engine.connect() as tx:
            return set(self.engine.broken(tx, sa.select(rows.c.id)))

    def count(self, job: str) -> dict[str, int]:
        return {step: n for (step, name, *_), n in self.done.items() if name == job}

    def again(self) -> None:
        """The process stops and another one begins."""
        self.stop()
        self.stopping.clear()
        self.engine = self._engine()

    def stop(self) -> None:
        self.stopping.set()
        until(lambda: not self.engine.running())
        self.engine.stop()


def _play(call, job: str, run: int) -> None:
    _play_on(call, job, run)


def _play_on(call, job: str, run: int) -> None:
    call("first", job, run)
    call("wait", job, run)
    call("last", job, run)


def _broken(call, job: str, run: int) -> None:
    call("break", job, run)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def bench(request, tmp_path, monkeypatch):
    if request.param != "memory":
        monkeypatch.setattr("forescribe.api.jobs.dbos_engine.POLL_S", 0.02)
    made = Bench(tmp_path, request.param)
    yield made
    made.stop()
    made.store.close()


def work(job: str, kind: str = "transcribe", delay_s: float = 0.0) -> WorkItem:
    return WorkItem(kind, f"{job}:1", (job, 1), delay_s)


def test_engines_keep_their_contract(bench, caplog) -> None:
    """One life for all of it: starting the engine that lasts takes longer than the rest."""
    # The same id twice is one job, and what was rolled back was never there.
    bench.enqueue(work("a"), work("a"))
    with pytest.raises(ZeroDivisionError), bench.store.transaction() as tx:
        bench.engine.enqueue(tx, work("never"))
        raise ZeroDivisionError
    until(lambda: bench.engine.running() == {"a:1"})
    assert [p.id for p in bench.engine.pending()] == ["a:1"]
    assert not bench.broken("a:1")

    # No step begins after a cancel; who waits in line is not begun at all; the place is free.
    bench.enqueue(work("b"), work("c"))
    until(lambda: len(bench.engine.running()) == 2)
    for job in ("a", "b", "c"):
        bench.engine.cancel(f"{job}:1")
    bench.go.set()
    until(lambda: not bench.engine.running())
    bench.enqueue(work("d"))
    until(lambda: bench.count("d").get("last") == 1)
    assert "last" not in bench.count("a") and "last" not in bench.count("b")
    assert bench.count("c").get("last") is None and not bench.count("never")
    until(lambda: bench.broken("a:1", "d:1", "nobody:1") == {"a:1", "d:1", "nobody:1"})

    # A play that breaks has ended, and takes no other with it.
    bench.enqueue(work("e", "diarize"), work("f"))
    until(lambda: bench.count("f").get("last") == 1 and "e:1" in bench.broken("e:1"))

    # Later means later, and what is forgotten never begins.
    bench.enqueue(work("g", delay_s=1.0), work("h", delay_s=1.0))
    bench.engine.forget("h")
    assert not bench.count("g")
    until(lambda: bench.count("g").get("last") == 1)
    assert not bench.count("h")


def test_work_outlives_its_process(bench) -> None:
    if bench.kind == "memory":
        pytest.skip("the one thing that it does not keep to")
    bench.enqueue(work("a"))
    until(lambda: bench.count("a").get("first") == 1)
    before = bench.engine.executor
    bench.again()
    assert [(p.id, p.executor) for p in bench.engine.pending()] == [("a:1", before)]
    assert bench.engine.executor != before and not bench.engine.running()
    bench.go.set()
    bench.engine.resume("a:1", "another")  # taken over by it meanwhile: left alone
    assert [p.executor for p in bench.engine.pending()] == [before]
    bench.engine.resume("a:1", before)
    until(lambda: bench.count("a").get("last") == 1)
    assert bench.count("a") == {"first": 1, "wait": 1, "last": 1}
    until(lambda: not bench.engine.pending())


def test_work_that_is_resumed_while_it_runs_here_runs_until_both_executions_have_left(
    bench,
) -> None:
    """Its process was taken for dead and has not noticed: the earlier execution loses at its next record."""
    if (
        bench.kind != "sqlite"
    ):  # on PostgreSQL the one that lost holds a connection when the test ends
        pytest.skip("it is the same code in all databases")
    from forescribe.api.jobs import dbos_engine

    bench.enqueue(work("a"))
    until(bench.waiting.is_set)  # so its first step is recorded
    bench.engine.resume("a:1", bench.engine.executor)
    until(lambda: dbos_engine._running["a:1"] == 2)
    bench.go.set()
    until(lambda: not bench.engine.running())
    assert bench.count("a")["first"] == bench.count("a")["last"] == 1
    until(lambda: not bench.engine.pending())


def test_work_of_another_version_is_taken_over_and_begins_anew(bench, monkeypatch) -> None:
    """A deploy that changes the plays: what is queued, begun or delayed under the old version would wait
    for ever, and answers of the old play are none of the new one's."""
    if bench.kind == "memory":
        pytest.skip("nothing outlives the process")
    from forescribe.api.jobs import dbos_engine

    bench.enqueue(work("a"), work("b"), work("c"), work("d", delay_s=0.5))
    until(lambda: bench.count("a").get("first") == bench.count("b").get("first") == 1)
    monkeypatch.setattr(dbos_engine, "VERSION", "another")
    monkeypatch.setattr(f"{__name__}._play", _patched)
    bench.again()
    bench.go.set()
    for left in bench.engine.pending():  # what the keeper does with work of the dead
        bench.engine.resume(left.id, left.executor)
    assert bench.engine.adopt() == 4 and bench.engine.adopt() == 0
    for job in "abcd":
        until(lambda: bench.count(job).get("last") == 1)  # noqa: B023
        assert bench.count(job).get("new first") == 1
    until(lambda: not bench.engine.pending())


def _patched(call, job: str, run: int) -> None:
    """Another order of steps: with the old answers DBOS would refuse to go on."""
    call("new first", job, run)
    _play_on(call, job, run)
