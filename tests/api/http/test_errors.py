"""Errors: one body, one status for each code, nothing that is only ours to know."""

from __future__ import annotations

from typing import get_args

import pytest

from forescribe.api.errors import STATUS, ApiError
from forescribe.asr.errors import AudioError, CapacityError, Code, ModelError, OutputError
from tests.api.contract import conforms


@pytest.mark.parametrize("code", get_args(Code))
def test_every_code_of_the_package_has_a_status(code) -> None:
    assert 400 <= STATUS[code] < 600


@pytest.mark.parametrize("code", STATUS)
def test_every_error_has_openais_body(code) -> None:
    error = ApiError(code, "what is wrong", param="file")
    conforms(error.body(), "ErrorResponse")
    kinds = {429: "rate_limit_error"}
    expected = kinds.get(error.status, "server_error" if error.status >= 500 else None)
    assert error.kind == (expected or "invalid_request_error")


@pytest.mark.parametrize(
    "code", [code for code, status in STATUS.items() if status in (429, 503, 507)]
)
def test_who_should_come_again_is_told_when(code) -> None:
    assert int(ApiError(code, "").headers()["Retry-After"]) >= 1
    assert ApiError(code, "", retry_after=0).headers()["Retry-After"] == "1"


def test_who_need_not_come_again_is_not_told_to() -> None:
    """OpenAI's SDKs send 408, 409, 429 and 5xx again: a bad upload would come three times."""
    for code in (
        "empty_file",
        "invalid_audio",
        "file_too_large",
        "audio_too_long",
        "invalid_value",
    ):
        assert STATUS[code] < 500 and STATUS[code] not in (408, 409, 429)
        assert "Retry-After" not in ApiError(code, "").headers()


@pytest.mark.parametrize(
    "error",
    [
        OutputError("cannot write '/srv/secret'", code="storage_full"),
        ModelError("/srv/secret does not fit", code="model_mismatch"),
        CapacityError("/srv/secret is full"),
        AudioError("/srv/secret: TypeError: x", code="internal_error"),
        AudioError("/srv/secret cannot be read", code="unreadable_file"),
    ],
)
def test_a_fault_of_ours_names_no_path(error) -> None:
    made = ApiError.of(error)
    assert made.status >= 500 and "secret" not in str(made.body())
