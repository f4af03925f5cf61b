"""S3, Google Cloud Storage, Azure, memory and folders through obstore (extra `s3`).

Credentials, endpoints and regions come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_*, AZURE_*), from a profile in `~/.aws`, or from the
identity of the machine. obstore reads the environment only, so profiles are read here: those with keys; those
that log in (SSO) or assume roles are left to the environment.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import UsageError, how_to_install
from .errors import LocatedError, MissingError, located
from .locations import Entry, Location
from .store import OpenObject, Store

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

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except LocatedError:
            raise
        except (OSError, ValueError, NotImplementedError) as error:
            raise located(self.place(key), error) from None  # its text may hold signatures
        except BaseException as error:
            if type(error).__module__.startswith(("obstore", "pyo3")):
                raise located(self.place(key), error) from None
            raise

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
