"""The schedule: longest first, a few per worker, nothing lost with a worker, no crash for ever."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forescribe.asr.batch.work_schedule import MAX_CRASHES, Schedule, Work


def works(*weights: float) -> list[Work]:
    return [Work(f"{number}.mp3", weight) for number, weight in enumerate(weights)]


def test_the_longest_comes_first_and_a_worker_has_two() -> None:
    schedule = Schedule(works(1, 5, 3))
    assert [schedule.take("w").source, schedule.take("w").source] == ["1.mp3", "2.mp3"]
    assert schedule.take("w") is None and schedule.take("v").source == "0.mp3"
    assert schedule.done("w", "1.mp3") and not schedule.done("w", "1.mp3")
    assert schedule.take("w") is None and schedule.holds("w") == ("2.mp3",)


def test_equal_weights_keep_their_order() -> None:
    schedule = Schedule(works(2, 2, 2), in_flight=3)
    assert [schedule.take("w").source for _ in range(3)] == ["0.mp3", "1.mp3", "2.mp3"]


def test_the_work_of_a_preempted_worker_goes_on_at_another() -> None:
    schedule = Schedule(works(9, 8, 1, 1))
    schedule.take("w"), schedule.take("w")
    assert schedule.lost("w", crashed=False) == [] and schedule.waiting == 4
    assert schedule.take("v").source == "0.mp3"


def test_after_a_crash_each_is_tried_alone_and_the_poison_is_given_up() -> None:
    schedule = Schedule(works(9, 8, 1))
    schedule.take("w"), schedule.take("w")  # 0 and 1; 1 is the poison
    assert schedule.lost("w", crashed=True) == []
    assert schedule.take("v").source == "2.mp3"  # what nobody crashed over comes first
    assert schedule.take("v") is None  # it has something: a suspect comes alone
    assert schedule.take("u").source == "0.mp3" and schedule.take("u") is None
    schedule.done("u", "0.mp3")
    given_up = []
    for worker in "abcd":
        if schedule.take(worker) is None:
            break
        given_up += schedule.lost(worker, crashed=True)
    assert [work.source for work in given_up] == ["1.mp3"]
    assert schedule.crashes["1.mp3"] == MAX_CRASHES
    schedule.done("v", "2.mp3")
    assert not schedule.open


def test_a_straggler_is_repeated_once_by_a_worker_with_nothing_to_do() -> None:
    schedule = Schedule(works(9), repeat_after_s=180)
    schedule.take("slow", 0.0)
    assert schedule.take("idle", 179.0) is None
    assert schedule.take("idle", 180.0).source == "0.mp3"
    assert schedule.take("third", 999.0) is None
    assert schedule.done("idle", "0.mp3") and not schedule.done("slow", "0.mp3")
    assert schedule.lost("slow", crashed=True) == [] and not schedule.open


@given(
    weights=st.lists(st.floats(0, 100), max_size=30),
    seed=st.integers(0, 999),
    bad=st.integers(0, 3),
)
def test_everything_ends_once_whatever_happens_to_workers(weights, seed, bad) -> None:
    draw = random.Random(seed)
    schedule = Schedule(works(*weights), in_flight=draw.randint(1, 3), repeat_after_s=5)
    poison = {f"{n}.mp3" for n in range(bad)}
    ended: Counter[str] = Counter()
    number, now = 3, 0.0
    workers = {"w0", "w1", "w2"}
    while schedule.open:
        now += 1
        assert now < 10_000
        worker = draw.choice(sorted(workers))
        schedule.take(worker, now)
        held = schedule.holds(worker)
        if held and poison & set(held):
            ended.update(w.source for w in schedule.lost(worker, crashed=True))
        elif draw.random() < 0.1:
            assert schedule.lost(worker, crashed=False) == []
        elif held and draw.random() < 0.5:
            ended[held[0]] += schedule.done(worker, held[0])
            continue
        else:
            continue
        workers = workers - {worker} | {f"w{number}"}
        number += 1
    assert ended == Counter(work.source for work in works(*weights))
