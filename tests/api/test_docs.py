"""The API description: served without other hosts, needs a key, and describes keys correctly."""

from __future__ import annotations

import base64
import re

import pytest
from fastapi.testclient import TestClient

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.settings import Settings
from tests import browser as browsing
from tests.api.jobs.application import application

browser = browsing.browser

KEY = new_key()
FILES = (
    "/docs",
    "/docs/start.js",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/openapi.json",
)


def client(**given) -> TestClient:
    app = create_app(Settings(**{"model": "random", "jobs": False, **given}))
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def keyed() -> TestClient:
    return client(api_keys={"team": digest(KEY)})


@pytest.fixture(scope="module")
def keyless() -> TestClient:
    return client()


def basic(password: str) -> dict[str, str]:
    told = base64.b64encode(f"anybody:{password}".encode()).decode()
    return {"Authorization": f"Basic {told}"}


def test_nothing_is_loaded_from_elsewhere(keyless) -> None:
    page = keyless.get("/docs")
    for address in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert "//" not in address and keyless.get(f"/{address}").status_code == 200, address
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert len(keyless.get("/docs/swagger-ui-bundle.js").content) > 1_000_000
    for path in ("/docs/nothing.js", "/docs/..%2Fcore.py", "/docs/redoc.standalone.js", "/redoc"):
        assert keyless.get(path).status_code == 404, path


def test_where_keys_are_set_it_wants_one(keyed) -> None:
    for path in FILES:
        for headers in (
            {},
            basic(new_key()),
            {"Authorization": "Basic ?"},
            {"Authorization": "Basic \xff"},
        ):
            sent = {name: value.encode("latin-1") for name, value in headers.items()}
            refused = keyed.get(path, headers=sent)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"].startswith("Basic ")
        for headers in (basic(KEY), {"Authorization": f"Bearer {KEY}"}):
            assert keyed.get(path, headers=headers).status_code == 200, path


def test_other_routes_take_no_password(keyed) -> None:
    """A browser sends it by itself, whichever page has asked."""
    for path in ("/v1/models", "/metrics"):
        answer = keyed.get(path, headers=basic(KEY))
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


def test_every_operation_says_whether_it_wants_a_key(keyless, tmp_path) -> None:
    """Those of jobs and uploads too; nothing is started, so an admitted request would fail."""
    keyed = application(tmp_path, None, None, api_keys={"team": digest(KEY)})
    told = keyed.app.openapi()
    assert "/v1/jobs/{id}/audio" in told["paths"] and "/v1/uploads/{id}" in told["paths"]
    assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in told["paths"].items():
        for verb, operation in operations.items():
            wanted = [] if path in ("/health", "/ready") else [{"key": []}]
            assert operation["security"] == wanted, (verb, path)
            for value in ("", "Bearer", f"Bearer {new_key()}", f"Basic {KEY}"):
                answer = keyed.request(verb, path, headers={"Authorization": value})
                assert (answer.status_code == 401) is bool(wanted), (verb, path, value)
                assert not wanted or answer.headers["www-authenticate"] == "Bearer"
    assert keyed.get("/").status_code == 200
    plain = keyless.app.openapi()["paths"]
    assert all(op["security"] == [] for path in plain.values() for op in path.values())
