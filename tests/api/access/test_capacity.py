"""Admission: the limits hold, in whatever order requests start and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.api.access import limits
from forescribe.api.access.limits import Admission, Client, network
from forescribe.api.errors import ApiError
from forescribe.api.settings import Settings


def house(**limits) -> Admission:
    return Admission(Settings(**{"max_requests": 3, "max_requests_per_key": 2, **limits}))


def refused(act) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    assert caught.value.retry_after >= 1
    return caught.value


def test_a_full_house_takes_nobody_until_somebody_leaves() -> None:
    full = house()
    places = [full.start(Client(name)) for name in ("a", "b", "c")]
    assert refused(lambda: full.start(Client("d"))).code == "overloaded"
    places[0].release()
    full.start(Client("d"))


def test_a_key_has_its_share_and_no_more() -> None:
    full = house()
    first, _ = full.start(Client("a")), full.start(Client("a"))
    assert refused(lambda: full.start(Client("a"))).code == "rate_limited"
    full.start(Client("b"))
    first.release()
    full.start(Client("a"))


@pytest.mark.parametrize("client", [Client("team"), Client("", "203.0.113.9")])
def test_a_client_has_its_share_of_uploads_and_takes_nobody_elses(client, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_UPLOADS_PER_ADDRESS", 2)
    full = house(max_uploads=9)
    full.reserve(Client("", "203.0.113.10"))
    first, _ = full.reserve(client), full.reserve(client)
    error = refused(lambda: full.reserve(client))
    assert error.code == "rate_limited" and "2" in error.message
    first.release()
    full.reserve(client)
    full.reserve(Client("other"))


def test_clients_whose_address_is_unknown_have_no_share(monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_UPLOADS_PER_ADDRESS", 1)
    full = house()
    full.reserve(Client())
    full.reserve(Client())
    assert full.uploads == 2


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1%eth0", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_an_ipv6_network_is_one_client(host, name) -> None:
    assert Client("", network(host)).name == name


def test_audio_counts_until_it_is_decoded() -> None:
    full = house(max_queued_audio_s=100)
    first, second = full.start(Client("a")), full.start(Client("b"))
    first.add_audio(80)
    assert refused(lambda: second.add_audio(30)).code == "overloaded"
    first.progressed(20)
    second.add_audio(30)
    assert full.seconds == 90
    first.progressed(80)
    assert full.seconds == 30


def test_one_long_recording_may_come_into_an_empty_house() -> None:
    full = house(max_queued_audio_s=100)
    full.start(Client("a")).add_audio(500)
    assert refused(lambda: full.start(Client("b"))).code == "overloaded"


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 200)), max_size=60))
def test_the_counts_are_those_of_who_is_inside(steps) -> None:
    full, inside = house(max_queued_audio_s=300), {}
    for who, seconds in steps:
        if who in inside:
            inside.pop(who).release()
            continue
        try:
            place = full.start(Client(str(who)))
        except ApiError:
            continue
        try:
            place.add_audio(seconds)
            inside[who] = place
        except ApiError:
            place.release()
        assert full.requests == len(inside) <= 3
        assert full.uploads == 0
    for place in inside.values():
        place.release()
        place.release()  # twice does nothing
        place.progressed(10)
    assert full.requests == 0 and full.seconds == 0
