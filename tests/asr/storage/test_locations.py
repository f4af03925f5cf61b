"""Locations: what URLs mean, and that nothing secret is ever shown."""

from __future__ import annotations

import pytest

from forescribe.asr.errors import UsageError
from forescribe.asr.storage.locations import Location

SIGNED = "https://me:secret@example.com:8443/calls/a%20b.mp3?X-Amz-Signature=9c41&X-Amz-Expires=60&part=2"


@pytest.mark.parametrize(
    ("text", "scheme", "host", "key"),
    [
        ("s3://calls", "s3", "calls", ""),
        ("s3://calls/2026/", "s3", "calls", "2026/"),
        ("S3://calls/a b?#%20é.mp3", "s3", "calls", "a b?#%20é.mp3"),
        ("gs://b/x/y.wav", "gs", "b", "x/y.wav"),
        ("az://container/y.wav", "az", "container", "y.wav"),
        ("hf://datasets/org/name@v1/x/y.wav", "hf", "datasets/org/name@v1", "x/y.wav"),
        ("hf://org/name/y.wav", "hf", "org/name", "y.wav"),
        ("https://example.com/x/a%20b.mp3", "https", "example.com", "x/a b.mp3"),
        ("http://[::1]:80/x", "http", "[::1]:80", "x"),
        ("file:///mnt/out", "file", "", "/mnt/out"),
        ("file://localhost/mnt/out", "file", "", "/mnt/out"),
        ("memory://m/out", "memory", "m", "out"),
    ],
)
def test_urls_are_read(text: str, scheme: str, host: str, key: str) -> None:
    location = Location.parse(text)
    assert (location.scheme, location.host, location.key) == (scheme, host, key)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://host/a.mp3", "ftp:// is not supported"),
        ("s3://", "a bucket"),
        ("s3://me:9c41@calls/a.mp3", "take user and password out"),
        ("s3:///key", "a bucket"),
        ("hf://org", "a repository"),
        ("hf://datasets/org", "a repository"),
        ("https://", "without a server"),
        ("https://host:port/a", "malformed"),
        ("calls/a.mp3", "no URL"),
        ("https://host/%00.mp3?sig=9c41", "NUL character"),
        ("s3://calls/a\0.mp3", "NUL character"),
    ],
)
def test_other_urls_are_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Location.parse(text)
    assert "9c41" not in str(refused.value)


def test_nothing_secret_is_shown() -> None:
    location = Location.parse(SIGNED)
    assert str(location) == "https://example.com:8443/calls/a b.mp3"
    for text in (str(location), repr(location), location.identity):
        assert not {"secret", "9c41", "Signature"} & set(text.replace("=", "&").split("&"))
        assert "secret" not in text and "9c41" not in text
    assert location.url == SIGNED


def test_signing_again_does_not_make_another_recording() -> None:
    location = Location.parse(SIGNED)
    again = Location.parse(SIGNED.replace("9c41", "77aa").replace("=60", "=90"))
    other = Location.parse(SIGNED.replace("part=2", "part=3"))
    assert location.identity == again.identity != other.identity


def test_control_characters_are_escaped() -> None:
    location = Location.parse("s3://b/\x1b[31m.mp3")
    assert "\x1b" not in str(location) and location.identity == "s3://b/\x1b[31m.mp3"


@pytest.mark.parametrize(
    ("given", "requested", "name"),
    [
        ("o/calls%2Fa.mp3?alt=media", "/o/calls%2Fa.mp3?alt=media", "a.mp3"),
        ("a%2Bb.mp3", "/a%2Bb.mp3", "a+b.mp3"),
        ("%ff.mp3", "/%ff.mp3", "\ufffd.mp3"),
        ("/a b.mp3", "//a%20b.mp3", "a b.mp3"),
        ("", "/", ""),
    ],
)
def test_paths_of_web_addresses_are_requested_as_given(
    given: str, requested: str, name: str
) -> None:
    location = Location.parse(f"https://example.com/{given}")
    assert location.url == f"https://example.com{requested}" and location.name == name
    assert (location.parent / "x y.mp3").url.endswith("/x%20y.mp3")
