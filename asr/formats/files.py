"""Output formats by name, and transcripts as files: txt, srt, vtt, tsv, json, rttm.

Files are UTF-8 without BOM, and appear whole or not at all. Knows names, folders and files; what a
format looks like is in `text_formats` and `rttm`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType

from ..errors import ForescribeError, OutputError, UsageError
from .rttm import rttm
from .subtitles import PLAIN, LineRules
from .text_formats import json_, srt, tsv, txt, vtt
from .transcript import Transcript

Render = Callable[[Transcript], str]

TEMPORARY = ".forescribe-{}.tmp"
"""Name of a file while it is written; a process that is killed may leave one behind."""


@dataclass(frozen=True)
class Format:
    """An output format: its name is also its file extension."""

    name: str
    render: Render


OF_SPEAKERS = frozenset({"rttm"})
"""Formats that are empty without speakers: written when named, but not by "all"."""

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        format_.name: format_
        for format_ in (
            Format("txt", txt),
            Format("srt", srt),
            Format("vtt", vtt),
            Format("tsv", tsv),
            Format("json", json_),
            Format("rttm", rttm),
        )
    }
)


def formats(names: str | Iterable[str], rules: LineRules = PLAIN) -> tuple[Format, ...]:
    """Return the formats for "txt,srt", ["txt", "srt"] or "all", each once, in the order given. `rules`
    apply to subtitles (srt and vtt).

    Raises UsageError, with a list of the known names.
    """
    given = names.split(",") if isinstance(names, str) else list(names)
    requested = [name.strip().lower() for name in given]
    every = [name for name in FORMATS if name not in OF_SPEAKERS]
    expanded = [known for name in requested for known in (every if name == "all" else [name])]
    unknown = [name for name in expanded if name not in FORMATS]
    if unknown or not expanded:
        culprit = f"unknown output format {unknown[0]!r}" if unknown else "no output format"
        close = get_close_matches(unknown[0], [*FORMATS, "all"], n=1) if unknown else []
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"{culprit}; known: {', '.join(FORMATS)}, all{meant}")
    shaped = {"srt": partial(srt, rules=rules), "vtt": partial(vtt, rules=rules)}
    chosen = [FORMATS[name] for name in dict.fromkeys(expanded)]
    if rules.plain:
        return tuple(chosen)
    return tuple(Format(f.name, shaped.get(f.name, f.render)) for f in chosen)


def write(
    transcript: Transcript,
    folder: str | Path,
    stem: str,
    names: str | Iterable[str] = "all",
    rules: LineRules = PLAIN,
) -> list[Path]:
    """Write `<folder>/<stem>.<format>` for each format; creates the folder; replaces what is there.

    Every format is rendered before the first file appears, and every file appears by a rename: a
    reader sees an old file, a new file or none, never half a file.

    Raises UsageError for an unknown format, OutputError: `unwritable_output` and `storage_full` if the
    folder refuses, `internal_error` if a format fails on this transcript.
    """
    if stem in ("", ".", "..") or Path(stem).name != stem:
        raise UsageError(f"{stem!r} is not a file name")
    texts = [(f.name, rendered(f, transcript, stem)) for f in formats(names, rules)]
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [put(folder / f"{stem}.{extension}", text) for extension, text in texts]
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OutputError(
            f"cannot write {stem!r} to {str(folder)!r}: {error.strerror or error}; "
            "name another folder with -o",
            code="storage_full" if full else "unwritable_output",
        ) from error


def rendered(format_: Format, transcript: Transcript, stem: str) -> str:
    """Render a format; a bug in it fails this recording, not the run."""
    try:
        return format_.render(transcript)
    except ForescribeError:
        raise
    except Exception as error:
        text = f"cannot write {stem!r} as {format_.name}: {type(error).__name__}: {error}"
        raise OutputError(text, code="internal_error") from error


def put(path: Path, text: str) -> Path:
    """Write a file whole or not at all. Raises OSError."""
    # Not tempfile: its files are private to the user (mode 0600), and the rename would keep that.
    temporary = path.with_name(TEMPORARY.format(secrets.token_hex(8)))
    try:
        # A lone surrogate cannot be written as UTF-8; one odd character must not cost the
        # transcript.
        temporary.write_bytes(text.encode("utf-8", errors="replace"))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return path


__all__ = [
    "FORMATS",
    "OF_SPEAKERS",
    "TEMPORARY",
    "Format",
    "formats",
    "json_",
    "put",
    "rendered",
    "srt",
    "tsv",
    "txt",
    "vtt",
    "write",
]
