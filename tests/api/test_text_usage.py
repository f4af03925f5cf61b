"""Tokens of texts: counted per key at their end, limited per minute, and refused beyond a quota."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from forescribe.api.access.keys import digest, new_key
from forescribe.api.access.usage import Usage
from forescribe.api.jobs.database import Database
from forescribe.api.settings import Settings
from tests.api.conftest import until
from tests.api.test_text import app_of
from tests.text.language_models import write

KEY, LIMITED = new_key(), new_key()
COMPLETE = "/v1/completions"


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("text")
    keys = {
        "team": {"hash": digest(KEY), "tokens_per_day": 40},
        "limited": {"hash": digest(LIMITED), "tokens_per_minute": 30},
    }
    model = write(folder / "target")
    settings = Settings(
        text_model=str(model), text_draft="none", api_keys=keys, device="cpu", drain_s=0
    )
    usage = Usage(Database.open(f"sqlite:///{folder / 'jobs.db'}"), settings.rights)
    app = app_of(settings, usage=usage)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        until(lambda: app.state.text_serving.state == "ready", 240)
        yield client


def post(client: TestClient, key: str, tokens: int, **more):
    body = {"model": "target", "prompt": "one two", "max_tokens": tokens, "seed": 1, **more}
    return client.post(COMPLETE, json=body, headers={"Authorization": f"Bearer {key}"})


def used(client: TestClient, key: str) -> tuple[int, int]:
    answer = client.get("/v1/usage", headers={"Authorization": f"Bearer {key}"}).json()
    return answer["day"]["used"]["requests"], answer["day"]["used"]["tokens"]


def test_tokens_are_counted_and_refused_beyond_the_quota(client) -> None:
    answer = post(client, KEY, 8)
    assert answer.status_code == 200
    total = answer.json()["usage"]["total_tokens"]
    until(lambda: used(client, KEY) == (1, total))
    with client.stream(
        "POST",
        COMPLETE,
        json={
            "model": "target",
            "prompt": "one two",
            "max_tokens": 8,
            "seed": 1,
            "stream": True,
        },
        headers={"Authorization": f"Bearer {KEY}"},
    ) as stream:
        assert b"[DONE]" in stream.read()
    until(lambda: used(client, KEY) == (2, 2 * total))
    assert post(client, KEY, 40).status_code == 200
    until(lambda: used(client, KEY)[0] == 3)
    while (answer := post(client, KEY, 40)).status_code == 200:
        assert used(client, KEY)[0] < 20
    assert answer.json()["error"]["code"] == "insufficient_quota"
    until(lambda: used(client, KEY)[1] >= 40)


def test_tokens_of_a_minute_are_limited(client) -> None:
    first = post(client, LIMITED, 8)
    prompt = first.json()["usage"]["prompt_tokens"]
    assert first.headers["x-ratelimit-limit-tokens"] == "30"
    assert first.headers["x-ratelimit-remaining-tokens"] in (
        str(30 - prompt),
        str(30 - first.json()["usage"]["total_tokens"]),
    )
    answers = [post(client, LIMITED, 16) for _ in range(6)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused and refused[0].json()["error"]["code"] == "rate_limited"
    assert int(refused[0].headers["retry-after"]) >= 1
    too_long = post(client, LIMITED, 1, prompt="word " * 60)
    assert too_long.status_code == 400 and too_long.json()["error"]["param"] == "prompt"
