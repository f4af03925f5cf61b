"""Repositories of the Hub, by a file system that answers without a network."""

from __future__ import annotations

import importlib
import io
from collections import Counter
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError

from forescribe.asr.storage.errors import DeniedError, MissingError, UnavailableError
from forescribe.asr.storage.locations import Location
from forescribe.asr.storage.stores import HubStore, Store

REPO = "datasets/org/calls@v1"


class Files:
    """The part of `HfFileSystem` that is used; `trouble` is raised by every call."""

    def __init__(self) -> None:
        self.held = {f"{REPO}/a.mp3": b"one", f"{REPO}/x/b.mp3": b"three"}
        self.trouble: Exception | None = None

    def _info(self, path: str) -> dict:
        return {
            "name": path,
            "size": len(self.held[path]),
            "type": "file",
            "blob_id": f"id-{path[-5:]}",
            "lfs": None,
        }

    def find(self, path: str, detail: bool) -> dict:
        assert detail
        if self.trouble:
            raise self.trouble
        found = {p: self._info(p) for p in self.held if p.startswith(path)}
        if not found:
            raise FileNotFoundError(path)
        return found

    def info(self, path: str) -> dict:
        if self.trouble:
            raise self.trouble
        if path not in self.held:
            raise FileNotFoundError(path)
        return self._info(path)

    def open(self, path: str, mode: str, block_size: int) -> io.BytesIO:
        return io.BytesIO(self.held[path])


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def store(files) -> Store:
    location = Location.parse(f"hf://{REPO}")
    return HubStore(location, files, Counter())


def test_files_are_listed_and_read(store, tmp_path: Path) -> None:
    assert [(e.key, e.size) for e in store.list()] == [("a.mp3", 3), ("x/b.mp3", 5)]
    assert [e.key for e in store.list("x")] == ["x/b.mp3"] and store.list("nope") == []
    entry = store.fetch("x/b.mp3", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"three" and entry.version == "5:id-b.mp3"
    assert store.requests["get"] == 1


def test_a_missing_file_is_said_with_its_place(store) -> None:
    with pytest.raises(MissingError, match=r"hf://datasets/org/calls@v1/c\.mp3"):
        store.read("c.mp3")


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, DeniedError, "HF_TOKEN"),
        (404, MissingError, "no such"),
        (503, UnavailableError, "503"),
    ],
)
def test_answers_of_the_hub(store, files, status: int, kind: type[Exception], says: str) -> None:
    request = httpx.Request("GET", "https://huggingface.co/x?token=SECRET")
    files.trouble = HfHubHTTPError("SECRET", response=httpx.Response(status, request=request))
    with pytest.raises(kind, match=says) as caught:
        store.list()
    assert "SECRET" not in str(caught.value)


def test_no_network(store, files) -> None:
    library = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
    files.trouble = library.ConnectError("https://huggingface.co/x?token=SECRET")
    with pytest.raises(UnavailableError, match=r"does not answer \(ConnectError\)") as caught:
        store.list()
    assert "SECRET" not in str(caught.value)
