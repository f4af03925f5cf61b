"""The rows of batches on both databases: who works on a batch, and which transitions there are."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from forescribe.api.batches.table import (
    BATCHES,
    LINES,
    Batch,
    BatchError,
    BatchTable,
    LineError,
    LineRow,
)
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import NewJob
from tests.api.jobs.application import database_of


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    made = Store.open(tmp_path, database_of(request.param))
    made.database.create(BATCHES, LINES)
    made.database.create(BATCHES, LINES)  # twice does nothing
    yield made
    made.close()


@pytest.fixture
def table(store):
    table = BatchTable(store.database, lambda: 1000.0)
    with store.transaction() as tx:
        table.insert(
            tx,
            Batch(
                id="b",
                owner="team",
                endpoint="/v1/audio/transcriptions",
                input_file="file-1",
                state="validating",
                created_at=900.0,
                expires_at=2000.0,
                model="large",
                metadata={"ä": "ö"},
            ),
        )
    return table


def test_a_row_comes_back_as_it_was(store, table) -> None:
    batch = table.get("b", "team")
    assert batch.metadata == {"ä": "ö"} and batch.times["failed_at"] is None
    assert table.get("b", "other") is None
    with pytest.raises(IntegrityError), store.transaction() as tx:
        table.insert(tx, batch)
    with store.transaction() as tx:
        assert table.fail(tx, "b", [BatchError(code="empty_file", message="m", line=3)])
    batch = table.get("b")
    assert batch.errors == (BatchError(code="empty_file", message="m", line=3),)
    assert batch.times["failed_at"] == 1000.0 and batch.ended and table.unfinished() == []
    assert table.ended_before(1001.0) == ["b"] and table.ended_before(1000.0) == []


def test_a_transition_names_what_it_leaves(store, table) -> None:
    with store.transaction() as tx:
        assert not table.enter(tx, "b", "finalizing", ("in_progress",))
        assert table.enter(tx, "b", "in_progress", ("validating",))
        assert not table.enter(tx, "b", "in_progress", ("validating",))
        assert table.enter(tx, "b", "cancelling", ("validating", "in_progress"))
        assert not table.enter(tx, "b", "completed", ("finalizing",))
    assert table.get("b").state == "cancelling"


def test_a_clock_that_is_set_back_ends_nothing_before_its_beginning(store, table) -> None:
    now = [2000.0]
    table = BatchTable(store.database, lambda: now[0])
    with store.transaction() as tx:
        table.enter(tx, "b", "in_progress", ("validating",))
        now[0] = 100.0
        table.enter(tx, "b", "finalizing", ("in_progress",))
        table.enter(tx, "b", "completed", ("finalizing",))
    times = table.get("b").times
    assert times["in_progress_at"] == times["finalizing_at"] == times["completed_at"] == 2000.0

    store.clock = lambda: now[0]
    now[0] = 5000.0
    with store.transaction() as tx:
        store.jobs.insert(tx, NewJob("job", "", None, 60.0, {}, {}))
        now[0] = 4000.0
        store.jobs.start(tx, "job", 1)
        now[0] = 3000.0
        ended = store.jobs.end(tx, "job", "succeeded")
    assert ended.created_at == ended.started_at == ended.finished_at == 5000.0
    assert ended.speed is None


def test_one_process_works_on_a_batch_until_it_dies(store, table) -> None:
    for executor in ("one", "two"):
        store.heartbeats.beat(executor, ())
    assert table.claim("b", "one", exclusive=False) and table.claim("b", "one", exclusive=False)
    assert not table.claim("b", "two", exclusive=False)
    store.heartbeats.delete("one")  # as recovery does with the dead
    assert table.claim("b", "two", exclusive=False) and table.get("b").executor == "two"
    assert table.claim("b", "three", exclusive=True)


def test_a_line_ends_once(store, table) -> None:
    lines = [LineRow("b", k, 10 * k, 10) for k in range(1200)]
    with store.transaction() as tx:
        table.insert_lines(tx, lines)
    assert table.lines("b") == lines and table.lines("b", limit=2, after=4) == lines[5:7]
    assert len({line.job for line in lines}) == 1200 == len({line.request for line in lines})
    error = LineError("invalid_value", "m", "model")
    with store.transaction() as tx:
        assert table.set_line(tx, lines[0], "submitted")
        assert table.set_line(tx, lines[0], "failed", error)
        assert not table.set_line(tx, lines[0], "succeeded")
        assert table.set_line(tx, lines[1], "succeeded")
        table.end_lines(tx, "b", "expired")
    assert table.counts(["b", "c"]) == {
        "b": {"failed": 1, "succeeded": 1, "expired": 1198},
        "c": {},
    }
    (failed,) = table.lines("b", "failed")
    assert failed.error == error
    with store.transaction() as tx:
        for deletion in table.deletions("b"):
            tx.execute(deletion)
    assert table.get("b") is None and table.lines("b") == []
