"""Services that can only be read: repositories of the Hugging Face Hub, and web addresses.

    HubBackend(Location.parse("hf://datasets/org/name"))
    WebBackend(Location.parse("https://example.com/a.mp3?Signature=..."))

The Hub is read through huggingface-hub's file system, which reads HF_TOKEN and HF_ENDPOINT and repeats
requests of its own. Of a web server, one address is one object, and there are no listings; the query of a
signed address goes with every request and into no message. Neither knows conditions.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .errors import (
    ChangedError,
    LocatedError,
    UnavailableError,
    UnsupportedError,
    by_status,
    missing,
    unanswered,
)
from .locations import Entry, Location, Reading

if TYPE_CHECKING:
    import httpx
    from huggingface_hub import HfFileSystem

HUB_PIECE = 4 << 20
WEB_PIECE = 1 << 20
"""Bytes that are read at a time."""


class _ReadOnlyBackend:
    """What is the same for services that cannot be written to: counting, and `refusal` of the writes."""

    refusal: ClassVar[str]

    def __init__(self, root: Location) -> None:
        self.root = root
        self.requests: Counter[str] = Counter()
        self._counting = threading.Lock()

    def put(self, key: str, data: bytes | Path) -> Entry:
        raise self._refused()

    def create(self, key: str, data: bytes) -> Entry:
        raise self._refused()

    def delete(self, key: str) -> None:
        raise self._refused()

    def _refused(self) -> UnsupportedError:
        return UnsupportedError(self.root, self.refusal)

    def _count(self, kind: str) -> None:
        with self._counting:
            self.requests[kind] += 1


class HubBackend(_ReadOnlyBackend):
    """Requests to the repository of `location`."""

    refusal = "hf:// can only be read: write to s3://, gs://, az:// or a folder"

    def __init__(self, location: Location, files: HfFileSystem | None = None) -> None:
        from huggingface_hub import HfFileSystem

        super().__init__(location.root)
        self._files = files or HfFileSystem()

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        self._count("list")
        with self._errors(self.root / prefix):
            try:
                found: Any = self._files.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                if prefix:
                    return  # an empty folder, as in a bucket
                raise
        entries = [self._entry(info) for info in found.values() if info["type"] == "file"]
        yield from (
            e for e in sorted(entries, key=lambda e: e.key) if after is None or e.key > after
        )

    def head(self, key: str) -> Entry:
        self._count("head")
        with self._errors(self.root / key):
            return self._entry(self._files.info(self._path(key)))

    @contextmanager
    def read(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[Reading]:
        entry = self.head(key)
        if etag and entry.etag != etag:
            raise ChangedError(self.root / key, "changed while it was used; run the command again")
        self._count("get")
        with self._errors(self.root / key):
            file = self._files.open(self._path(key), "rb", block_size=HUB_PIECE)
        with file:
            yield Reading(entry, self._pieces(key, file, start), start)

    def _pieces(self, key: str, file: Any, start: int) -> Iterator[bytes]:
        with self._errors(self.root / key):
            file.seek(start)
            while piece := file.read(HUB_PIECE):
                yield piece

    def _path(self, key: str) -> str:
        return f"{self.root.host}/{key}".rstrip("/")

    def _entry(self, info: dict[str, Any]) -> Entry:
        name = str(info["name"]).removeprefix(self.root.host).lstrip("/")
        large = info.get("lfs") or {}
        tag = (large.get("sha256") if isinstance(large, dict) else None) or info.get("blob_id")
        return Entry(name, int(info["size"]), tag)

    @contextmanager
    def _errors(self, location: Location) -> Iterator[None]:
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except LocatedError:
            raise
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0) or 0
            raise by_status(location, status, "") from None
        except FileNotFoundError:
            raise missing(location) from None
        except (_network_error(), OSError, ValueError, NotImplementedError) as error:
            raise UnavailableError(
                location, f"the Hub does not answer ({type(error).__name__}); check the network"
            ) from None


class WebBackend(_ReadOnlyBackend):
    """Requests to the server of `location`, with its query and its user; `at` is the same server with
    those of another location."""

    refusal = "web addresses can only be read"

    def __init__(self, location: Location) -> None:
        import httpx

        super().__init__(location.root)
        self.location = location
        self._client = httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(60.0, connect=10.0),
            headers={"User-Agent": "forescribe", "Accept-Encoding": "identity"},
        )

    def at(self, location: Location) -> WebBackend:
        """The same connections and counts, for another address of the server."""
        other = copy.copy(self)
        other.location, other.root = location, location.root
        return other

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        raise UnsupportedError(
            self.root, "web servers have no listings: name the files, as in a list (.jsonl)"
        )

    def head(self, key: str) -> Entry:
        """By a GET whose body is not read: signed addresses are often signed for GET only."""
        with self.read(key) as reading:
            return reading.entry

    @contextmanager
    def read(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[Reading]:
        location = replace(self.location, key=key)
        headers = {"Range": f"bytes={start}-"} if start else {}
        self._count("get")
        with (
            self._errors(location),
            self._client.stream("GET", location.url, headers=headers) as answer,
        ):
            if answer.status_code not in (200, 206):
                raise by_status(location, answer.status_code, _code(answer))
            entry = _entry(key, answer)
            if etag and entry.etag != etag:
                raise ChangedError(location, "changed while it was used; run the command again")
            yield Reading(
                entry, answer.iter_bytes(WEB_PIECE), start if answer.status_code == 206 else 0
            )

    @contextmanager
    def _errors(self, location: Location) -> Iterator[None]:
        import httpx

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
    return Entry(key, length, answer.headers.get("etag"), _seconds(answer))


def _seconds(answer: httpx.Response) -> float | None:
    try:
        return parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
    except (KeyError, ValueError, OverflowError, TypeError):  # whatever a server writes there
        return None


def _code(answer: httpx.Response) -> str:
    """S3's error code in the answer to a signed address."""
    page = b""
    for piece in answer.iter_bytes(4000):  # no more of a page than can hold it
        page += piece
        if len(page) >= 4000:
            break
    rest = page.decode(errors="replace").partition("<Code>")[2]
    code = rest.partition("</Code>")[0] if rest else ""
    return code if code.isalpha() and len(code) < 60 else ""
