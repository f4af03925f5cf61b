"""A route that is gone says what to use instead."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from forescribe.api.errors import ApiError
from forescribe.api.routers import gone


@pytest.mark.parametrize("path", ["/v1/old", "/v1/old/anything/below"])
def test_a_route_that_is_gone_names_its_successor(monkeypatch, path) -> None:
    rows = {"/v1/old": "use /v1/new", "/v1/old/{rest:path}": "use /v1/new"}
    monkeypatch.setattr(gone, "GONE", rows)
    app = FastAPI()
    app.add_exception_handler(ApiError, lambda request, error: error.response())
    app.include_router(gone.routes())
    answer = TestClient(app).post(path)
    assert answer.status_code == 410
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("gone", "invalid_request_error")
    assert error["message"].endswith("is gone: use /v1/new")
