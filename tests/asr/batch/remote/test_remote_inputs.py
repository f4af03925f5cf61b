"""Inputs at locations: what names, folders, patterns and lists stand for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forescribe.asr.batch.inputs import discover
from forescribe.asr.errors import StorageError, UsageError
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import Stores
from tests.asr.storage.faults import LOST, OK, FaultyStores, memory

KEYS = (
    "a.mp3",
    "b.WAV",
    "notes.txt",
    "a.json",
    "manifest.jsonl",
    ".hidden.mp3",
    "x/c.flac",
    "x/.y/d.flac",
    "x/y/e.opus",
    "x/y/empty.mp3",
    "_forescribe/records/f.mp3",
    "image.png",
)


@pytest.fixture
def calls() -> Location:
    folder = memory() / "calls"
    store = Stores().at(folder)
    for key in KEYS:
        store.put(key, b"" if "empty" in key else b"audio " + key.encode())
    return folder


def found(*names: object, recursive: bool = True, stores: Stores | None = None):
    return discover(map(str, names), recursive=recursive, stores=stores or Stores())


def keys(sources, top: Location) -> list[str]:
    return [source.path.removeprefix(f"{top}/") for source in sources]


def test_a_folder_holds_its_recordings_by_name(calls) -> None:
    assert keys(found(calls, recursive=False), calls) == ["a.mp3", "b.WAV"]
    stores = Stores()
    sources = found(f"{calls}/", stores=stores)
    assert stores.at(calls).requests == {"list": 1}  # however many recordings it has
    assert all(source.entry is not None and source.version for source in sources)
    (empty,) = [source for source in sources if "empty" in source.path]
    assert empty.error is not None and empty.error.code == "empty_file"
    assert keys(sources, calls) == ["a.mp3", "b.WAV", "x/c.flac", "x/y/e.opus", "x/y/empty.mp3"]
    assert [source.place for source in sources] == ["", "", "x", "x/y", "x/y"]
    assert keys(found(calls), calls) == keys(sources, calls)


def test_an_object_that_is_named_is_taken_whatever_its_name_is(calls) -> None:
    assert keys(found(calls / "image.png", calls / ".hidden.mp3"), calls) == [
        "image.png",
        ".hidden.mp3",
    ]


def test_what_is_not_there_is_one_failure_among_others(calls) -> None:
    with pytest.raises(StorageError, match="no such object"):  # but for a list
        found(calls / "nope.jsonl")
    sources = found(calls / "nope.mp3", calls / "a.mp3", calls / "image.png/")
    codes = [source.error and source.error.code for source in sources]
    assert codes == ["missing_file", None, "unreadable_file"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.mp3", ["a.mp3"]),
        ("*", ["a.mp3", "b.WAV"]),
        ("**/*.flac", ["x/c.flac"]),
        ("x/**", ["x/c.flac", "x/y/e.opus", "x/y/empty.mp3"]),
        ("?/[a-y]/e.*", ["x/y/e.opus"]),
        ("[!b].*", ["a.mp3"]),
    ],
)
def test_patterns_match_within_a_part_of_a_key(calls, pattern: str, expected: list[str]) -> None:
    sources = found(f"{calls}/{pattern}")
    assert keys(sources, calls) == expected
    assert {source.place for source in sources} == {""}


def test_a_key_with_the_characters_of_a_pattern_is_found_by_its_name(calls) -> None:
    Stores().at(calls).put("take [1].mp3", b"audio")
    assert keys(found(f"{calls}/take [1].mp3"), calls) == ["take [1].mp3"]


def test_a_pattern_that_matches_nothing_is_a_mistake(calls) -> None:
    with pytest.raises(UsageError, match=r"no recording matches .*\*\.amr"):
        found(f"{calls}/*.amr")


def test_the_same_recording_twice(calls) -> None:
    assert keys(found(calls, f"{calls}/*.mp3", calls / "a.mp3"), calls).count("a.mp3") == 1
    with pytest.raises(UsageError, match="was given twice"):
        found(calls / "a.mp3", calls / "a.mp3")


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_list_may_name_urls_and_paths(calls, where, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        {"audio_filepath": str(calls / "a.mp3"), "duration": 12.5},
        {"audio_filepath": "https://example.com/b.mp3?X-Amz-Signature=9c41"},
        {"audio_filepath": "x/c.flac"},
        {"audio_filepath": str(calls / "nope.mp3")},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if where == "here":
        Path("list.jsonl").write_text(text)
        os.makedirs("x")
        Path("x/c.flac").write_bytes(b"audio")
        sources = found("list.jsonl")
        third = "x/c.flac"
    else:
        Stores().at(calls).put("list.jsonl", text.encode())
        sources = found(calls / "list.jsonl")
        third = str(calls / "x/c.flac")
    paths = [str(calls / "a.mp3"), "https://example.com/b.mp3", third, str(calls / "nope.mp3")]
    assert [source.path for source in sources] == paths
    assert sources[0].length_s == 12.5 and sources[0].entry.size > 0
    assert sources[1].location.url.endswith("?X-Amz-Signature=9c41") and sources[1].entry is None
    assert sources[3].error.code == "missing_file"


def test_addresses_that_differ_in_their_signatures_only_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = [f"https://example.com/a?token={token}" for token in ("s3cret", "s3cret", "0ther")]
    lines = [json.dumps({"audio_filepath": address}) + "\n" for address in addresses]
    Path("list.jsonl").write_text("".join(lines[:2]))
    assert [source.path for source in found("list.jsonl")] == ["https://example.com/a"]
    Path("list.jsonl").write_text("".join(lines))
    with pytest.raises(UsageError, match="differ in their signatures only") as refused:
        found("list.jsonl")
    assert "s3cret" not in str(refused.value) and "0ther" not in str(refused.value)


def test_a_bucket_that_does_not_answer_is_one_failure_among_others(calls) -> None:
    other = memory()
    stores = FaultyStores(lambda where, kind: LOST if where.host == other.host else OK)
    sources = found(other, calls / "a.mp3", stores=stores)
    assert [source.error and source.error.code for source in sources] == [
        "storage_unavailable",
        None,
    ]


def test_urls_of_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="ftp:// is not supported"):
        found("ftp://host/a.mp3")
    with pytest.raises(UsageError, match="name the path itself"):
        found("file:///tmp/a.mp3")


def test_without_stores_a_url_is_a_file_that_does_not_exist() -> None:
    (source,) = discover(["s3://calls/a.mp3"])
    assert source.path == "s3://calls/a.mp3" and source.location is None
