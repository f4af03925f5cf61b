"""A server that does not answer holds one thread, not those of all requests."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from forescribe.api.jobs import database
from forescribe.api.jobs.database import Database
from forescribe.api.jobs.reach import Reach
from tests.api.jobs.application import database_of


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
    ask(tried)
    both = [waiting(tried), waiting(tried)]  # not known yet
    time.sleep(0.1)
    for _ in range(3):
        with pytest.raises(Away):
            ask(tried)
    waiting.answer.set()
    assert [future.result() for future in both] == [None] * 2
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


def test_who_was_not_answered_before_others_were_refuses_nobody(waiting) -> None:
    """A quiet spell is no silence of the server."""
    tried = reach(slow_s=0.05)
    old = waiting(tried)
    ask(tried)
    time.sleep(0.1)
    both = [waiting(tried), waiting(tried)]
    waiting.answer.set()
    assert [future.result() for future in (old, *both)] == [None] * 3


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
    assert not store.available()
    engine.connect = Mock(side_effect=AssertionError)  # type: ignore[method-assign]
    assert store.lost(refused.value)


class Line:
    """A driver's connection to a server that acknowledges what it is sent, and does not answer."""

    def __init__(self) -> None:
        self.own, self.far = socket.socketpair()
        self.own.settimeout(30)  # where nothing cuts it, the test fails
        self.fileno, self.rollback = self.own.fileno, Mock()

    def close(self) -> None:
        self.own.close()
        self.far.close()


def test_who_asks_for_a_connection_frees_those_that_are_stuck(monkeypatch) -> None:
    """Threads that wait for an answer for ever would use up the pool, and no look would tell."""
    monkeypatch.setattr(database, "SLOW_S", 0.1)
    pool = database._Pool(Line, pool_size=2, max_overflow=0)
    for _ in range(2):
        monkeypatch.setattr(database, "STUCK_S", 60.0)
        stuck = [pool.connect(), pool.connect()]
        lines = [each.driver_connection for each in stuck]
        with ThreadPoolExecutor() as threads:
            waiting = [threads.submit(line.own.recv, 1) for line in lines]
            with pytest.raises(sa.exc.OperationalError):
                pool.connect()
            assert not any(future.done() for future in waiting)
            monkeypatch.setattr(database, "STUCK_S", 0.05)
            with pytest.raises(sa.exc.OperationalError):
                pool.connect()
            assert [future.result(5) for future in waiting] == [b"", b""]
        for each in stuck:  # as SQLAlchemy does where a connection was lost
            each.invalidate()
            each.close()
        fresh = pool.connect()
        assert fresh.driver_connection not in lines
        fresh.close()
    assert not pool._taken
    pool.dispose()


def test_a_statement_without_an_answer_is_given_up(monkeypatch) -> None:
    store = Database.open(database_of("postgresql"))

    def stuck() -> None:
        with store.transaction() as tx:
            tx.exec_driver_sql("select pg_sleep(30)")

    monkeypatch.setattr(database, "STUCK_S", 0.2)
    with ThreadPoolExecutor() as threads:
        for _ in range(2):
            waiting = threads.submit(stuck)
            time.sleep(0.4)
            assert not waiting.done() and store.accepts_writes()
            with pytest.raises(sa.exc.OperationalError) as lost:
                waiting.result(5)
            assert lost.value.connection_invalidated and store.lost(lost.value)
    store.close()


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
