"""S3, Google Cloud Storage, Azure, memory and folders through obstore (extra `s3`).

Credentials, endpoints and regions come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_*, AZURE_*), from a profile in `~/.aws`, or from the
identity of the machine. obstore reads the environment only, so profiles are read here: those with keys; those
that log in (SSO) or assume roles are left to the environment.

obstore's own repetitions are off: ours count requests and know whether a write may have happened.
"""

from __future__ import annotations

import configparser
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..installing import how_to_install
from .errors import LocatedError, MissingError, located
from .locations import Entry, Location, Reading

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PROFILE_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Keys of a profile, as the AWS tools name them and as obstore does."""

PAGE = 1000
"""Objects per request of a listing: the most that S3 gives."""

PIECE = 1 << 20
"""Bytes that are read at a time."""

PART = 16 << 20
"""Bytes of a part of a large upload."""

PARTS = 4
"""Parts that are in memory at a time."""

_MEMORY: dict[str, Any] = {}
"""Stores of `memory://`, by host: they live as long as the process."""


class ObstoreBackend:
    """Single requests to the bucket of `location`, or below its folder. Raises UsageError without obstore."""

    def __init__(self, location: Location) -> None:
        self.root = location if location.scheme == "file" else location.root
        self.requests: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._store = _open(location)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        import obstore

        with self._errors(self.root / prefix):
            pages = obstore.list(self._store, prefix or None, offset=after or None, chunk_size=PAGE)
            self._count("list")
            for number, page in enumerate(pages):
                if number:
                    self._count("list")
                yield from sorted((_entry(meta) for meta in page), key=lambda entry: entry.key)

    def head(self, key: str) -> Entry:
        import obstore

        self._count("head")
        with self._errors(self.root / key):
            return _entry(obstore.head(self._store, key))

    @contextmanager
    def read(self, key: str, start: int = 0, etag: str | None = None) -> Iterator[Reading]:
        import obstore

        self._count("get")
        location = self.root / key
        options: dict[str, Any] = {}
        if etag:
            options["if_match"] = etag
        if start:
            options["range"] = {"offset": start}
        with self._errors(location):
            result = obstore.get(self._store, key, options=options or None)  # type: ignore[arg-type]
            entry = _entry(result.meta)
        yield Reading(entry, self._pieces(location, result), start)

    def put(self, key: str, data: bytes | Path) -> Entry:
        import obstore

        size = data.stat().st_size if isinstance(data, Path) else len(data)
        self._count("put", 1 if size <= PART else 2 + -(-size // PART))
        with self._errors(self.root / key):
            return _written(
                key,
                size,
                obstore.put(self._store, key, data, chunk_size=PART, max_concurrency=PARTS),
            )

    def create(self, key: str, data: bytes) -> Entry:
        import obstore

        self._count("create")
        with self._errors(self.root / key):
            return _written(key, len(data), obstore.put(self._store, key, data, mode="create"))

    def delete(self, key: str) -> None:
        import obstore

        self._count("delete")
        try:
            with self._errors(self.root / key):
                obstore.delete(self._store, key)
        except MissingError:
            return

    def _pieces(self, location: Location, result: Any) -> Iterator[bytes]:
        with self._errors(location):
            for piece in result.stream(min_chunk_size=PIECE):
                yield bytes(piece)

    def _count(self, kind: str, number: int = 1) -> None:
        with self._counting:
            self.requests[kind] += number

    @contextmanager
    def _errors(self, location: Location) -> Iterator[None]:
        try:
            yield
        except LocatedError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:
            raise located(location, error) from None  # its text may hold signatures
        except BaseException as error:
            if type(error).__module__.startswith(("obstore", "pyo3")):
                raise located(location, error) from None
            raise


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


def _open(location: Location) -> ObjectStore:
    try:
        from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store
    except ImportError as error:
        raise UsageError(f"{location.scheme}:// needs obstore: {how_to_install('s3')}") from error
    if location.scheme == "memory":
        store: MemoryStore = _MEMORY.setdefault(location.host, MemoryStore())
        return store
    if location.scheme == "file":
        try:
            return LocalStore(location.key, mkdir=True)
        except OSError as error:
            raise UsageError(f"{location}: the folder cannot be made; name another one") from error
    endpoint = _endpoint() if location.scheme == "s3" else ""
    options: Any = {
        "connect_timeout": "10s",
        "read_timeout": "60s",
        # Of the whole body: a long recording over a slow line. `read_timeout` finds dead connections.
        "timeout": "6h",
        "allow_http": endpoint.startswith("http://"),
        "user_agent": "forescribe",
    }
    common: dict[str, Any] = {"client_options": options, "retry_config": {"max_retries": 0}}
    try:
        if location.scheme == "s3":
            own = profile_settings() | ({"endpoint": endpoint} if endpoint else {})
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


def _entry(meta: Any) -> Entry:
    written = meta.get("last_modified")
    return Entry(
        meta["path"], meta["size"], meta.get("e_tag"), written.timestamp() if written else None
    )


def _written(key: str, size: int, result: Any) -> Entry:
    return Entry(key, size, result.get("e_tag"))
