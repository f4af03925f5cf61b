"""The services: buckets (S3, Google Cloud Storage, Azure; memory and folders), the Hub, web addresses.

**Buckets** are read and written through obstore (extra `s3`). Credentials, endpoints and regions come from
the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_REGION,
GOOGLE_*, AZURE_*), from a profile in `~/.aws`, or from the identity of the machine. obstore reads the
environment only, so profiles are read here: those with keys; those that log in (SSO) or assume roles are left
to the environment.

The **Hub** is read through huggingface-hub's file system, which reads HF_TOKEN and HF_ENDPOINT and repeats
requests of its own. Of a **web** server, one address is one object, and there are no listings; the query of a
signed address goes with every request and into no message. obstore's own http would do for most servers, but
reads nothing whose length the server does not say, and sends no user and password.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, how_to_install
from .errors import (
    ChangedError,
    LocatedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
    by_status,
    located,
    unanswered,
)
from .locations import Entry, Location
from .store import OpenObject, Store

if TYPE_CHECKING:
    import httpx

PROFILE_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Keys of a profile, as the AWS tools name them and as obstore does."""

PAGE = 1000
"""Objects per request of a listing: the most that S3 gives."""

PIECE, HUB_PIECE = 1 << 20, 4 << 20
"""Bytes that are read at a time."""

PART = 16 << 20
"""Bytes of a part of a large upload."""

PARTS = 4
"""Parts that are in memory at a time."""

_MEMORY: dict[str, Any] = {}
"""Stores of `memory://`, by host: they live as long as the process."""


class BucketStore(Store):
    """Objects of a bucket, below the folder of its location."""

    @staticmethod
    def opened(location: Location, patience_s: float) -> Any:
        return _opened(location, patience_s)

    def list(self, prefix: str = "") -> list[Entry]:
        import obstore

        folder = self._key(prefix).rstrip("/")
        found: list[Entry] = []
        with self._request("list", prefix):
            for number, page in enumerate(
                obstore.list(self.connection, folder or None, chunk_size=PAGE)
            ):
                if number:
                    self._count("list")
                found += map(self._entry, page)
        return sorted(found, key=lambda entry: entry.key)

    def head(self, key: str) -> Entry:
        import obstore

        with self._request("head", key):
            return self._entry(obstore.head(self.connection, self._key(key)))

    @contextmanager
    def reading(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[OpenObject]:
        import obstore

        options: dict[str, Any] = {"if_match": etag} if etag else {}
        if start:
            options["range"] = {"offset": start}
        with self._request("get", key):
            result = obstore.get(self.connection, self._key(key), options=options or None)  # type: ignore[arg-type]
            entry = self._entry(result.meta)
        yield OpenObject(entry, self._pieces(key, result), start)

    def put(self, key: str, data: bytes | Path) -> Entry:
        import obstore

        size = data.stat().st_size if isinstance(data, Path) else len(data)
        with self._request("put", key):
            written = obstore.put(
                self.connection, self._key(key), data, chunk_size=PART, max_concurrency=PARTS
            )
        return Entry(key, size, written.get("e_tag"))

    def create(self, key: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._request("create", key):
            try:
                obstore.put(self.connection, self._key(key), data, mode="create")
            except AlreadyExistsError:
                pass
            else:
                return True
        with suppress(MissingError):
            return self.read(key) == data
        return False

    def delete(self, key: str) -> None:
        import obstore

        with suppress(MissingError), self._request("delete", key):
            obstore.delete(self.connection, self._key(key))

    def _pieces(self, key: str, result: Any) -> Iterator[bytes]:
        with self._errors(key):
            for piece in result.stream(min_chunk_size=PIECE):
                yield bytes(piece)

    def _meant(self, location: Location, error: BaseException) -> LocatedError | None:
        ours = isinstance(error, OSError | ValueError | NotImplementedError)
        ours = ours or type(error).__module__.startswith(("obstore", "pyo3"))
        return located(location, error) if ours else None

    @property
    def _base(self) -> str:
        """The folder of this store in the bucket; a folder of this machine is opened itself."""
        return "" if self.location.scheme == "file" else self.location.key.strip("/")

    def _key(self, key: str) -> str:
        return f"{self._base}/{key}" if self._base and key else self._base or key

    def _entry(self, meta: Any) -> Entry:
        written = meta.get("last_modified")
        key = meta["path"].removeprefix(f"{self._base}/") if self._base else meta["path"]
        modified = written.timestamp() if written else None
        return Entry(key, meta["size"], meta.get("e_tag"), modified)


def profile_settings() -> dict[str, str]:
    """The settings of obstore's S3 store by the profile AWS_PROFILE, else `default`; empty if the environment
    has keys itself, or if there is no such profile. A region of the environment comes first."""
    found: dict[str, str] = {}
    name = os.environ.get("AWS_PROFILE") or "default"
    config = _section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    if "region" in config and not os.environ.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        found["region"] = config["region"]
    if os.environ.keys() & {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"}:
        return found
    values = config | _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    if "aws_access_key_id" in values and "aws_secret_access_key" in values:
        found |= {ours: values[theirs] for theirs, ours in PROFILE_KEYS.items() if theirs in values}
    return found


def _section(variable: str, file: str, name: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or Path.home() / ".aws" / file)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}  # the AWS tools report it
    return dict(parser[name]) if parser.has_section(name) else {}


def _opened(location: Location, patience_s: float) -> Any:
    try:
        from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store
    except ImportError as error:
        raise UsageError(f"{location.scheme}:// needs obstore: {how_to_install('s3')}") from error
    if location.scheme == "memory":
        return _MEMORY.setdefault(location.host, MemoryStore())
    if location.scheme == "file":
        try:
            return LocalStore(location.key, mkdir=True)
        except OSError as error:
            raise UsageError(f"{location}: the folder cannot be made; name another one") from error
    endpoint = _endpoint() if location.scheme == "s3" else ""
    common: Any = {
        "client_options": {
            "connect_timeout": "10s",
            "read_timeout": "60s",
            # Of the whole body: a long recording over a slow line. `read_timeout` finds dead connections.
            "timeout": "6h",
            "allow_http": endpoint.startswith("http://"),
            "user_agent": "forescribe",
        },
        "retry_config": {"retry_timeout": timedelta(seconds=patience_s)},
    }
    try:
        if location.scheme == "s3":
            own: Any = profile_settings() | ({"endpoint": endpoint} if endpoint else {})
            return S3Store(location.host, **common | own)
        if location.scheme == "gs":
            return GCSStore(location.host, **common)
        return AzureStore(location.host, **common)
    except Exception as error:
        if type(error).__module__.startswith("obstore") or isinstance(error, ValueError):
            raise located(location, error, opening=True) from None
        raise


def _endpoint() -> str:
    """The address of a store with S3's interface, as the AWS tools read it."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if address := os.environ.get(name):
            if not re.match(r"https?://[^/\s]", address):
                raise UsageError(f"{name} is no address: it begins with http:// or https://")
            return address
    return ""


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

    def _meant(self, location: Location, error: BaseException) -> LocatedError | None:
        from huggingface_hub.errors import HfHubHTTPError

        if isinstance(error, HfHubHTTPError):
            return by_status(location, getattr(error.response, "status_code", 0) or 0)
        if isinstance(error, FileNotFoundError):
            return by_status(location, 404)
        # Those of the library that huggingface-hub makes requests with: httpx or httpx2, by its version.
        library = next((k for k in HfHubHTTPError.__mro__ if k.__name__ == "HTTPError"), OSError)
        if isinstance(error, library | OSError | ValueError | NotImplementedError):
            why = f"the Hub does not answer ({type(error).__name__}); check the network"
            return UnavailableError(location, why)
        return None


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
                raise by_status(location, answer.status_code, _web_code(answer))
            entry = _web_entry(key, answer)
            if etag and entry.etag != etag:
                raise ChangedError(location, "changed while it was used; run the command again")
            partial = answer.status_code == 206
            yield OpenObject(entry, answer.iter_bytes(PIECE), start if partial else 0)

    def _meant(self, location: Location, error: BaseException) -> LocatedError | None:
        import httpx

        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.TooManyRedirects):
            return UnsupportedError(location, "the address cannot be used; check it")
        return unanswered(location, error) if isinstance(error, httpx.HTTPError) else None


def _web_entry(key: str, answer: httpx.Response) -> Entry:
    size = answer.headers.get("content-length", "")
    if answer.status_code == 206:
        size = answer.headers.get("content-range", "").rpartition("/")[2]
    length = int(size) if size.isdecimal() and len(size) < 20 else -1
    return Entry(key, length, answer.headers.get("etag"))


def _web_code(answer: httpx.Response) -> str:
    """S3's error code in the answer to a signed address."""
    page = b""
    for piece in answer.iter_bytes(4000):  # no more of a page than can hold it
        page += piece
        if len(page) >= 4000:
            break
    code = page.decode(errors="replace").partition("<Code>")[2].partition("</Code>")[0]
    return code if code.isalpha() and len(code) < 60 else ""
