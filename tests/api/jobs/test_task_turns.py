"""Turns: what one process does for all is done once in a period, by whichever asks first."""

from __future__ import annotations

import sqlalchemy as sa

from forescribe.api.jobs.database import Database, Turns, database_time
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import TURNS
from tests.api.jobs.test_joining import stores


def test_one_of_all_processes_takes_a_turn(tmp_path) -> None:
    one, two = stores(tmp_path)
    assert one.turns.take("retention", 60.0)
    assert not two.turns.take("retention", 60.0) and not one.turns.take("retention", 60.0)
    assert two.turns.take("objects", 60.0)  # another task
    with one.transaction() as tx:  # a minute later by the database's clock
        tx.execute(sa.update(TURNS).values(at=database_time(tx) - 61.0))
    assert two.turns.take("retention", 60.0)
    assert not one.turns.take("retention", 60.0)
    for store in (one, two):
        store.close()


def test_retention_of_several_processes_runs_once(tmp_path, monkeypatch) -> None:
    from types import SimpleNamespace

    from forescribe.api.jobs.service import Retention
    from forescribe.api.settings import Settings

    asked = []
    made = stores(tmp_path)

    def retention(store: Store) -> Retention:
        monkeypatch.setattr(store.keys, "delete_before", asked.append)
        uploads = SimpleNamespace(expire=lambda older_s: None)
        settings = Settings(model="x", data_dir=tmp_path)
        return Retention(settings, store, None, None, uploads, exclusive=False)  # type: ignore[arg-type]

    for worker in [retention(store) for store in made] * 2:
        worker.erase_expired()
    assert len(asked) == 1
    for store in made:
        store.close()


def test_the_databases_clock_is_unix_time(tmp_path) -> None:
    import time

    database = Database.open(f"sqlite:///{tmp_path / 'x.db'}")
    with database.transaction() as tx:
        assert abs(database_time(tx) - time.time()) < 60
    assert Turns(database).take("a", 1.0)
    database.close()
