"""Folders and their rows: whoever stands still or dies, what a row names is there and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forescribe.api.jobs.database import Database
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import FOLDERS, JOBS, Job
from forescribe.asr.errors import OutputError, UsageError
from tests.api.jobs.application import database_of
from tests.api.jobs.test_files import objects_in


@contextmanager
def store_in(folder: Path, url: str | None = None) -> Iterator[Store]:
    store = Store.open(folder, url, objects_in(folder / "bucket", folder / "own"))
    try:
        yield store
    finally:
        store.close()


def new(id: str, audio: str) -> Job:
    return Job(id=id, owner="", total_s=1.0, files={"audio": audio})


def accept(store: Store, id: str) -> None:
    store.reserve(id)
    name = store.files.put(id, "audio", id.encode())
    with store.transaction() as tx:
        store.accept(tx, new(id, name))


def jobs(store: Store) -> set[str]:
    with store.database.engine.connect() as tx:
        return set(tx.execute(sa.select(JOBS.c.id)).scalars())


class Machines(RuleBasedStateMachine):
    """Writers, sweepers and erasers, each of which may stand still between two of its requests, or die."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.acting: list[Generator[None]] = []
        folder = self.folder / uuid4().hex
        folder.mkdir(parents=True)
        self._block = store_in(folder)
        self.store = self._block.__enter__()

    @rule()
    @precondition(lambda self: len(self.acting) < 4)
    def begin_to_write(self) -> None:
        self.number += 1
        self.acting.append(self._write(f"job{self.number}"))

    @rule(listing=st.booleans())
    @precondition(lambda self: 0 < len(self.acting) < 4)
    def begin_to_sweep(self, listing: bool) -> None:
        self.acting.append(self._sweep_files() if listing else self._sweep())

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
    def what_a_row_names_exists(self) -> None:
        for id in jobs(self.store):
            job = self.store.jobs.get(id)
            assert job is not None
            for name in job.files.values():
                assert self.store.files.read(id, name)

    def teardown(self) -> None:
        """Everybody has died where they stood: a last sweep leaves what is named and nothing else."""
        self.store.sweep(-60.0)
        self.store.sweep_files()
        assert jobs(self.store) == self.store.files.jobs()
        with self.store.database.engine.connect() as tx:
            assert set(tx.execute(sa.select(FOLDERS.c.job)).scalars()) == jobs(self.store)
        self._block.__exit__(None, None, None)

    def _write(self, id: str) -> Generator[None]:
        store = self.store
        store.reserve(id)
        yield
        name = store.files.put(id, "audio", id.encode())
        yield
        try:
            with store.transaction() as tx:
                store.accept(tx, new(id, name))
        except OutputError:
            yield  # the client is told to send it again
            store.discard(id)
            return
        yield
        name = store.files.put(id, "plan", b"later")
        yield
        with store.transaction() as tx:
            job = store.jobs.locked(tx, id)
            if job is not None:
                store.jobs.update(tx, id, files={**job.files, "plan": name})
        if job is None:
            yield
            store.files.delete(id, name)

    def _sweep(self) -> Generator[None]:
        removed: list[str] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.store, "remove", removed.append)
            self.store.sweep(-60.0)  # takes no age into account
        for id in removed:
            yield
            self.store.remove(id)

    def _sweep_files(self) -> Generator[None]:
        removed: list[str] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.store.files, "delete_all", removed.append)
            self.store.sweep_files()
        for id in sorted(removed):
            yield
            self.store.files.delete_all(id)

    def _erase(self, id: str) -> Generator[None]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.store, "remove", lambda id: None)
            self.store.erase(id)
        yield
        self.store.remove(id)


def test_machines_that_stand_still_anywhere_lose_nothing(tmp_path) -> None:
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


def test_who_is_overtaken_by_a_sweep_is_told_to_send_it_again(tmp_path) -> None:
    with store_in(tmp_path) as store:
        store.reserve("a")
        name = store.files.put("a", "audio", b"sound")
        store.sweep()
        assert store.files.read("a", name) == b"sound"  # it is on its way
        store.sweep(-60.0)
        assert store.files.jobs() == set()
        with pytest.raises(OutputError, match="send it again"), store.transaction() as tx:
            store.accept(tx, new("a", name))
        assert jobs(store) == set()
        accept(store, "b")
        store.sweep(-60.0)
        assert store.files.jobs() == jobs(store) == {"b"}


def test_a_folder_whose_deletion_failed_is_deleted_later(tmp_path, monkeypatch) -> None:
    with store_in(tmp_path) as store:
        accept(store, "a")
        with monkeypatch.context() as away:
            away.setattr(store.files, "delete_all", _refuse)
            with pytest.raises(OutputError):
                store.erase("a")
        assert store.files.jobs() == {"a"} and jobs(store) == set()
        store.sweep()
        assert store.files.jobs() == set()
        store.files.put("a", "plan", b"a request that was delayed")
        store.sweep_files()
        assert store.files.jobs() == set()


def _refuse(id: str) -> None:
    raise OutputError("away")


@pytest.mark.slow
def test_an_erasure_waits_for_a_run_that_names_a_file(tmp_path) -> None:
    with store_in(tmp_path, database_of("postgresql")) as store:
        accept(store, "a")
        thread = threading.Thread(target=store.erase, args=("a",))
        with store.transaction() as tx:
            job = store.jobs.locked(tx, "a")
            assert job is not None
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
            name = store.files.put("a", "result", b"text")
            store.jobs.update(tx, "a", files={**job.files, "result": name})
        thread.join(60)
        assert jobs(store) == store.files.jobs() == set()


@pytest.mark.slow
@pytest.mark.parametrize("winner", ["accept", "sweep"])
def test_of_an_acceptance_and_a_sweep_the_second_is_refused(tmp_path, winner) -> None:
    """On PostgreSQL, where both are under way at once."""
    with store_in(tmp_path, database_of("postgresql")) as store:
        store.reserve("a")
        name = store.files.put("a", "audio", b"sound")
        refused: list[OutputError] = []

        def accepted() -> None:
            try:
                with store.transaction() as tx:
                    store.accept(tx, new("a", name))
            except OutputError as error:
                refused.append(error)

        other = accepted if winner == "sweep" else (lambda: store.sweep(-60.0))
        thread = threading.Thread(target=other)
        with store.transaction() as tx:
            if winner == "accept":
                store.accept(tx, new("a", name))
            else:
                tx.execute(sa.update(FOLDERS).where(FOLDERS.c.at > 0).values(at=0.0))
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
        thread.join(60)
        store.sweep()
        assert jobs(store) == store.files.jobs() == ({"a"} if winner == "accept" else set())
        assert bool(refused) == (winner == "sweep")


def test_several_processes_create_the_tables_one_after_another() -> None:
    import psycopg

    url, errors = database_of("postgresql"), list[BaseException]()

    def open_() -> None:
        try:
            Database.open(url).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_) for _ in range(6)]
    with psycopg.connect(url) as first:
        first.execute("select pg_advisory_xact_lock(hashtext('forescribe_tables'))")
        for thread in threads:
            thread.start()
        threads[0].join(1.0)
        assert all(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_a_file_that_no_row_may_name_is_deleted_unless_it_is_named_after_all(tmp_path) -> None:
    """A commit whose answer was lost has happened, or has not."""
    with store_in(tmp_path) as store:
        accept(store, "a")

        def named(tx, name: str) -> None:
            job = store.jobs.locked(tx, "a")
            store.jobs.update(tx, "a", files={**job.files, "plan": name})

        def refused(tx, name: str) -> None:
            raise KeyError(name)

        with pytest.raises(KeyError) as caught:
            store.save("a", "plan", "{}", refused)
        with pytest.raises(FileNotFoundError):
            store.files.read("a", caught.value.args[0])

        begin = store.database.transaction

        @contextmanager
        def unanswered():
            with begin() as tx:
                yield tx
            raise ConnectionError("after the commit")

        store.database.transaction = unanswered
        with pytest.raises(ConnectionError):
            store.save("a", "plan", "{}", named)
        store.database.transaction = begin
        assert store.read(store.jobs.get("a"), "plan") == {}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_jobs_of_an_earlier_version_are_refused_with_what_to_do(tmp_path, kind) -> None:
    """Its tables without jobs are replaced: every service has had some."""
    url = database_of(kind) or f"sqlite:///{tmp_path / 'jobs.db'}"
    engine = Database.open(url).engine
    with engine.begin() as tx:
        tx.execute(sa.schema.DropTable(JOBS))
        tx.exec_driver_sql("create table forescribe_jobs (id varchar)")
        tx.exec_driver_sql("insert into forescribe_jobs values ('job_1')")
    with pytest.raises(UsageError, match="earlier version.*finish them.*data_dir"):
        Database.open(url)
    with engine.begin() as tx:
        assert tx.exec_driver_sql("select * from forescribe_jobs").all() == [("job_1",)]
        tx.exec_driver_sql("delete from forescribe_jobs")
    engine.dispose()
    with closing(Store.open(tmp_path, url)) as store:
        accept(store, "a")
        assert jobs(store) == {"a"}
