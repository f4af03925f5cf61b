"""Services that can only be read: repositories of the Hugging Face Hub, and web addresses.

    Stores().at(Location.parse("hf://datasets/org/name"))
    Stores().of(Location.parse("https://example.com/a.mp3?Signature=..."))

The Hub is read through huggingface-hub's file system, which reads HF_TOKEN and HF_ENDPOINT and repeats
requests of its own. Of a web server, one address is one object, and there are no listings; the query of a
signed address goes with every request and into no message. obstore's own http would do for most servers, but
reads nothing whose length the server does not say, and sends no user and password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .errors import (
    ChangedError,
    LocatedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
    by_status,
    unanswered,
)
from .locations import Entry, Location
from .store import OpenObject, Store

if TYPE_CHECKING:
    import httpx

HUB_PIECE = 4 << 20
WEB_PIECE = 1 << 20
"""Bytes that are read at a time."""


class HubStore(Store):
    """Files of a repository."""

    @staticmethod
    def opened(location: Location, patience_s: float) -> Any:
        from huggingface_hub import HfFileSystem

        return HfFileSystem()

    def list(self, prefix: str = "") -> list[Entry]:
        with self._request("list", prefix):
            try:
                found = self.connection.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                if prefix or self.location.key:
                    return []  # an empty folder, as in a bucket
                raise
        entries = [self._entry(info) for info in found.values() if info["type"] == "file"]
        return sorted(entries, key=lambda entry: entry.key)

    def head(self, key: str) -> Entry:
        with self._request("head", key):
            return self._entry(self.connection.info(self._path(key)))

    @contextmanager
    def reading(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[OpenObject]:
        entry = self.head(key)
        if etag and entry.etag != etag:
            raise by_status(self.place(key), 412)
        with self._request("get", key):
            file = self.connection.open(self._path(key), "rb", block_size=HUB_PIECE)
        with file:
            yield OpenObject(entry, self._pieces(key, file, start), start)

    def _pieces(self, key: str, file: Any, start: int) -> Iterator[bytes]:
        with self._errors(key):
            file.seek(start)
            while piece := file.read(HUB_PIECE):
                yield piece

    def _path(self, key: str) -> str:
        return "/".join(filter(None, (self.location.host, self.location.key.strip("/"), key)))

    def _entry(self, info: dict[str, Any]) -> Entry:
        name = str(info["name"]).removeprefix(self._path("")).lstrip("/")
        large = info.get("lfs") or {}
        tag = (large.get("sha256") if isinstance(large, dict) else None) or info.get("blob_id")
        return Entry(name, int(info["size"]), tag)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        from huggingface_hub.errors import HfHubHTTPError

        location = self.place(key)
        try:
            yield
        except LocatedError:
            raise
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0) or 0
            raise by_status(location, status) from None
        except FileNotFoundError:
            raise MissingError(location, "no such object; check the name") from None
        except (_network_error(), OSError, ValueError, NotImplementedError) as error:
            raise UnavailableError(
                location, f"the Hub does not answer ({type(error).__name__}); check the network"
            ) from None


class WebStore(Store):
    """The address of `location`, with its query and its user."""

    attempts = 6

    @staticmethod
    def opened(location: Location, patience_s: float) -> Any:
        import httpx

        return httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(60.0, connect=10.0),
            headers={"User-Agent": "forescribe", "Accept-Encoding": "identity"},
        )

    def list(self, prefix: str = "") -> list[Entry]:
        raise UnsupportedError(
            self.location, "web servers have no listings: name the files, as in a list (.jsonl)"
        )

    def place(self, key: str) -> Location:
        return replace(self.location, key=key)

    def head(self, key: str) -> Entry:
        """By a GET whose body is not read: signed addresses are often signed for GET only."""
        with self.reading(key) as reading:
            return reading.entry

    @contextmanager
    def reading(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[OpenObject]:
        location = self.place(key)
        headers = {"Range": f"bytes={start}-"} if start else {}
        with (
            self._request("get", key),
            self.connection.stream("GET", location.url, headers=headers) as answer,
        ):
            if answer.status_code not in (200, 206):
                raise by_status(location, answer.status_code, _code(answer))
            entry = _entry(key, answer)
            if etag and entry.etag != etag:
                raise ChangedError(location, "changed while it was used; run the command again")
            partial = answer.status_code == 206
            yield OpenObject(entry, answer.iter_bytes(WEB_PIECE), start if partial else 0)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        import httpx

        location = self.place(key)
        try:
            yield
        except LocatedError:
            raise
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects):
            raise UnsupportedError(location, "the address cannot be used; check it") from None
        except httpx.HTTPError as error:  # its text holds the address
            raise unanswered(location, error) from None


def _network_error() -> type[Exception]:
    """The errors of the library that huggingface-hub makes requests with: httpx or httpx2, by its version."""
    from huggingface_hub.errors import HfHubHTTPError

    for kind in HfHubHTTPError.__mro__:
        if kind.__name__ == "HTTPError" and issubclass(kind, Exception):
            return kind
    return OSError


def _entry(key: str, answer: httpx.Response) -> Entry:
    size = answer.headers.get("content-length", "")
    if answer.status_code == 206:
        size = answer.headers.get("content-range", "").rpartition("/")[2]
    length = int(size) if size.isdecimal() and len(size) < 20 else -1
    return Entry(key, length, answer.headers.get("etag"))


def _code(answer: httpx.Response) -> str:
    """S3's error code in the answer to a signed address."""
    page = b""
    for piece in answer.iter_bytes(4000):  # no more of a page than can hold it
        page += piece
        if len(page) >= 4000:
            break
    code = page.decode(errors="replace").partition("<Code>")[2].partition("</Code>")[0]
    return code if code.isalpha() and len(code) < 60 else ""
