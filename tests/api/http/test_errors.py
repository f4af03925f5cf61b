"""Errors: one body, one status for each code, nothing that is only ours to know."""

from __future__ import annotations

from typing import get_args

import pytest

from forescribe.api.errors import STATUS, ApiError
from forescribe.asr.errors import AudioError, CapacityError, Code, ModelError, OutputError
from tests.api.conftest import sound
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


WRONG = [
    ("/v1/audio/transcriptions", {"language": "xx"}),
    ("/v1/audio/transcriptions", {"language": "klingon,en"}),
    ("/v1/audio/transcriptions", {"model": "other"}),
    ("/v1/audio/transcriptions", {"prompt": "a" * 100_001}),
    ("/v1/audio/transcriptions", {"response_format": "diarized_json", "include": "logprobs"}),
    ("/v1/audio/translations", {"model": "large"}),
    ("/predict", {"parameters": '{"language": "xx"}'}),
    ("/predict", {"parameters": '{"min_speakers": 3, "max_speakers": 1}'}),
    ("/v1/jobs", {"language": "xx"}),
    ("/v1/jobs", {"webhook_url": "ftp://x", "upload_id": "upload_x"}),
]


def test_no_refusal_names_a_folder_of_the_server(service, tmp_path) -> None:
    """The model is one of its folders, so are the jobs."""
    client = service(model=str(tmp_path / "weights"), data_dir=tmp_path / "data")
    said = [
        client.post(path, files={"file": ("a.wav", audio)}, data=fields)
        for path, fields in WRONG
        for audio in (sound(1), b"RIFF, no more")
    ]
    said += [client.get(f"/v1/{name}/x") for name in ("jobs", "uploads")]
    said.append(client.get("/v1/realtime"))
    for answer in said:
        assert answer.status_code >= 400, f"{answer.url}: {answer.text}"
        assert str(tmp_path.parent.parent) not in answer.text


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/audio/transcriptions", "/v1/audio/transcriptions"),  # a base_url without /v1
        ("/v1/audio/transcription", "/v1/audio/transcriptions"),
        ("/v1/files", None),
        ("/v1/job/{id}", None),
    ],
)
def test_a_path_that_is_nearly_one_is_told_the_one_that_was_meant(service, path, meant) -> None:
    answer = service().post(path)
    hint = f"; did you mean {meant}?" if meant else ""
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"POST {path!r}: Not Found{hint}"
