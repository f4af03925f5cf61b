"""Dispatch: full rows, fair shares; every recording ends once, whatever dies."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from forescribe.asr.records.record_store import MAX_CRASHES
from forescribe.cluster.dispatch import Dispatch


def dispatch(lengths: dict[str, float | None], *, workers: int = 1, **more) -> Dispatch:
    return Dispatch(lengths, workers=workers, **({"batch": 2} | more))


def test_a_worker_holds_three_batches_of_windows_of_different_recordings() -> None:
    work = dispatch({f"{n}": 20.0 for n in range(40)})
    assert len(work.assign(0)) == 6
    assert work.assign(0) == []
    assert work.finished(0, "0")
    assert work.assign(0) == ["6"]


def test_recordings_keep_their_order() -> None:
    work = dispatch({"b": 20.0, "c": 5.0, "a": 50.0}, batch=8)
    assert work.assign(0) == ["b", "c", "a"]


def test_a_long_recording_has_one_more_behind_it() -> None:
    work = dispatch({"a": 7200.0, "b": 3600.0, "c": 3600.0})
    assert work.assign(0) == ["a", "b"]


def test_nobody_keeps_a_recording_ahead_that_another_worker_could_begin() -> None:
    work = dispatch({"a": 7200.0, "b": 3600.0}, workers=2)
    assert work.assign(0) == ["a"]
    assert work.assign(1) == ["b"]


def test_the_last_recordings_are_shared_among_the_workers() -> None:
    work = dispatch({str(n): 20.0 for n in range(8)}, workers=4, batch=8)
    assert [len(work.assign(worker)) for worker in range(4)] == [2, 2, 2, 2]
    assert not work.waiting


def test_a_recording_of_unknown_length_counts_as_several_windows() -> None:
    work = dispatch({str(n): None for n in range(40)}, batch=4)
    assert len(work.assign(0)) == 3


def test_sequential_recordings_fill_a_row_each() -> None:
    work = dispatch({str(n): 3600.0 for n in range(40)}, batch=4, sequential=True)
    assert len(work.assign(0)) == 5


def test_what_a_worker_gives_back_goes_to_another() -> None:
    work = dispatch({str(n): 20.0 for n in range(4)}, batch=8)
    for path in work.assign(0):
        work.returned(0, path)
    assert not work.held(0)
    assert work.assign(1) == ["0", "1", "2", "3"]


def test_what_has_crashed_is_tried_alone() -> None:
    work = dispatch({name: 20.0 for name in "abcd"}, batch=8)
    assert len(work.assign(0)) == 4
    assert work.lost(0, crashed=True) == []
    for worker, name in enumerate("abcd", 1):
        assert work.assign(worker) == [name]
        assert work.assign(worker) == []
        assert work.finished(worker, name)
    assert not work.open


def test_the_poison_is_given_up_and_nobody_else_is_lost_with_it() -> None:
    work = dispatch({"good": 20.0, "poison": 20.0, "later": 20.0}, workers=2, batch=2)
    assert work.assign(0) == ["good", "poison"]
    assert work.lost(0, crashed=True) == []
    assert work.assign(1) == ["later"]  # what nobody crashed over comes first
    assert work.assign(1) == []  # it has something: a suspect comes alone
    assert work.assign(2) == ["good"] and work.assign(2) == []
    assert work.finished(2, "good")
    given_up = []
    for worker in range(3, 3 + MAX_CRASHES - 1):
        assert given_up == [] and work.assign(worker) == ["poison"]
        given_up = work.lost(worker, crashed=True)
    assert given_up == ["poison"] and work.crashes["poison"] == MAX_CRASHES
    assert work.finished(1, "later") and not work.finished(1, "later") and not work.open


def test_a_worker_that_is_taken_away_is_held_against_nothing() -> None:
    work = dispatch({"a": 20.0, "b": 20.0})
    assert work.assign(0) == ["a", "b"]
    assert work.lost(0, crashed=False) == [] and work.crashes.total() == 0
    assert work.assign(1) == ["a", "b"]


def test_what_earlier_runs_crashed_over_comes_alone_and_at_last() -> None:
    work = dispatch({"a": 20.0, "b": 20.0, "c": 20.0}, crashes={"a": MAX_CRASHES - 1})
    assert work.assign(0) == ["b", "c"]
    assert work.assign(1) == ["a"]
    assert work.lost(1, crashed=True) == ["a"]


@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.one_of(st.none(), st.floats(1, 9000)), min_size=1, max_size=30),
    poisons=st.sets(st.integers(0, 29), max_size=3),
    workers=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_nothing_is_lost_and_nothing_ends_twice(
    lengths: list[float | None], poisons: set[int], workers: int, seed: int
) -> None:
    """Workers die of poison always, once by chance, and are taken away now and then."""
    rng = random.Random(seed)
    bad = {str(n) for n in poisons if n < len(lengths)}
    work = dispatch({str(n): length for n, length in enumerate(lengths)}, workers=workers)
    ended: list[str] = []
    failed: list[str] = []
    cost: dict[str, int] = {}
    held: dict[int, list[str]] = {number: [] for number in range(workers)}
    chances, next_worker = 1, workers
    for _ in range(100_000):
        if not work.open:
            break
        worker = rng.choice(list(held))
        held[worker] += work.assign(worker)
        own = held[worker]
        if not own:
            continue
        victim = rng.choice(own)
        taken = rng.random() < 0.05
        by_chance = chances > 0 and rng.random() < 0.1
        if taken or by_chance or victim in bad:
            if not taken:
                chances -= by_chance and victim not in bad
                for path in own:
                    cost[path] = cost.get(path, 0) + 1
            failed += work.lost(worker, crashed=not taken)
            del held[worker]
            held[next_worker], next_worker = [], next_worker + 1
        else:
            assert work.finished(worker, victim)
            own.remove(victim)
            ended.append(victim)
    assert sorted(ended + failed) == sorted(str(n) for n in range(len(lengths)))
    assert set(failed) == bad  # in the company of poison once and unlucky once is not three times
    assert all(cost[path] == MAX_CRASHES for path in bad)
