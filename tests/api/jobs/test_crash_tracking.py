"""CrashTracker: who may have killed a process, who has to wait, and who is blamed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from forescribe.api.jobs.active import CrashTracker
from forescribe.api.jobs.store import Store
from forescribe.api.jobs.tables import NewJob
from tests.api.conftest import until


class Gone(Exception):
    """Nobody waits for the job any more."""


def still_wanted() -> None:
    """It is still wanted."""


@pytest.fixture
def store(tmp_path):
    made = Store.open(tmp_path)
    with made.transaction() as tx:
        for name in "abcd":
            made.jobs.insert(tx, NewJob(name, "", None, 60.0, {}, {}))
    yield made
    made.close()


def crashes(store: Store, job: str) -> int:
    found = store.jobs.get(job)
    assert found is not None
    return found.crashes


def got_on(store: Store, tracker: CrashTracker, job: str) -> None:
    with store.transaction() as tx:
        store.jobs.set_progress(tx, job, 1.0)
    tracker.progressed(job)


def waiting(
    tracker: CrashTracker, job: str, gone: Callable[[], None] = still_wanted
) -> threading.Thread:
    thread = threading.Thread(target=tracker.expose, args=(job, gone))
    thread.start()
    return thread


def test_only_those_inside_are_suspects_of_a_death(store) -> None:
    first = CrashTracker(store, "first")
    for job in "abc":
        first.expose(job, still_wanted)
    first.withdraw("c")
    assert store.crashes.count_deaths({"second"}) == [
        ("a", 1),
        ("b", 1),
    ]  # d was waiting
    assert [store.crashes.deaths(job) for job in "abcd"] == [1, 1, 0, 0]
    assert [crashes(store, job) for job in "abcd"] == [0] * 4  # either of the two may be the cause
    assert store.crashes.count_deaths({"second"}) == []  # once


def test_a_living_process_is_no_death(store) -> None:
    CrashTracker(store, "first").expose("a", still_wanted)
    assert store.crashes.count_deaths({"first", "second"}) == [] and store.crashes.deaths("a") == 0


def test_a_process_that_ends_on_purpose_blames_nobody(store) -> None:
    tracker = CrashTracker(store, "first")
    tracker.expose("a", still_wanted)
    tracker.end()
    tracker.expose("b", still_wanted)  # as the draining goes on
    assert store.crashes.count_deaths({"second"}) == []


def test_a_suspect_is_alone_until_it_gets_on(store) -> None:
    before = CrashTracker(store, "before")
    before.expose("a", still_wanted)
    store.crashes.count_deaths({"me"})
    tracker = CrashTracker(store, "me")
    tracker.expose("a", still_wanted)
    other = waiting(tracker, "b")
    other.join(0.2)
    assert other.is_alive()
    got_on(store, tracker, "a")
    other.join(10)
    assert not other.is_alive() and store.crashes.deaths("a") == 0
    store.crashes.count_deaths(set())
    assert crashes(store, "a") == crashes(store, "b") == 0  # they were together again


def test_a_death_alone_is_the_jobs_own_and_progress_clears_it(store) -> None:
    for n in range(3):
        tracker = CrashTracker(store, f"process {n}")
        tracker.expose("a", still_wanted)
        store.crashes.count_deaths(set())
    assert (store.crashes.deaths("a"), crashes(store, "a")) == (
        3,
        2,
    )  # the first one had no suspect yet
    got_on(store, CrashTracker(store, "me"), "a")
    assert (store.crashes.deaths("a"), crashes(store, "a")) == (0, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_beside_a_suspect_may_be_to_blame_as_well(store, when) -> None:
    CrashTracker(store, "before").expose("a", still_wanted)
    store.crashes.count_deaths(set())
    tracker = CrashTracker(store, "me", other_requests=lambda: when == "before")
    tracker.expose("a", still_wanted)
    if when == "after":
        tracker.request_joined()
    store.crashes.count_deaths(set())
    assert (store.crashes.deaths("a"), crashes(store, "a")) == (2, 0)


def test_suspects_go_first_one_at_a_time_those_with_the_fewest_deaths_before_others(store) -> None:
    for n, jobs in enumerate(("a", "ab")):
        tracker = CrashTracker(store, f"process {n}")
        for job in jobs:
            store.crashes.expose(tracker.executor, job, alone=False)
        store.crashes.count_deaths(set())
    asked: list[str] = []
    tracker = CrashTracker(
        store, "me", make_way=lambda job: (asked.append(job), tracker.withdraw(job))
    )
    tracker.expose("c", still_wanted)  # no suspect, and no other job is exposed
    order: list[str] = []

    def work(job: str) -> None:
        tracker.expose(job, still_wanted)
        order.append(job)

    threads = [threading.Thread(target=work, args=(job,)) for job in "ab"]
    with tracker._changed:  # both are in line before either is let in
        for thread in threads:
            thread.start()
    until(lambda: order == ["b"])
    assert asked and set(asked) == {"c"}
    late = waiting(tracker, "d")
    tracker.withdraw("b")
    until(lambda: order == ["b", "a"])
    assert late.is_alive()
    tracker.withdraw("a")
    for thread in (*threads, late):
        thread.join(10)
        assert not thread.is_alive()


def test_who_is_not_wanted_any_more_waits_no_longer(store) -> None:
    CrashTracker(store, "before").expose("a", still_wanted)
    store.crashes.count_deaths(set())
    tracker = CrashTracker(store, "me")
    tracker.expose("b", still_wanted)

    def gone() -> None:
        raise Gone

    with pytest.raises(Gone):
        tracker.expose("a", gone)
    tracker.expose("c", still_wanted)  # and blocks no other job


def test_a_row_that_could_not_be_taken_back_goes_later(store, monkeypatch) -> None:
    tracker = CrashTracker(store, "me")
    tracker.expose("a", still_wanted)
    tracker.expose("b", still_wanted)
    with monkeypatch.context() as away:
        away.setattr(store.crashes, "withdraw", lambda *_: 1 / 0)
        tracker.withdraw("a")
    tracker.sync()
    assert store.crashes.count_deaths(set()) == [("b", 1)]


def test_who_cannot_be_put_on_record_is_not_inside(store, monkeypatch) -> None:
    tracker = CrashTracker(store, "me")
    with monkeypatch.context() as away:
        away.setattr(store.crashes, "expose", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tracker.expose("a", still_wanted)
    CrashTracker(store, "before").expose("b", still_wanted)
    store.crashes.count_deaths({"me"})
    tracker.expose("b", still_wanted)  # alone, so "a" is not there
