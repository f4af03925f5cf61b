"""Stores: the services, and connections that are shared, one per bucket.

**Buckets** (S3, Google Cloud Storage, Azure; memory and folders) are read and written through obstore (extra
`s3`). Credentials, endpoints and regions come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_*, AZURE_*), from a profile in `~/.aws`, or from the
identity of the machine. obstore reads the environment only, so profiles are read here: those with keys; those
that log in (SSO) or assume roles are left to the environment.

The **Hub** is read through huggingface-hub's file system, which reads HF_TOKEN and HF_ENDPOINT and repeats
requests of its own. Of a **web** server, one address is one object, and there are no listings; the query of a
signed address goes with every request and into no message. obstore's own http would do for most servers, but
reads nothing whose length the server does not say, and sends no user and password.
"""

from __future__ import annotations

import configparser
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, how_to_install
from .errors import (
    LocatedError,
    MissingError,
    UnavailableError,
    UnsupportedError,
    by_status,
    denied,
    located,
    unanswered,
)
from .locations import WEB, Entry, Location
from .store import Store

if TYPE_CHECKING:
    import httpx

PATIENCE_S = 180.0
"""Seconds for which a request is repeated."""

PROFILE_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Keys of a profile, as the AWS tools name them and as obstore does."""

PIECE, HUB_PIECE = 1 << 20, 4 << 20
"""Bytes that are read at a time."""

PART, PARTS = 16 << 20, 4
"""Bytes of a part of a large upload, and how many are in memory at a time."""

_MEMORY: dict[str, Any] = {}
"""Stores of `memory://`, by host: they live as long as the process."""


@dataclass(frozen=True, eq=False)
class Stores:
    """Stores that share the connections of their buckets. `patience_s` is how long requests are repeated."""

    patience_s: float = PATIENCE_S
    _opened: dict[str, tuple[Any, Counter[str]]] = field(default_factory=dict, init=False)
    _opening: threading.Lock = field(default_factory=threading.Lock, init=False)

    def at(self, location: Location) -> Store:
        """The store at a location. Raises UsageError without the extra, and DeniedError or
        UnsupportedError for settings that cannot be used; nothing is requested yet."""
        folder = location.key if location.scheme == "file" else ""
        key = f"{location.scheme}://{location.host}{folder}"
        with self._opening:
            if key not in self._opened:
                self._opened[key] = _connection(location, self.patience_s), Counter()
            connection, requests = self._opened[key]
        kind = {"hf": HubStore, "http": WebStore, "https": WebStore}.get(
            location.scheme, BucketStore
        )
        return kind(location, connection, requests)

    def of(self, location: Location) -> tuple[Store, str]:
        """A store and the key of the object at a location in it."""
        if location.scheme == "file":
            return self.at(location.parent), location.name
        # The signature of a web address is for one object.
        root = location if location.scheme in WEB else location.root
        return self.at(root), location.key


class BucketStore(Store):
    """Objects of a bucket, below the folder of its location."""

    def list(self, prefix: str = "") -> list[Entry]:
        import obstore

        folder = self._key(prefix).rstrip("/")
        with self._request("list", prefix):
            found = obstore.list(self.connection, folder or None).collect()
        return sorted(map(self._entry, found), key=lambda entry: entry.key)

    def head(self, key: str) -> Entry:
        import obstore

        with self._request("head", key):
            return self._entry(obstore.head(self.connection, self._key(key)))

    @contextmanager
    def reading(self, key: str) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        import obstore

        with self._request("get", key):
            result = obstore.get(self.connection, self._key(key))
            yield self._entry(result.meta), map(bytes, result.stream(min_chunk_size=PIECE))

    def put(self, key: str, data: bytes | Path) -> None:
        import obstore

        with self._request("put", key):
            obstore.put(
                self.connection, self._key(key), data, chunk_size=PART, max_concurrency=PARTS
            )

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
        key = meta["path"].removeprefix(f"{self._base}/") if self._base else meta["path"]
        return Entry(key, meta["size"], meta.get("e_tag"))


class HubStore(Store):
    """Files of a repository."""

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
    def reading(self, key: str) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        entry = self.head(key)
        with (
            self._request("get", key),
            self.connection.open(self._path(key), "rb", block_size=HUB_PIECE) as file,
        ):
            yield entry, iter(partial(file.read, HUB_PIECE), b"")

    def _path(self, key: str) -> str:
        return "/".join(filter(None, (self.location.host, self.location.key.strip("/"), key)))

    def _entry(self, info: dict[str, Any]) -> Entry:
        name = str(info["name"]).removeprefix(self._path("")).lstrip("/")
        tag = (info.get("lfs") or {}).get("sha256") or info.get("blob_id")
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

    def list(self, prefix: str = "") -> list[Entry]:
        raise UnsupportedError(
            self.location, "web servers have no listings: name the files, as in a list (.jsonl)"
        )

    def place(self, key: str) -> Location:
        return replace(self.location, key=key)

    def head(self, key: str) -> Entry:
        """By a GET whose body is not read: signed addresses are often signed for GET only."""
        with self.reading(key) as (entry, _):
            return entry

    @contextmanager
    def reading(self, key: str) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        location = self.place(key)
        with self._request("get", key), self.connection.stream("GET", location.url) as answer:
            if answer.status_code != 200:
                raise by_status(location, answer.status_code, _web_code(answer))
            stated = answer.headers.get("content-length", "")
            size = int(stated) if stated.isdecimal() and len(stated) < 20 else -1
            yield Entry(key, size, answer.headers.get("etag")), answer.iter_bytes(PIECE)

    def _meant(self, location: Location, error: BaseException) -> LocatedError | None:
        import httpx

        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | httpx.TooManyRedirects):
            return UnsupportedError(location, "the address cannot be used; check it")
        return unanswered(location, error) if isinstance(error, httpx.HTTPError) else None


def _web_code(answer: httpx.Response) -> str:
    """S3's error code in the answer to a signed address."""
    page = next(answer.iter_bytes(4000), b"")  # no more of it than can hold it
    code = page.decode(errors="replace").partition("<Code>")[2].partition("</Code>")[0]
    return code if code.isalpha() and len(code) < 60 else ""


def _connection(location: Location, patience_s: float) -> Any:
    """The connection to the bucket, the Hub or the web server of a location."""
    if location.scheme in WEB:
        import httpx

        return httpx.Client(
            follow_redirects=True,
            timeout=httpx.Timeout(60.0, connect=10.0),
            headers={"User-Agent": "forescribe", "Accept-Encoding": "identity"},
        )
    if location.scheme == "hf":
        from huggingface_hub import HfFileSystem

        return HfFileSystem()
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
            "read_timeout": f"{min(60.0, patience_s):g}s",
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
        return (GCSStore if location.scheme == "gs" else AzureStore)(location.host, **common)
    except Exception as error:
        if type(error).__module__.startswith("obstore") or isinstance(error, ValueError):
            raise denied(location) from None
        raise


def _endpoint() -> str:
    """The address of a store with S3's interface, as the AWS tools read it."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if address := os.environ.get(name):
            if not re.match(r"https?://[^/\s]", address):
                raise UsageError(f"{name} is no address: it begins with http:// or https://")
            return address
    return ""


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
