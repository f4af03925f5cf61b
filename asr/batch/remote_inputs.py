"""Inputs at locations: objects, folders of objects and patterns, by one listing each.

A folder's own name is not part of a recording's place. Knows names, sizes and tags; fetches nothing.
"""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase

from ..audio.opening import empty
from ..errors import AudioError, ForescribeError, UsageError
from ..storage.errors import MissingError
from ..storage.locations import WEB, Entry, Location, Source, has_recording_name, remote_source
from ..storage.stores import Stores

HEADS = 16
"""Objects that are asked for at a time."""


def is_object(location: Location) -> bool:
    """Whether a location can name a single object: neither a pattern nor a folder with a slash."""
    if location.scheme in WEB:
        return True
    return (
        bool(location.key) and not location.key.endswith("/") and not glob.has_magic(location.key)
    )


def expanded(location: Location, stores: Stores, *, recursive: bool = False) -> list[Source]:
    """The recordings that a location stands for. A folder without recordings, and a bucket that cannot be
    listed, become a source with an error. Raises UsageError for a pattern that matches nothing."""
    if location.scheme in WEB:
        return [remote_source(location)]
    try:
        if is_object(location):
            store, key = stores.of(location)
            try:
                return [_source(location, store.head(key))]
            except MissingError as error:
                below = _below(location, stores, recursive)
                return below or [remote_source(location, error=error)]
        if glob.has_magic(location.key):
            return _matched(location, stores)
        found = _below(location, stores, recursive)
    except UsageError:
        raise
    except ForescribeError as error:
        return [remote_source(location, error=error)]
    return found or [remote_source(location, error=without_recordings(str(location), recursive))]


def without_recordings(folder: str, recursive: bool) -> AudioError:
    """The error of a folder in which there are none."""
    hint = "" if recursive else "; --recursive looks in the folders below it"
    return AudioError(f"{folder}: a folder without recordings{hint}", code="unreadable_file")


def described(
    sources: Iterable[Source], stores: Stores, wanted: Callable[[Source], bool] | None = None
) -> list[Source]:
    """The same sources, those of lists with what their stores say about them. Web servers, whose signed
    addresses may be valid for one request, are asked about those that are `wanted`; one that does not answer
    will be asked for the recording itself."""

    def one(source: Source) -> Source:
        location = source.location
        if location is None or source.entry or source.error:
            return source
        web = location.scheme in WEB
        if web and not (wanted and wanted(source)):
            return source
        try:
            store, key = stores.of(location)
            entry = store.head(key)
        except ForescribeError as error:
            return source if web else replace(source, error=error)
        if web:
            return replace(source, entry=entry)
        return replace(_source(location, entry), length_s=source.length_s)

    with ThreadPoolExecutor(HEADS, "heads") as pool:
        return list(pool.map(one, sources))


def _below(location: Location, stores: Stores, recursive: bool) -> list[Source]:
    return [
        _source(location / entry.key, entry, posixpath.dirname(entry.key))
        for entry in stores.at(location).list()
        if _is_recording(entry.key) and (recursive or "/" not in entry.key)
    ]


def _matched(location: Location, stores: Stores) -> list[Source]:
    parts = location.key.split("/")
    first = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    top, pattern = replace(location, key="/".join(parts[:first])), parts[first:]
    found = [
        _source(top / entry.key, entry)
        for entry in stores.at(top).list()
        if entry.key == "/".join(pattern)
        or (_is_recording(entry.key) and _matches(entry.key.split("/"), pattern))
    ]
    if not found:
        raise UsageError(
            f"no recording matches {str(location)!r}; check the pattern and its folder"
        )
    return found


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether the parts of a name match those of a pattern: `*`, `?` and `[]` within one part, `**` for any
    folders."""
    if not pattern:
        return not parts
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(_matches(parts[n:], rest) for n in range(len(parts))) if rest else bool(parts)
    return bool(parts) and fnmatchcase(parts[0], first) and _matches(parts[1:], rest)


def _source(location: Location, entry: Entry, place: str = "") -> Source:
    error = None if entry.size else empty(str(location))
    return remote_source(location, entry, place=place, error=error)


def _is_recording(key: str) -> bool:
    """As in folders, hidden ones and what a run keeps beside its results are none."""
    parts = key.split("/")
    hidden = any(part.startswith(".") for part in parts) or parts[0] == "_forescribe"
    return not hidden and has_recording_name(key)
