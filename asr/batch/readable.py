"""Finds recordings that cannot be read before any weights are searched for.

    sources = check_readable(discover(names))
    if any_readable(sources): ...                # load a model

A run with nothing to transcribe must not download gigabytes to say so. Pipes and stdin are not
opened, as they can be read only once. Imports are light: decoders are loaded with the first file
that can be read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..audio.opening import empty, open_path, unreadable
from ..errors import AudioError
from ..printable import visible
from ..records.recording_sources import STDIN, Source


def check_readable(sources: Iterable[Source], *, decode: bool = True) -> list[Source]:
    """Return the same recordings; those that cannot be read have an error.

    With `decode`, files are decoded until one holds audio: a folder of a thousand costs one.
    """
    checked = [_opened(source) for source in sources]
    for index, source in enumerate(checked):
        if not decode or (source.error is None and not _is_file(source.path)):
            break
        if source.error is None:
            checked[index] = source = _decoded(source)
            if source.error is None:
                break
    return checked


def any_readable(sources: Iterable[Source]) -> bool:
    """Whether there is a recording to load a model for."""
    return any(source.error is None for source in sources)


def _opened(source: Source) -> Source:
    known = source.error is not None or source.location is not None
    if known or source.path == STDIN or _is_pipe(source.path):
        return source
    name = visible(source.path)
    try:
        with open_path(Path(source.path), name) as file:
            return source if file.read(1) else replace(source, error=empty(name))
    except AudioError as error:
        return replace(source, error=error)
    except OSError as error:  # it opens but cannot be read
        return replace(source, error=unreadable(name, error))


def _decoded(source: Source) -> Source:
    from ..audio.reading import open_audio

    try:
        open_audio(source.path).close()
    except AudioError as error:
        return replace(source, error=error)
    return source


def _is_file(path: str) -> bool:
    return path != STDIN and os.path.isfile(path)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
