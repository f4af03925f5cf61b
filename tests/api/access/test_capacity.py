"""Admission: the limits hold, in whatever order requests start and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.api.access.capacity import MAX_RETRY_AFTER_S, Admission
from forescribe.api.errors import ApiError
from forescribe.api.settings import Settings


def house(**limits) -> Admission:
    return Admission(Settings(**{"max_requests": 3, "max_requests_per_key": 2, **limits}))


def refused(act) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    assert 1 <= caught.value.retry_after <= MAX_RETRY_AFTER_S
    return caught.value


def test_a_full_house_takes_nobody_until_somebody_leaves() -> None:
    full = house()
    places = [full.start(name, keyed=True) for name in ("a", "b", "c")]
    assert refused(lambda: full.start("d", keyed=True)).code == "overloaded"
    places[0].release()
    full.start("d", keyed=True)


def test_a_key_has_its_share_and_no_more() -> None:
    full = house()
    first, _ = full.start("a", keyed=True), full.start("a", keyed=True)
    assert refused(lambda: full.start("a", keyed=True)).code == "rate_limited"
    full.start("b", keyed=True)
    first.release()
    full.start("a", keyed=True)


def test_where_there_are_no_keys_nobody_has_a_share() -> None:
    full = house()
    for _ in range(3):
        full.start("", keyed=False)
    assert refused(lambda: full.start("", keyed=False)).code == "overloaded"


def test_audio_counts_until_it_is_decoded() -> None:
    full = house(max_queued_audio_s=100)
    first, second = full.start("a", keyed=True), full.start("b", keyed=True)
    first.add_audio(80)
    assert refused(lambda: second.add_audio(30)).code == "overloaded"
    first.progressed(20)
    second.add_audio(30)
    assert full.seconds == 90
    first.progressed(80)
    assert full.seconds == 30


def test_one_long_recording_may_come_into_an_empty_house() -> None:
    full = house(max_queued_audio_s=100)
    full.start("a", keyed=True).add_audio(500)
    assert refused(lambda: full.start("b", keyed=True)).code == "overloaded"


def test_the_wait_is_longer_where_more_is_queued_and_shorter_where_it_goes_fast() -> None:
    def wait(pace: float, seconds: float) -> int:
        full = house(max_requests=1)
        full.start("a", keyed=True).add_audio(seconds)
        for _ in range(50):
            full.record_speed(pace, 1.0)
        return refused(lambda: full.start("b", keyed=True)).retry_after

    assert wait(1, 100) > wait(10, 100) > wait(10, 10) >= 1
    assert wait(0.001, 1e6) == MAX_RETRY_AFTER_S


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 200)), max_size=60))
def test_the_counts_are_those_of_who_is_inside(steps) -> None:
    full, inside = house(max_queued_audio_s=300), {}
    for who, seconds in steps:
        if who in inside:
            inside.pop(who).release()
            continue
        try:
            place = full.start(str(who), keyed=True)
        except ApiError:
            continue
        try:
            place.add_audio(seconds)
            inside[who] = place
        except ApiError:
            place.release()
        assert full.requests == len(inside) <= 3
    for place in inside.values():
        place.release()
        place.release()  # twice does nothing
        place.progressed(10)
    assert full.requests == 0 and full.seconds == 0
