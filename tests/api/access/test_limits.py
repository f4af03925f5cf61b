"""What a key may do, and how much of it: scopes, expiry, requests and audio in a minute and an hour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forescribe.api.access.keys import SCOPES, Rights, digest, new_key
from forescribe.api.access.limits import STEPS, Admission, Client, RateLimit, duration
from forescribe.api.app import create_app
from forescribe.api.dependencies import NEEDS
from forescribe.api.errors import ApiError
from forescribe.api.settings import Settings
from tests.api.conftest import FORM, TRANSCRIBE, keyed, sound

KEY, OTHER = new_key(), new_key()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


# -- meters ----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0.01, 20), st.floats(0.1, 12)), max_size=60),
    st.floats(1, 30),
    st.sampled_from([60.0, 3600.0]),
)
def test_no_window_ever_holds_more_than_the_most(events, most, window_s) -> None:
    """A client that waits for `Retry-After` is served, and never beyond the limit."""
    meter, now, had = RateLimit(most, window_s), 0.0, []
    for gap, amount in events:
        now += gap
        wait_s = meter.wait_s(amount, now)
        if amount > most:
            assert wait_s == float("inf")
            continue
        assert 0 <= wait_s <= window_s * (1 + 1 / STEPS) + 1e-6
        now += wait_s
        assert meter.wait_s(amount, now + 1e-6) == 0
        now += 1e-6
        meter.add(amount, now)
        had.append((now, amount))
        inside = sum(a for t, a in had if t > now - window_s)
        assert inside <= most + 1e-3


def test_a_meter_is_small() -> None:
    meter = RateLimit(1e9, 60)
    for i in range(10_000):
        meter.wait_s(1, i * 0.05)
        meter.add(1, i * 0.05)
    assert len(meter._steps) <= STEPS + 2


# -- admission -------------------------------------------------------------------------------------


def house(**rights) -> tuple[Admission, Clock]:
    clock = Clock()
    settings = Settings(api_keys={"team": {"hash": digest(KEY), **rights}, "free": digest(OTHER)})
    return Admission(settings, clock), clock


def refused(act) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value


def test_so_many_requests_in_a_minute() -> None:
    admission, clock = house(requests_per_minute=3)
    for _ in range(3):
        admission.start(Client("team")).release()
    error = refused(lambda: admission.start(Client("team")))
    assert error.code == "rate_limited" and 55 <= error.retry_after <= 61
    assert admission.requests == 0
    admission.start(Client("free")).release()  # another key's limits are its own
    clock.now += error.retry_after
    admission.start(Client("team")).release()


def test_so_much_audio_in_an_hour() -> None:
    admission, clock = house(audio_s_per_hour=100)
    with_place = [admission.start(Client("team")) for _ in range(3)]
    with_place[0].add_audio(60)
    error = refused(lambda: with_place[1].add_audio(60))
    assert error.code == "rate_limited" and error.retry_after > 3000
    assert admission.seconds == 60  # what was refused is not queued
    assert (
        refused(lambda: with_place[1].add_audio(101)).code == "audio_too_long"
    )  # and never will be
    clock.now += error.retry_after
    with_place[2].add_audio(60)


def test_a_keys_own_share_of_what_is_under_way() -> None:
    admission, _ = house(max_requests=1)
    admission.start(Client("team"))
    assert "1 requests" in refused(lambda: admission.start(Client("team"))).message
    for _ in range(2):
        admission.start(Client("free"))


# -- routes ----------------------------------------------------------------------------------------


def test_every_private_route_needs_a_scope_or_says_that_it_needs_none() -> None:
    paths = create_app(Settings(jobs=False)).openapi()["paths"].values()
    tags = {one["tags"][0] for path in paths for one in path.values()}
    assert {"audio", "text", "operations", "models", "endpoints"} <= tags
    assert tags - {"health", "page"} <= set(NEEDS)
    assert set(NEEDS.values()) == {*SCOPES, None}


def test_a_key_is_for_its_scopes(service) -> None:
    client = service(api_keys={"scrape": {"hash": digest(KEY), "scopes": ["metrics"]}})
    assert client.get("/metrics", headers=keyed(KEY)).status_code == 200
    assert client.get("/v1/models", headers=keyed(KEY)).status_code == 200
    for path in (TRANSCRIBE, "/predict", "/v1/completions"):
        answer = client.post(path, files={"file": sound(1)}, data=FORM, headers=keyed(KEY))
        assert answer.status_code == 403
        told = answer.json()
        assert "detail" in told or told["error"]["code"] == "forbidden"


def test_a_key_that_is_over_is_none(service) -> None:
    client = service(
        api_keys={
            "over": {"hash": digest(KEY), "expires": "2020-01-01"},
            "new": {"hash": digest(OTHER), "expires": "2999-01-01"},
        }
    )
    assert client.get("/v1/models", headers=keyed(KEY)).status_code == 401
    assert client.get("/v1/models", headers=keyed(OTHER)).status_code == 200


def test_what_is_left_of_a_limit_is_in_the_headers(service) -> None:
    limits = {
        "requests_per_minute": 3,
        "requests_per_hour": 100,
        "audio_s_per_hour": 10.5,
        "tokens_per_minute": 50,
    }
    client = service(api_keys={"team": {"hash": digest(KEY), **limits}, "free": digest(OTHER)})

    def post(seconds: float, key: str = KEY):
        files = {"file": sound(seconds)}
        return client.post(TRANSCRIBE, files=files, data=FORM, headers=keyed(key))

    def told(answer) -> dict[str, str]:
        prefix = "x-ratelimit-"
        return {k.removeprefix(prefix): v for k, v in answer.headers.items() if prefix in k}

    first = told(post(4))
    assert (first["limit-requests"], first["remaining-requests"]) == ("3", "2")
    assert (first["limit-audio-seconds"], first["remaining-audio-seconds"]) == ("10.5", "6.5")
    assert (first["limit-tokens"], first["remaining-tokens"], first["reset-tokens"]) == (
        "50",
        "50",
        "0s",
    )
    for name, most in (("requests", 62), ("audio-seconds", 3662)):
        assert 0 < seconds(first[f"reset-{name}"]) <= most
    assert told(post(4))["remaining-requests"] == "1"
    refused = post(4)  # by the audio
    assert refused.status_code == 429 and told(refused)["remaining-audio-seconds"] == "2.5"
    refused = post(1)  # by the requests, before the body is read
    assert refused.status_code == 429 and told(refused)["remaining-requests"] == "0"
    assert told(post(1, OTHER)) == {}
    assert told(client.get("/v1/models", headers=keyed(KEY))) == {}
    admission = client.app.state.serving.admission  # who was refused is not inside
    assert (admission.requests, admission.seconds) == (0, 0)


def seconds(text: str) -> float:
    """A duration of the headers."""
    total = 0.0
    for part, unit in re.findall(r"([0-9.]+)([hms])", text):
        total += float(part) * {"h": 3600, "m": 60, "s": 1}[unit]
    return total


@given(st.floats(0, 1e6))
def test_durations_are_written_as_openai_writes_them(value) -> None:
    text = duration(value)
    assert re.fullmatch(r"((\d+h)?\d+m)?\d+(\.\d)?s", text)
    assert value - 1e-6 <= seconds(text) <= value + 0.11
    assert [duration(s) for s in (0, 1, 59.5, 360, 3723)] == ["0s", "1s", "59.5s", "6m0s", "1h2m3s"]


def test_metrics_are_for_nobody_outside(service) -> None:
    """Without keys, in a house that is open: a stranger's address, and a proxy's."""
    client = service(host="0.0.0.0", open_to_all=True)
    assert client.get("/metrics").status_code == 403
    assert client.get("/v1/models").status_code == 200
    assert service().get("/metrics").status_code == 200  # listens to this machine only


@pytest.mark.parametrize(
    "rights",
    [
        {"hash": digest(KEY), "scopes": ["everything"]},
        {"hash": digest(KEY), "audio_s_per_hour": 0},
        {"hash": digest(KEY), "sudo": True},
        {"hashes": []},
        {},
        5,
    ],
)
def test_rights_that_make_no_sense_are_refused(rights) -> None:
    with pytest.raises(ValueError, match="team"):
        Settings(api_keys={"team": rights})


def test_scopes_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    assert all(f"| `{scope}` |" in text for scope in SCOPES)
    assert all(f"{right} = " in text for right in Rights.model_fields)
