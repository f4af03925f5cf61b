"""Inside: who may have killed a process, who has to wait, and who is blamed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from forescribe.api.jobs.in_progress import Inside
from forescribe.api.jobs.records import New
from forescribe.api.jobs.store import Store
from tests.api.conftest import until


class Gone(Exception):
    """Nobody waits for the job any more."""


def stays() -> None:
    """It is still wanted."""


@pytest.fixture
def store(tmp_path):
    made = Store.at(tmp_path)
    with made.writing() as tx:
        for name in "abcd":
            made.insert(tx, New(name, "", None, 60.0, {}, {}))
    yield made
    made.close()


def crashes(store: Store, job: str) -> int:
    found = store.job(job)
    assert found is not None
    return found.crashes


def got_on(store: Store, inside: Inside, job: str) -> None:
    with store.writing() as tx:
        store.progress(tx, job, 1.0)
    inside.got_on(job)


def waiting(inside: Inside, job: str, gone: Callable[[], None] = stays) -> threading.Thread:
    thread = threading.Thread(target=inside.enter, args=(job, gone))
    thread.start()
    return thread


def test_only_those_inside_are_suspects_of_a_death(store) -> None:
    first = Inside(store, "first")
    for job in "abc":
        first.enter(job, stays)
    first.leave("c")
    assert store.charge({"second"}) == [("a", 1), ("b", 1)]  # the process is gone, d was in line
    assert [store.deaths(job) for job in "abcd"] == [1, 1, 0, 0]
    assert [crashes(store, job) for job in "abcd"] == [0] * 4  # which of the two, nobody knows
    assert store.charge({"second"}) == []  # once


def test_a_living_process_is_no_death(store) -> None:
    Inside(store, "first").enter("a", stays)
    assert store.charge({"first", "second"}) == [] and store.deaths("a") == 0


def test_a_process_that_ends_on_purpose_blames_nobody(store) -> None:
    inside = Inside(store, "first")
    inside.enter("a", stays)
    inside.end()
    inside.enter("b", stays)  # as the draining goes on
    assert store.charge({"second"}) == []


def test_a_suspect_is_alone_until_it_gets_on(store) -> None:
    before = Inside(store, "before")
    before.enter("a", stays)
    store.charge({"me"})
    inside = Inside(store, "me")
    inside.enter("a", stays)
    other = waiting(inside, "b")
    other.join(0.2)
    assert other.is_alive()
    got_on(store, inside, "a")
    other.join(10)
    assert not other.is_alive() and store.deaths("a") == 0
    store.charge(set())
    assert crashes(store, "a") == crashes(store, "b") == 0  # they were together again


def test_a_death_alone_is_the_jobs_own_and_progress_clears_it(store) -> None:
    for n in range(3):
        inside = Inside(store, f"process {n}")
        inside.enter("a", stays)
        store.charge(set())
    assert (store.deaths("a"), crashes(store, "a")) == (3, 2)  # the first one had no suspect yet
    got_on(store, Inside(store, "me"), "a")
    assert (store.deaths("a"), crashes(store, "a")) == (0, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_beside_a_suspect_may_be_to_blame_as_well(store, when) -> None:
    Inside(store, "before").enter("a", stays)
    store.charge(set())
    inside = Inside(store, "me", company=lambda: when == "before")
    inside.enter("a", stays)
    if when == "after":
        inside.joined()
    store.charge(set())
    assert (store.deaths("a"), crashes(store, "a")) == (2, 0)


def test_suspects_go_first_one_at_a_time_those_with_the_fewest_deaths_before_others(store) -> None:
    for n, jobs in enumerate(("a", "ab")):
        inside = Inside(store, f"process {n}")
        for job in jobs:
            store.expose(inside.executor, job, alone=False)
        store.charge(set())
    asked: list[str] = []
    inside = Inside(store, "me", aside=lambda job: (asked.append(job), inside.leave(job)))
    inside.enter("c", stays)  # no suspect, and nobody else is there
    order: list[str] = []

    def work(job: str) -> None:
        inside.enter(job, stays)
        order.append(job)

    threads = [threading.Thread(target=work, args=(job,)) for job in "ab"]
    with inside._changed:  # both are in line before either is let in
        for thread in threads:
            thread.start()
    until(lambda: order == ["b"])
    assert asked and set(asked) == {"c"}
    late = waiting(inside, "d")
    inside.leave("b")
    until(lambda: order == ["b", "a"])
    assert late.is_alive()
    inside.leave("a")
    for thread in (*threads, late):
        thread.join(10)
        assert not thread.is_alive()


def test_who_is_not_wanted_any_more_waits_no_longer(store) -> None:
    Inside(store, "before").enter("a", stays)
    store.charge(set())
    inside = Inside(store, "me")
    inside.enter("b", stays)

    def gone() -> None:
        raise Gone

    with pytest.raises(Gone):
        inside.enter("a", gone)
    inside.enter("c", stays)  # and bars nobody's way


def test_a_row_that_could_not_be_taken_back_goes_later(store, monkeypatch) -> None:
    inside = Inside(store, "me")
    inside.enter("a", stays)
    inside.enter("b", stays)
    with monkeypatch.context() as away:
        away.setattr(store, "unexpose", lambda *_: 1 / 0)
        inside.leave("a")
    inside.settle()
    assert store.charge(set()) == [("b", 1)]


def test_who_cannot_be_put_on_record_is_not_inside(store, monkeypatch) -> None:
    inside = Inside(store, "me")
    with monkeypatch.context() as away:
        away.setattr(store, "expose", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            inside.enter("a", stays)
    Inside(store, "before").enter("b", stays)
    store.charge({"me"})
    inside.enter("b", stays)  # alone, so "a" is not there
