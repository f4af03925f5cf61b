"""The description against the service: whatever fits it, or just does not, is answered as it says.

A short form of what schemathesis can do, and every night a long one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from forescribe.api.access.keys import digest, new_key
from forescribe.api.app import create_app
from forescribe.api.errors import STATUS
from forescribe.api.http.openapi import METHODS, statuses
from forescribe.api.jobs.service import Jobs
from forescribe.api.jobs.store import Store
from forescribe.api.settings import Settings
from forescribe.api.speech.serving import Serving
from tests.api.conftest import Halves, served, until

PATIENCE_S = 300
"""The decoders may still be loading."""

MANY = 100
"""Of each operation, with keys and without."""

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def described():
    return create_app(Settings(jobs=False)).openapi()


def test_every_status_that_an_error_may_have_is_described(described) -> None:
    told = {
        int(status)
        for path in described["paths"].values()
        for method, operation in path.items()
        if method in METHODS
        for status in operation["responses"]
    }
    job_only = {409, 412, 422, 423, 428}
    assert set(STATUS.values()) - job_only <= told
    assert job_only <= set(statuses("post", ["jobs"]))


KEY = new_key()


@pytest.fixture(
    scope="module", params=["without keys", pytest.param("with keys", marks=pytest.mark.slow)]
)
def running(request, transcriber, decoders, tmp_path_factory) -> Iterator[tuple[BaseSchema, str]]:
    """A service on this machine's network, and its address. Not in memory: schemathesis would end it
    with each test."""
    folder = tmp_path_factory.mktemp("jobs")
    keys = {"team": digest(KEY)} if request.param == "with keys" else {}
    given = Settings(
        model="random", diarizer="none", data_dir=folder, min_free_bytes=0, drain_s=0, api_keys=keys
    )
    serving, store = Serving(given, lambda: transcriber, Halves, decoders), Store.open(folder)
    app = create_app(given, serving, Jobs(given, serving, store))
    with served(app) as url:
        until(lambda: serving.life.state == "ready")
        yield schemathesis.openapi.from_dict(app.openapi()), url


@pytest.mark.parametrize("examples", [3, pytest.param(MANY, marks=pytest.mark.nightly)])
def test_no_request_meets_a_fault(running, examples) -> None:
    """Statuses and bodies are those of the description, and none is a fault of the server's."""
    schema, address = running
    for path, operations in schema.items():
        for method in operations:
            _ask(schema[path][method], address, examples)


def _ask(operation: APIOperation, address: str, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < MANY,  # CI's are always the same
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def look(case) -> None:
        keyed = {"Authorization": f"Bearer {KEY}"}  # of no use where there are none, and of no harm
        response = case.call(base_url=address, timeout=PATIENCE_S, headers=keyed)
        case.validate_response(response, checks=CHECKS)

    look()
