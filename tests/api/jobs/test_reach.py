"""A server that does not answer holds one thread, not those of all requests."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from forescribe.api.jobs import database
from forescribe.api.jobs.database import Database
from forescribe.api.jobs.reach import Reach


class Away(Exception):
    pass


class Lost(Exception):
    pass


def reach(slow_s: float = float("inf"), look_s: float = 30.0) -> Reach:
    return Reach(Away, lambda error: isinstance(error, Lost), slow_s, look_s)


def ask(reach: Reach, *errors: type[Exception]) -> None:
    with reach.asking():
        for error in errors:
            raise error


@pytest.fixture
def waiting():
    """`waiting(reach)` begins a request that is answered once `answer` is set."""
    answer = threading.Event()
    with ThreadPoolExecutor() as pool:

        def begin(reach: Reach, error: type[Exception] | None = None):
            inside = threading.Event()

            def request() -> None:
                with reach.asking():
                    inside.set()
                    assert answer.wait(30)
                    if error is not None:
                        raise error

            future = pool.submit(request)
            assert inside.wait(30)
            return future

        begin.answer = answer  # type: ignore[attr-defined]
        yield begin
        answer.set()


def test_many_ask_at_a_time_while_answers_come(waiting) -> None:
    tried = reach(slow_s=30.0)
    asked = [waiting(tried) for _ in range(3)]
    ask(tried)
    waiting.answer.set()
    assert [future.result() for future in asked] == [None] * 3


def test_nobody_waits_behind_one_who_gets_no_answer(waiting) -> None:
    tried = reach(slow_s=0.05)
    first = waiting(tried)
    ask(tried)  # not known yet
    time.sleep(0.1)
    for _ in range(3):
        with pytest.raises(Away):
            ask(tried)
    waiting.answer.set()
    first.result()
    ask(tried)


def test_after_a_loss_one_asks_at_a_time_until_it_is_answered(waiting) -> None:
    tried = reach()
    for _ in range(2):  # the second time is as the first
        with pytest.raises(Lost):
            ask(tried, Lost)
        waiting.answer.clear()
        looking = waiting(tried)
        for _ in range(3):
            with pytest.raises(Away):
                ask(tried)
        waiting.answer.set()
        looking.result()
        waiting.answer.clear()
        both = [waiting(tried), waiting(tried)]
        waiting.answer.set()
        assert [future.result() for future in both] == [None, None]


def test_a_long_transfer_keeps_nobody_from_asking_after_a_loss(waiting) -> None:
    tried = reach(look_s=0.2)
    transfer = waiting(tried)
    with pytest.raises(Lost):
        ask(tried, Lost)
    with pytest.raises(Away):
        ask(tried)
    time.sleep(0.25)
    looking = waiting(tried)
    with pytest.raises(Away):  # one at a time
        ask(tried)
    time.sleep(0.25)
    ask(tried)  # answered: all may ask
    ask(tried)
    waiting.answer.set()
    assert [transfer.result(), looking.result()] == [None, None]


def test_an_error_that_is_an_answer_refuses_nobody(waiting) -> None:
    tried = reach()
    with pytest.raises(ValueError):
        ask(tried, ValueError)
    waiting(tried)
    ask(tried)


def test_a_connection_that_cannot_be_made_is_a_database_that_is_away() -> None:
    """Whatever the driver says of it, and without another look."""
    engine = sa.create_engine("postgresql+psycopg://127.0.0.1:1/jobs", poolclass=database._Pool)
    with pytest.raises(sa.exc.OperationalError) as refused:
        engine.connect()
    store = Database(engine)
    engine.connect = Mock(side_effect=AssertionError)  # type: ignore[method-assign]
    assert store.lost(refused.value)


def test_who_finds_no_connection_free_waits_seconds(monkeypatch) -> None:
    monkeypatch.setattr(database, "SLOW_S", 0.1)
    pool = database._Pool(Mock, pool_size=1, max_overflow=0)
    taken = pool.connect()
    for _ in range(2):
        with pytest.raises(sa.exc.OperationalError) as refused:
            pool.connect()
        assert refused.value.connection_invalidated
    taken.close()
    pool.connect().close()
