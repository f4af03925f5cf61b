"""What a key may do, and how much of it at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from forescribe.api.access.keys import SCOPES, Rights, digest, new_key
from forescribe.api.app import create_app
from forescribe.api.dependencies import NEEDS
from forescribe.api.settings import Settings
from tests.api.conftest import FORM, TRANSCRIBE, keyed, sound

KEY, OTHER = new_key(), new_key()


def test_every_private_route_needs_a_scope_or_says_that_it_needs_none() -> None:
    paths = create_app(Settings(jobs=False)).openapi()["paths"].values()
    tags = {one["tags"][0] for path in paths for one in path.values()}
    assert {"audio", "text", "operations", "models", "endpoints"} <= tags
    assert tags - {"health", "page"} <= set(NEEDS)
    assert set(NEEDS.values()) == {*SCOPES, None}


def test_a_key_is_for_its_scopes(service) -> None:
    client = service(api_keys={"scrape": {"hashes": [digest(KEY)], "scopes": ["metrics"]}})
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
            "over": {"hashes": [digest(KEY)], "expires": "2020-01-01"},
            "new": {"hashes": [digest(OTHER)], "expires": "2999-01-01"},
        }
    )
    assert client.get("/v1/models", headers=keyed(KEY)).status_code == 401
    assert client.get("/v1/models", headers=keyed(OTHER)).status_code == 200


def test_metrics_are_for_nobody_outside(service) -> None:
    """Without keys, in a house that is open: a stranger's address, and a proxy's."""
    client = service(host="0.0.0.0", open_to_all=True)
    assert client.get("/metrics").status_code == 403
    assert client.get("/v1/models").status_code == 200
    assert service().get("/metrics").status_code == 200  # listens to this machine only


@pytest.mark.parametrize(
    "rights",
    [
        {"hashes": [digest(KEY)], "scopes": ["everything"]},
        {"hashes": [digest(KEY)], "max_requests": 0},
        {"hashes": [digest(KEY)], "sudo": True},
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
