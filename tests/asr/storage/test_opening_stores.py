"""Opening stores: settings of the environment and of profiles, and what is said where they are missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from forescribe.asr.errors import StorageError, UsageError
from forescribe.asr.storage.errors import (
    DeniedError,
    LocatedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
    by_status,
    located,
)
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores, profile_settings

S3 = Location.parse("s3://bucket/a.mp3")


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's environment and home."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_profiles_are_read_as_the_aws_tools_write_them(nobody, monkeypatch) -> None:
    (nobody / ".aws").mkdir()
    (nobody / ".aws" / "credentials").write_bytes(b"no section\xff = 1")
    assert profile_settings() == {}  # the AWS tools report it
    (nobody / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = AK\naws_secret_access_key = S%K\n"
        "[work]\naws_access_key_id = WK\naws_secret_access_key = WS\naws_session_token = WT\n"
        "[half]\naws_access_key_id = HK\n"
    )
    (nobody / ".aws" / "config").write_text(
        "[default]\nregion = eu-central-1\n[profile work]\nregion = us-west-2\n"
        "[profile sso]\nsso_session = x\n"
    )
    default = {"access_key_id": "AK", "secret_access_key": "S%K"}
    assert profile_settings() == default | {"region": "eu-central-1"}
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert profile_settings() == {
        "access_key_id": "WK",
        "secret_access_key": "WS",
        "session_token": "WT",
        "region": "us-west-2",
    }
    Stores().at(S3)  # takes these settings
    for name in ("sso", "half", "nope"):
        monkeypatch.setenv("AWS_PROFILE", name)
        assert profile_settings() == {}
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "EK")  # the environment comes first
    assert profile_settings() == {"region": "eu-central-1"}
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert profile_settings() == {}


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match="scripts/setup s3"):
        Stores().at(S3)


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "ftp://host", "http://"])
def test_an_endpoint_that_is_no_address_is_refused_by_name(monkeypatch, address: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL is no address"):
        Stores().at(S3)


def test_azure_without_an_account_says_which_variables() -> None:
    with pytest.raises(StorageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        Stores().at(Location.parse("az://container/x"))


# What servers answer


@pytest.mark.parametrize(
    ("status", "code", "kind", "says"),
    [
        (503, "SlowDown", UnavailableError, "(503, SlowDown)"),
        (500, "InternalError", UnavailableError, "try again later"),
        (429, "", UnavailableError, "(429)"),
        (409, "ConditionalRequestConflict", UnavailableError, "try again"),
        (400, "ExpiredToken", DeniedError, "expired (ExpiredToken): renew them"),
        (403, "AccessDenied", DeniedError, "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", DeniedError, "SignatureDoesNotMatch"),
        (401, "", DeniedError, "(401)"),
        (404, "NoSuchKey", MissingError, "no such object"),
        (404, "NoSuchBucket", MissingError, "no such bucket"),
        (301, "PermanentRedirect", UnsupportedError, "set AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", UnsupportedError, "set AWS_REGION"),
        (400, "InvalidRequest", UnsupportedError, "(400, InvalidRequest)"),
    ],
)
def test_answers_become_errors_that_say_what_to_do(
    status: int, code: str, kind: type[LocatedError], says: str
) -> None:
    error = by_status(S3, status, code)
    assert type(error) is kind and says in str(error)
    assert str(error).startswith("s3://bucket/a.mp3: ")


def test_no_text_of_a_server_gets_into_a_message() -> None:
    secret = (
        "Error performing GET https://x.blob.core.windows.net/c/a?sig=SECRET in 3ms - Server returned "
        "non-2xx status code: 403 Forbidden: <Error><Code>AuthenticationFailed</Code>"
        "<AuthenticationErrorDetail>SECRET</AuthenticationErrorDetail></Error>"
    )
    error = located(Location.parse("az://c/a"), RuntimeError(secret))
    assert "SECRET" not in str(error) and "403, AuthenticationFailed" in str(error)
    assert error.code == "storage_denied"


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(UsageError, match=r"file:///proc/nope/x: the folder cannot be made"):
        Stores().at(Location.parse("file:///proc/nope/x"))
