"""Marks: of a reference and a deletion only one wins, on any number of machines.

The state machine lets a process stand still at each of its requests, for as long as it likes; the threads
race on a real PostgreSQL.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forescribe.api.jobs.database import Database
from forescribe.api.jobs.references import BlobMarks
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import BLOBS, JOBS, REFERENCES, NewJob
from forescribe.asr.errors import OutputError
from tests.api.jobs.test_object_blobs import blobs_in
from tests.faults.harness import NotRun
from tests.faults.storage import database


@contextmanager
def store_in(folder: Path, url: str | None = None) -> Iterator[Store]:
    store = Store.open(folder, url, blobs_in(folder / "bucket", folder / "own"))
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with store_in(tmp_path) as made:
        yield made


def referred(store: Store) -> set[str]:
    with store.database.engine.connect() as tx:
        return set(tx.execute(sa.select(REFERENCES.c.blob)).scalars())


def test_a_blob_on_its_way_into_the_database_is_left_alone_by_its_age(store) -> None:
    name = store.blobs.put(b"audio")
    assert store.references.sweep_objects() == 0
    with store.transaction() as tx:
        store.references.put(tx, "job", "audio", name)
    assert store.references.sweep_objects(0.0) == 0 and list(store.blobs.names()) == [name]


def test_who_is_too_late_stores_the_blob_again(store) -> None:
    name = store.blobs.put(b"audio")
    assert store.references.sweep_objects(0.0) == 1 and not list(store.blobs.names())
    with pytest.raises(OutputError, match="try again"), store.transaction() as tx:
        store.references.put(tx, "job", "audio", name)
    assert not referred(store)
    again = store.blobs.put(b"audio")
    with store.transaction() as tx:
        store.references.put(tx, "job", "audio", again)
    assert store.blobs.read(again) == b"audio"


def test_the_last_reference_takes_the_object_with_it(store) -> None:
    name = store.blobs.put(b"audio")
    with store.transaction() as tx:
        for job in ("a", "b"):
            store.references.put(tx, job, "audio", name)
    store.references.drop("a", "audio")
    assert store.blobs.read(name) == b"audio"
    store.erase("b")
    assert not list(store.blobs.names()) and not referred(store)


def test_an_object_whose_deletion_failed_is_deleted_later(store, monkeypatch) -> None:
    name = store.blobs.put(b"audio")
    with store.transaction() as tx:
        store.references.put(tx, "job", "audio", name)
    with monkeypatch.context() as away:
        away.setattr(store.blobs, "delete", _refuse)
        with pytest.raises(OutputError):
            store.erase("job")
    assert list(store.blobs.names()) == [name] and not referred(store)
    store.references.delete_condemned()
    assert not list(store.blobs.names())
    store.blobs.objects.put(f"blobs/{name[:2]}/{name}", b"audio")  # a request that was delayed
    assert store.references.sweep_objects(0.0) == 1 and not list(store.blobs.names())


def _refuse(name: str) -> None:
    raise OutputError("away")


def test_what_was_replaced_by_a_process_that_died_then_is_swept(store) -> None:
    old, new = store.blobs.put(b"old"), store.blobs.put(b"new")
    for name in (old, new):
        with store.transaction() as tx:
            store.references.put(tx, "job", "result", name)
    assert store.references.sweep_objects() == 1  # whatever its age
    assert list(store.blobs.names()) == [new]


def test_marks_of_old_deletions_are_forgotten(store, monkeypatch) -> None:
    for data in (b"a", b"b"):
        store.blobs.put(data)
    store.references.sweep_objects(0.0)
    monkeypatch.setattr("forescribe.api.jobs.references.REMEMBERED_S", -1.0)
    BlobMarks(store.database).forget()
    with store.database.engine.connect() as tx:
        assert tx.execute(sa.select(BLOBS)).all() == []


class Machines(RuleBasedStateMachine):
    """Writers and sweepers, each of which may stand still between two of its requests, or die."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.acting: list[Generator[None]] = []
        folder = self.folder / uuid4().hex
        folder.mkdir(parents=True)
        self._block = store_in(folder)
        self.store = self._block.__enter__()

    @rule(shared=st.booleans())
    @precondition(lambda self: len(self.acting) < 4)
    def begin_to_write(self, shared: bool) -> None:
        self.number += 1
        self.acting.append(self._write(f"job{self.number}", shared))

    @rule()
    @precondition(lambda self: 0 < len(self.acting) < 4)
    def begin_to_sweep(self) -> None:
        self.acting.append(self._sweep())

    @rule(n=st.integers(1, 8))
    @precondition(lambda self: 0 < len(self.acting) < 4)
    def begin_to_erase(self, n: int) -> None:
        self.acting.append(self._erase(f"job{n}"))

    @rule(n=st.integers(0, 3), dies=st.sampled_from([False] * 6 + [True]))
    @precondition(lambda self: self.acting)
    def go_on(self, n: int, dies: bool) -> None:
        who = self.acting[n % len(self.acting)]
        if dies or next(who, self) is self:
            self.acting.remove(who)

    @invariant()
    def what_is_referred_to_exists(self) -> None:
        store = self.store
        assert referred(store) <= set(store.blobs.names())

    def teardown(self) -> None:
        """Everybody has died where they stood: a last sweep leaves what is referred to and nothing else."""
        store = self.store
        store.references.sweep_objects(0.0)
        store.references.delete_condemned()
        assert referred(store) == set(store.blobs.names())
        self._block.__exit__(None, None, None)

    def _write(self, job: str, shared: bool) -> Generator[None]:
        store = self.store
        name = store.blobs.put(job.encode())
        yield
        try:
            with store.transaction() as tx:
                store.references.put(tx, job, "audio", name)
        except OutputError:
            return  # the client is told to try again
        yield
        if shared:  # a second reference, as the result refers to the words
            try:
                with store.transaction() as tx:
                    store.references.put(tx, f"{job}/", "result", name)
            except OutputError:
                return

    def _sweep(self) -> Generator[None]:
        store = self.store
        marks = BlobMarks(store.database)
        listed = set(store.blobs.names())
        yield
        doomed = []
        for name in sorted(listed - marks.states(listed).keys()):  # the same in every example
            with store.transaction() as tx:
                doomed += marks.condemn(tx, [name])
            yield
        for name in sorted(doomed):
            store.blobs.delete(name)
            yield
            marks.set_gone(name)
            yield

    def _erase(self, job: str) -> Generator[None]:
        store = self.store
        deleted = []
        real, store.references._delete = store.references._delete, deleted.extend  # type: ignore[method-assign]
        try:
            store.erase(job)
        finally:
            store.references._delete = real  # type: ignore[method-assign]
        yield
        for name in sorted(deleted):
            store.blobs.delete(name)
            yield


def test_machines_that_stand_still_anywhere_lose_nothing(tmp_path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    Machines.folder = tmp_path / "machines"
    run_state_machine_as_test(
        Machines,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    try:
        with database() as url:
            yield url
    except NotRun as error:
        pytest.skip(str(error))


WRITERS, ROUNDS = 4, 25


@pytest.mark.slow
def test_threads_that_race_on_postgresql_lose_nothing(tmp_path, postgres) -> None:
    """Each of two replicas: writers that refer to a blob, twice, and erase some; a sweeper that takes no
    age into account. Some writers are suspended between a blob and its row until a whole sweep is over, which
    has hit it then."""
    errors: list[BaseException] = []
    refused: list[str] = []
    sweeps = [0, 0]
    over = threading.Event()

    def write(store: Store, seed: int) -> None:
        rng = random.Random(seed)
        for n in range(ROUNDS):
            job = f"job-{seed}-{n}"
            name = store.blobs.put(job.encode())
            begun = sweeps[seed % 2]
            while n % 8 == 0 and sweeps[seed % 2] < begun + 2 and not errors:
                time.sleep(0.001)
            try:
                with store.transaction() as tx:
                    store.jobs.insert(tx, NewJob(job, "", None, 1.0, {}, {}))
                    store.references.put(tx, job, "audio", name)
                with store.transaction() as tx:
                    if store.jobs.locked(tx, job) is not None:
                        store.references.put(tx, job, "result", name)
            except OutputError:
                refused.append(job)
            assert n % 8 or job in refused
            if rng.random() < 0.3:
                store.erase(job)

    def sweep(store: Store, seed: int) -> None:
        while not over.is_set():
            store.references.sweep_objects(-60.0)
            store.references.delete_condemned()
            sweeps[seed] += 1

    def guarded(act, *args) -> None:
        try:
            act(*args)
        except BaseException as error:
            errors.append(error)

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    bucket = tmp_path / "bucket"
    replicas = [
        Store.open(tmp_path / name, postgres, blobs_in(bucket, tmp_path / name / "own"))
        for name in ("one", "two")
    ]
    writers = [
        threading.Thread(target=guarded, args=(write, replicas[n % 2], n)) for n in range(WRITERS)
    ]
    sweepers = [
        threading.Thread(target=guarded, args=(sweep, store, n)) for n, store in enumerate(replicas)
    ]
    for thread in writers + sweepers:
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    for thread in sweepers:
        thread.join()
    assert not errors, errors
    first = replicas[0]
    first.references.sweep_objects(-60.0)
    first.references.delete_condemned()
    kept = referred(first)
    assert kept == set(first.blobs.names()) and kept
    for name in kept:
        assert first.blobs.read(name)
    for store in replicas:
        store.close()


@pytest.mark.slow
def test_an_erasure_waits_for_a_run_that_refers_to_a_blob(tmp_path, postgres) -> None:
    with store_in(tmp_path, postgres) as store:
        name = store.blobs.put(b"words")
        with store.transaction() as tx:
            store.jobs.insert(tx, NewJob("job_e", "", None, 1.0, {}, {}))
            store.references.put(tx, "job_e", "spoken", name)
        thread = threading.Thread(target=store.erase, args=("job_e",))
        with store.transaction() as tx:
            assert store.jobs.locked(tx, "job_e") is not None
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
            store.references.put(tx, "job_e", "result", name)
        thread.join(60)
        with store.database.engine.connect() as tx:
            assert tx.execute(sa.select(JOBS).where(JOBS.c.id == "job_e")).all() == []
        assert name not in referred(store) and name not in set(store.blobs.names())


@pytest.mark.slow
def test_a_deletion_waits_for_a_reference_that_is_not_committed(tmp_path, postgres) -> None:
    """The blob has a mark already, and no reference when the deletion begins."""
    with store_in(tmp_path, postgres) as store:
        name = store.blobs.put(b"words")
        with store.transaction() as tx:
            BlobMarks(store.database).keep(tx, name)
        thread = threading.Thread(target=store.references.delete_unreferenced, args=([name],))
        with store.transaction() as tx:
            store.references.put(tx, "job_d", "result", name)
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
        thread.join(60)
        assert name in referred(store) and store.blobs.read(name) == b"words"
        store.erase("job_d")


@pytest.mark.slow
def test_several_processes_create_the_tables_at_once(postgres) -> None:
    import psycopg

    url = postgres.rsplit("/", 1)[0] + "/fresh_tables"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create database fresh_tables")
    errors: list[BaseException] = []

    def open_() -> None:
        try:
            Database.open(url).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
