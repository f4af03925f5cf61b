"""Report pages: a recording as one HTML file to read, play and share.

    text = render_page(transcript, "memo", page_sound("memo.flac", folder))

A page loads nothing else: text, figures, program and, up to EMBEDDED_BYTES, the recording are in
it, and its Content-Security-Policy allows nothing more. Texts and file names are untrusted: they
are embedded as JSON, and the program inserts them as text only. The program is that of the
service's page: the modules in view/, joined into one. Knows transcripts and the files in view/;
writes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from ..records.recording_sources import STDIN
from .text_formats import txt
from .transcript import Json, Transcript

EMBEDDED_BYTES = 24 << 20
"""Recordings up to this size are embedded in the page, where they are a third larger (base64).
Browsers open pages of 32 MiB at once, and few mail servers accept larger ones."""

PLAYABLE: Mapping[str, str] = {
    ".aac": "audio/aac",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".mp3": "audio/mpeg",
    ".mp4": "audio/mp4",
    ".oga": "audio/ogg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".wav": "audio/wav",
    ".webm": "audio/webm",
}

MODULES = (
    "dom.js",
    "clock.js",
    "model.js",
    "names.js",
    "formats.js",
    "transcript.js",
    "player.js",
    "coverage.js",
    "figures.js",
    "warnings.js",
    "roving.js",
    "menu.js",
    "shortcuts.js",
    "viewer.js",
    "report.js",
)
"""The files of the program, each after those that it imports."""


@dataclass(frozen=True)
class Sound:
    """The sound of a page: a URL or None, and a note for the reader."""

    src: str | None
    note: str = ""

    @property
    def embedded(self) -> bool:
        return self.src is not None and self.src.startswith("data:")


def page_sound(source: str, folder: Path) -> Sound:
    """Return the recording for a page in `folder`: embedded, or as a relative URL if it is large."""
    if source == STDIN:
        return Sound(None, "The recording came through a pipe and was not kept: nothing to play.")
    path = Path(source)
    kind = PLAYABLE.get(path.suffix.lower())
    if kind is None:
        return Sound(None, f"Browsers do not play {path.suffix or 'such'} files: nothing to play.")
    try:
        size = path.stat().st_size
        if size <= EMBEDDED_BYTES:
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            return Sound(f"data:{kind};base64,{data}")
    except OSError as error:
        return Sound(None, f"The recording could not be read again: {error.strerror}.")
    place = os.path.relpath(os.path.abspath(path), os.path.abspath(folder))
    note = (
        f"The recording ({size / (1 << 20):.0f} MiB) is not in this page. It is loaded from {place}: "
        "keep the page and the recording where they are."
    )
    return Sound(quote(os.fsencode(place)), note)


def render_page(transcript: Transcript, title: str, sound: Sound) -> str:
    """Return the page of one recording."""
    data: dict[str, Json] = {
        "title": title,
        # The browser stores the names that a reader gives to speakers under this key.
        "key": hashlib.sha256(os.fsencode(f"{title}:{transcript.sample_count}")).hexdigest()[:16],
        "audio": sound.src,
        "note": sound.note,
        "transcript": transcript.to_dict(),
    }
    return _filled(
        "report.html",
        TITLE=html.escape(title),
        POLICY=html.escape(_policy(sound)),
        STYLE=_style(),
        PLAIN=f'<p class="plain">{html.escape(_plain(transcript))}</p>',
        # "<" as an escape of JSON: no text can end the element that it is in.
        DATA=json.dumps(data, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c"),
        SCRIPT=_script(),
    )


@dataclass(frozen=True)
class IndexRow:
    """A recording in the list: its page, or None, and its status. `speed` is audio seconds per
    second."""

    href: str | None
    name: str
    status: str
    length_s: float | None = None
    language: str | None = None
    speed: float | None = None
    acceptance_rate: float | None = None

    def to_html(self) -> str:
        name = html.escape(self.name)
        link = name if self.href is None else f'<a href="{html.escape(self.href)}">{name}</a>'
        failed = ' class="failed"' if self.href is None else ""
        numbers = (
            "" if self.length_s is None else f"{self.length_s:.1f} s",
            "" if self.speed is None else f"{self.speed:.1f}×",
            "" if self.acceptance_rate is None else f"{100 * self.acceptance_rate:.1f} %",
        )
        cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
        return (
            f'<tr><th scope="row" dir="auto">{link}</th><td{failed}>{html.escape(self.status)}</td>'
            f"<td>{html.escape(self.language or '')}</td>{cells}</tr>"
        )


def render_index(rows: Iterable[IndexRow]) -> str:
    """Return the page with a list of reports; it has no program."""
    return _filled(
        "reports.html",
        POLICY=html.escape(f"default-src 'none'; style-src {_hash(_style())}; base-uri 'none'"),
        STYLE=_style(),
        ROWS="\n".join(row.to_html() for row in rows),
    )


def _plain(transcript: Transcript) -> str:
    """The text for browsers without scripts."""
    warned = "".join(f"Warning: {notice.message}\n" for notice in transcript.warnings)
    return warned + ("\n" if warned else "") + txt(transcript)


def view(name: str) -> str:
    """Return a file that the service's page and reports share."""
    return (files(__package__) / "view" / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    return view("view.css") + view("report.css")


@cache
def _script() -> str:
    """Join the modules, without imports and exports; no two of them define the same name."""
    return "".join(
        re.sub(r"^import .*;\n", "", re.sub(r"^export ", "", view(name), flags=re.M), flags=re.M)
        for name in MODULES
    )


def _policy(sound: Sound) -> str:
    media = "data:" if sound.embedded else "'self' file:"
    return (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_style())}; "
        f"media-src {media}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _filled(template: str, **parts: str) -> str:
    """Fill the template in one pass: a placeholder inside of an inserted text is left alone."""
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], view(template))
