"""Destinations: where the files and the records of a run are kept: a folder, object storage, or stdout.

In a **folder**, records are lines of `manifest.jsonl`, appended under the kernel's lock and never changed;
half a line that a killed process left is skipped. In **object storage**, a record is an object below
`_forescribe/records` that is created once: the first one of a recording is `<hash>.json`, one that takes its
place `<hash>.2.json`, and so on. If two processes transcribe the same recording, the second record is refused
and one remains. `manifest.jsonl` is written there at the end of a run, with the latest record of each
recording. On **stdout** nothing is known or kept.

Knows files, objects and records; nothing of what is in them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import ForescribeError, OutputError, UsageError, output_errors
from ..formats.files import TEMPORARY, put
from ..storage.locations import STDIN, Location, identity, is_url
from ..storage.store import Store
from ..storage.stores import Stores
from .ledger import Destination, Record

MANIFEST = "manifest.jsonl"
"""The file of records in a folder; in object storage, of those of all runs so far."""

RECORDS = "_forescribe/records/"

READERS = 16
"""Records that are read at a time."""

_RECORD = re.compile(rf"{RECORDS}([0-9a-f]{{32}})(?:\.(\d+))?\.json")


class Folder(Destination):
    """A folder of this machine. Raises OutputError for one that cannot be written, unless `dry_run`."""

    def __init__(self, folder: Path, *, dry_run: bool = False) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder / MANIFEST
        self._read: int | None = None  # bytes
        if not dry_run:
            with output_errors(f"to the output folder {str(folder)!r}", "name another one with -o"):
                self.folder.mkdir(parents=True, exist_ok=True)
                (probe := self.folder / TEMPORARY.format(secrets.token_hex(8))).touch()
                probe.unlink()

    def key(self, path: str) -> str:
        """Relative to the folder, so that both can be moved together."""
        if path == STDIN or is_url(path):
            return path
        return os.path.relpath(identity(path), self.folder)

    def exists(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        with output_errors(f"{path.stem!r} to {str(path.parent)!r}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, data)

    def fresh(self) -> Iterable[Record]:
        """Raises OutputError, and UsageError for lines of which none is of ours."""
        first, self._read = self._read is None, self._read or 0
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    self._read = 0  # it was replaced
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise OutputError(
                f"cannot read {str(self.path)!r}: {error.strerror}; name another folder with -o"
            ) from error
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = list(filter(None, map(_json, whole.split(b"\n"))))
        ours = (isinstance(line, dict) and line.keys() >= {"path", "status"} for line in lines)
        if first and lines and not any(ours):
            raise UsageError(
                f"{self.path} was not written by forescribe, which records its results in files of "
                "that name: name another folder with -o"
            )
        return list(_records(lines))

    def keep(self, record: Record) -> Record:
        # In ASCII: a path may hold bytes that are no text in any encoding.
        line = json.dumps(record.to_dict()) + "\n"
        with output_errors(repr(str(self.path))), self.path.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = "\n" + line  # after half a line of a killed process
            file.write(line.encode())
        return record

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A killed process releases the lock, as it is the kernel's. On file systems without locks, records
        are still whole lines. Raises OutputError."""
        with ExitStack() as held:
            with output_errors(repr(str(self.path))):
                file = held.enter_context(self.path.open("ab"))
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sweep(self, names: Iterable[str]) -> None:
        """Files are written under the lock, so those that exist while we hold it are abandoned."""
        if not self.path.exists():
            return
        folders = {(self.folder / name).parent for name in names}
        with suppress(OSError, OutputError), self.locked():
            for folder in folders:
                for path in folder.glob(TEMPORARY.format("*")):
                    path.unlink(missing_ok=True)


class Bucket(Destination):
    """Objects below a location. Raises UsageError for one that can only be read, and LocatedError, also for a
    store without conditional writes."""

    in_background = True

    def __init__(self, location: Location, stores: Stores, *, dry_run: bool = False) -> None:
        if not location.writable:
            raise UsageError(f"{location} can only be read: name s3://, gs://, az:// or a folder")
        self.store: Store = stores.at(location)
        if not dry_run:
            self.store.check_create()
        self._changing = threading.Lock()
        self._existing = set[str]()
        self._latest: dict[str, tuple[int, Record]] = {}  # by source, with its generation
        self._fresh: list[Record] = []
        self._created = False
        self._load()

    def _load(self) -> None:
        """One listing, one request for `manifest.jsonl`, and one for every record that was made since."""
        newest: dict[str, int] = {}
        for entry in self.store.list():
            self._existing.add(entry.key)
            if found := _RECORD.fullmatch(entry.key):
                newest[found[1]] = max(int(found[2] or 1), newest.get(found[1], 0))
        with suppress(FileNotFoundError):
            for line in self.store.read(MANIFEST).split(b"\n"):
                values = _json(line)
                for record in _records([values]):
                    generation = values.get("generation", 1) if isinstance(values, dict) else 1
                    if newest.get(_hash(record.source)) == generation:
                        newest.pop(_hash(record.source))
                        self._remember(record, generation)
        with ThreadPoolExecutor(READERS, "records") as pool:
            for generation, stored in pool.map(self._stored, newest.items()):
                if stored is not None:
                    self._remember(stored, generation)

    def key(self, path: str) -> str:
        return identity(path)

    def exists(self, name: str) -> bool:
        return name in self._existing

    def read(self, name: str) -> bytes:
        return self.store.read(name)

    def put(self, name: str, data: bytes) -> None:
        self.store.put(name, data)
        with self._changing:
            self._existing.add(name)

    def fresh(self) -> Iterable[Record]:
        with self._changing:
            fresh, self._fresh = self._fresh, []
            return fresh

    def keep(self, record: Record) -> Record:
        """If somebody else has recorded it since, ours is dropped, unless it is the only success: equal
        settings give equal files."""
        generation = self._latest[record.source][0] if record.source in self._latest else 0
        values = record.to_dict() | {"token": secrets.token_hex(8)}
        while True:
            generation += 1
            data = json.dumps(values | {"generation": generation}).encode() + b"\n"
            if self.store.create(_record_key(_hash(record.source), generation), data):
                break
            _, other = self._stored((_hash(record.source), generation))
            lost = record.status != "succeeded" or (
                other is not None and other.fingerprint == record.fingerprint
            )
            if other is not None and lost:
                record = other
                break
        with self._changing:
            self._created = True
            self._remember(record, generation)
        return record

    def close(self) -> None:
        """Write all records into one object, for readers who want one file; they are the truth without it."""
        if not self._created:
            return
        lines = [
            json.dumps(record.to_dict() | {"generation": generation})
            for _, (generation, record) in sorted(self._latest.items())
        ]
        with suppress(ForescribeError):
            self.store.put(MANIFEST, "".join(f"{line}\n" for line in lines).encode())

    def _stored(self, name: tuple[str, int]) -> tuple[int, Record | None]:
        """The record of a hash and a generation; a damaged one is as none, and the next takes its place."""
        digest, generation = name
        with suppress(FileNotFoundError):
            stored = _json(self.store.read(_record_key(digest, generation)))
            return generation, next(_records([stored]), None)
        return generation, None

    def _remember(self, record: Record, generation: int) -> None:
        self._latest[record.source] = generation, record
        self._fresh.append(record)


class Stdout(Destination):
    """Text, printed in UTF-8 as in files, whatever the locale is."""

    def put(self, name: str, data: bytes) -> None:
        """Raises OutputError, and BrokenPipeError if the reader has closed it: no error of ours."""
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _records(lines: Iterable[Any]) -> Iterator[Record]:
    """The records in values of JSON; what is damaged is left out."""
    for values in lines:
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            yield Record.from_dict(values)


def _json(line: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _hash(source: str) -> str:
    return hashlib.sha256(os.fsencode(source)).hexdigest()[:32]


def _record_key(digest: str, generation: int) -> str:
    return f"{RECORDS}{digest}{'' if generation == 1 else f'.{generation}'}.json"
