"""Inputs: from the arguments of a command (files, folders, patterns, lists of files) to a list of recordings.

    sources = check_readable(discover(names))
    if any_readable(sources): ...                # load a model

In folders and for patterns, recordings are recognised by their names: a damaged `.mp3` is included and fails
by name later, as leaving it out would lose it silently. Hidden files are skipped, and a folder is entered
once, however many links lead there.

What cannot be read is found before any weights are searched for: a run with nothing to transcribe must not
download gigabytes to say so. Pipes and stdin are not opened, as they can be read only once.

Opens most recordings only; knows nothing of what becomes of them. Import is light: decoders are loaded with
the first file that can be read.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ..audio.opening import empty, open_path, unreadable
from ..errors import AudioError, UsageError, visible
from ..storage.locations import (
    LIST,
    STDIN,
    Location,
    Source,
    has_recording_name,
    identity,
    is_url,
    remote_source,
)
from ..storage.stores import Stores
from .remote_inputs import described, expanded, is_object, without_recordings


def discover(
    names: Iterable[str], *, recursive: bool = False, stores: Stores | None = None
) -> list[Source]:
    """Return all recordings that `names` stand for, in order, each once.

    A name is a file, a folder (with `recursive` all folders below it), a pattern with `*`, `?`,
    `[]` or `**`, a list (`.jsonl`, a JSON object per line with `audio_filepath`), or "-". A folder
    without recordings becomes a source with an error; the same file named twice, an empty name, a
    pattern that matches nothing and a list that cannot be read raise UsageError.

    With `stores`, names may be URLs, in lists too: objects, folders of objects and patterns. Without,
    they are names of files that do not exist."""
    named: set[str] = set()
    sources: dict[str, Source] = {}
    for name in names:
        if not name:
            raise UsageError("one of the recordings has an empty name: is a variable empty?")
        if stores is not None and is_url(name):
            meant = _remote(name, stores, recursive, named)
        elif _is_plain(name):
            if identity(name) in named:
                raise UsageError(f"{'stdin' if name == STDIN else identity(name)} was given twice")
            named.add(identity(name))
            meant = [Source(name)]
        else:
            meant = _expanded(name, recursive)
        for source in meant:
            first = sources.setdefault(identity(source.path), source)
            here, there = source.location, first.location
            if here is not None and there is not None and here.url != there.url:
                # They may be the same recording or another one, whose result would be lost.
                raise UsageError(
                    f"{here} is named by two addresses that differ in their signatures only (token, "
                    "expires, ...), so their results cannot be told apart: name one of them, or each in a "
                    "run of its own with another -o"
                )
    found = list(sources.values())
    if stores is None or all(source.location is None for source in found):
        return found
    return described(found, stores)


def check_readable(sources: Iterable[Source], *, decode: bool = True) -> list[Source]:
    """Return the same recordings; those that cannot be read have an error.

    With `decode`, files are decoded until one holds audio: a folder of a thousand costs one.
    """
    checked = list(map(_opened, sources))
    for index, source in enumerate(checked):
        is_file = source.path != STDIN and os.path.isfile(source.path)
        if not decode or (source.error is None and not is_file):
            break
        if source.error is None:
            from ..audio.reading import open_audio

            try:
                open_audio(source.path).close()
                break
            except AudioError as error:
                checked[index] = replace(source, error=error)
    return checked


def any_readable(sources: Iterable[Source]) -> bool:
    """Whether there is a recording to load a model for."""
    return any(source.error is None for source in sources)


def is_recording(path: str) -> bool:
    """Whether a file is a recording, by its name. Pipes and devices are not: opening one may block for
    ever."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # a broken link, no permission: opening it later gives the reason
        regular = True
    return regular and has_recording_name(path)


def _remote(name: str, stores: Stores, recursive: bool, named: set[str]) -> list[Source]:
    """The recordings that a URL stands for. Raises UsageError."""
    location = Location.parse(name)
    if location.scheme == "file":
        raise UsageError(f"{location}: name the path itself, {location.key}")
    if location.key.endswith(LIST):
        store, key = stores.of(location)
        lines = _lines(store.read(key), str(location))
        return [_entry(line, None, where, location) for line, where in lines]
    if is_object(location):
        if location.identity in named:
            raise UsageError(f"{location} was given twice")
        named.add(location.identity)
    return expanded(location, stores, recursive=recursive)


def _is_plain(name: str) -> bool:
    """Whether a name is a single file, or is to be reported as a missing one."""
    if name == STDIN:
        return True
    if os.path.lexists(name):
        return not os.path.isdir(name) and not name.endswith(LIST)
    return not glob.has_magic(name) and not name.endswith(LIST)


def _expanded(name: str, recursive: bool) -> list[Source]:
    if os.path.isdir(name):
        nothing = Source(name, error=without_recordings(name, recursive))
        return list(_walked(name, recursive)) or [nothing]
    if name.endswith(LIST):
        return _listed(Path(name))
    matched = list(_matched(name, recursive))
    if not matched:
        raise UsageError(f"no recording matches {name!r}; check the pattern and its folder")
    return matched


def _matched(pattern: str, recursive: bool) -> Iterator[Source]:
    for path in _globbed(pattern):
        if os.path.isdir(path):
            yield from _walked(path, recursive)
        elif is_recording(path):
            yield Source(path)


def _globbed(pattern: str) -> list[str]:
    """Match a pattern as a shell does: no hidden files unless the pattern says so, and `**` follows no
    links. (`glob.glob` does; two links in a circle made it run for ever.)"""
    if "**" not in pattern:
        return sorted(glob.glob(pattern))
    path = Path(pattern)
    top = Path(path.anchor)
    literal = set(path.parts)
    matches = top.glob(str(path.relative_to(top)))
    return sorted(
        str(match)
        for match in matches
        if not any(part[0] == "." and part not in literal for part in match.parts)
    )


def _walked(top: str, recursive: bool) -> Iterator[Source]:
    entered: set[tuple[int, int]] = set()
    refused: list[OSError] = []
    walk = os.walk(top, onerror=refused.append, followlinks=True)
    for folder, below, files in walk:
        entry = os.stat(folder)
        if (entry.st_dev, entry.st_ino) in entered:
            below.clear()
            continue
        entered.add((entry.st_dev, entry.st_ino))
        inner = [d for d in below if recursive and not d.startswith(".")]
        # Links last: the place of a recording should be its folder rather than a link to it.
        below[:] = sorted(inner, key=lambda d: (os.path.islink(os.path.join(folder, d)), d))
        place = os.path.relpath(folder, top)
        for file in sorted(files):
            path = os.path.join(folder, file)
            if not file.startswith(".") and is_recording(path):
                yield Source(path, "" if place == os.curdir else place)
    for error in refused:  # report it: a folder that cannot be read may hold recordings
        yield Source(str(error.filename), error=unreadable(visible(str(error.filename)), error))


def _listed(path: Path) -> list[Source]:
    """The recordings of a list with NeMo's keys. Relative paths are relative to the list's folder
    or, if no file is there, to the working directory. Raises UsageError that names the line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the list {path} cannot be read: {error.strerror}") from error
    return [_entry(line, path, where) for line, where in _lines(data, str(path))]


def _lines(data: bytes, name: str) -> list[tuple[str, str]]:
    """The lines of a list that have content, each with its name for messages. Raises UsageError."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the list {name} cannot be read: not UTF-8") from error
    lines = [(line, f"{name} line {n}") for n, line in enumerate(text.split("\n"), start=1)]
    whole = [(line, where) for line, where in lines if line.strip()]
    if not whole:
        raise UsageError(f"the list {name} names no recording")
    return whole


def _entry(line: str, path: Path | None, where: str, remote: Location | None = None) -> Source:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is no JSON: {error}") from error
    name = entry.get("audio_filepath") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where} has no audio_filepath")
    if entry.get("offset"):
        raise UsageError(f"{where} has an offset: recordings are transcribed whole; cut it first")
    length = entry.get("duration")
    number = isinstance(length, int | float) and not isinstance(length, bool) and length > 0
    seconds = float(length) if number else None
    if is_url(name):
        try:
            return remote_source(Location.parse(name), length_s=seconds)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
    if remote is not None and not name.startswith("/"):
        return remote_source(remote.parent / name, length_s=seconds)
    relative = (path.parent if path else Path()) / os.path.expanduser(name)
    return Source(str(relative) if relative.exists() else name, length_s=seconds)


def _opened(source: Source) -> Source:
    """The source, with an error if its file cannot be opened or is empty."""
    known = source.error is not None or source.location is not None
    if known or source.path == STDIN:
        return source
    path, name = Path(source.path), visible(source.path)
    try:
        if path.is_fifo():
            return source
        with open_path(path, name) as file:
            return source if file.read(1) else replace(source, error=empty(name))
    except AudioError as error:
        return replace(source, error=error)
    except OSError as error:  # it opens but cannot be read
        return replace(source, error=unreadable(name, error))
