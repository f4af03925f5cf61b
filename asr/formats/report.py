"""The HTML reports of a run: a page for each recording, to read, play and share, and an index.

A page loads nothing else: text, figures, program and, up to EMBEDDED_BYTES, the recording are in
it, and its Content-Security-Policy allows nothing more. Texts and file names are untrusted: they
are embedded as JSON, and the program inserts them as text only. The program is that of the
service's page: the modules in view/, joined into one.

Knows transcripts, the results of a run and the files in view/; nothing of how results are made.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from ..errors import OutputError, UsageError
from ..storage.locations import STDIN
from .files import put, txt
from .transcript import Transcript
from .transcript_parts import Json

EMBEDDED_BYTES = 24 << 20
"""Recordings up to this size are embedded in the page, where they are a third larger (base64).
Browsers open pages of 32 MiB at once, and few mail servers accept larger ones."""

PLAYABLE: Mapping[str, str] = {  # types of sound that browsers play, by extension
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
    "dom.js model.js names.js formats.js docx.js menu.js edits.js saving.js editor.js search.js people.js "
    "transcript.js selection.js versions.js player.js viewer.js report.js"
).split()
"""The files of the program, each after those that it imports."""


@dataclass
class Reports:
    """The reports of one run: `file` for one recording, else a page for each in `folder`, and an index.

    A page that cannot be written does not stop the run: `close` raises the first error.
    """

    folder: Path
    stems: Mapping[str, str]
    file: Path | None = None
    _rows: list[str] = field(default_factory=list)
    _error: OutputError | None = None

    @classmethod
    def plan(cls, where: str, stems: Mapping[str, str]) -> Reports:
        """Plan reports at `where`: a file that ends in .html for one recording, else a folder. `stems`
        maps recordings to the names of their results. Raises UsageError for several recordings in one
        file."""
        path = Path(where)
        if path.suffix.lower() not in (".html", ".htm"):
            return cls(path, stems)
        if len(stems) > 1:
            raise UsageError(
                f"--report {where}: a page holds one recording, and there are {len(stems)}; "
                "name a folder"
            )
        return cls(path.parent, stems, path)

    def add(self, source: str, outcome: Transcript | str) -> None:
        """Add a recording that has ended: its page, or the reason why there is none."""
        if isinstance(outcome, str):
            self._rows.append(_row(source, None, outcome))
        else:
            self._page(source, outcome)

    def add_skipped(self, source: str, files: Iterable[object]) -> bool:
        """Add a recording that an earlier run has transcribed into these files; returns False if they include
        no readable JSON."""
        for path in files:
            if isinstance(path, Path) and path.suffix == ".json":  # no report has URLs
                try:
                    transcript = Transcript.load(path)
                except UsageError:  # changed by another program
                    return False
                self._page(source, transcript)
                return True
        return False

    def close(self) -> list[Path]:
        """Write the index and return the files to open. Raises OutputError."""
        if self.file is None and self._error is None:
            self._write(self.folder / "index.html", render_index(self._rows))
        if self._error is not None:
            raise self._error
        return [self.folder / "index.html"] if self.file is None else [self.file]

    def _page(self, source: str, transcript: Transcript) -> None:
        path = self.file or self.folder / f"{self.stems[source]}.html"
        title = os.path.basename(source) if source != STDIN else "stdin"
        text = render_page(transcript, title, page_sound(source, path.parent))
        self._write(path, text)
        stats, href = transcript.stats, quote(os.fsencode(os.path.relpath(path, self.folder)))
        wall_s, accepted = stats.get("wall_s"), stats.get("acceptance_rate")
        figures = (
            transcript.language or "",
            f"{transcript.duration:.1f} s",
            f"{transcript.duration / wall_s:.1f}×" if isinstance(wall_s, float) and wall_s else "",
            f"{100 * accepted:.1f} %" if isinstance(accepted, float) else "",
        )
        self._rows.append(_row(source, href, _status(transcript), *figures))

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, text)
        except OSError as error:
            message = f"cannot write the report {str(path)!r}: {error.strerror or error}"
            self._error = self._error or OutputError(f"{message}; name another place with --report")


def render_page(transcript: Transcript, title: str, sound: Sound) -> str:
    data: dict[str, Json] = {
        "title": title,
        # The browser stores the names that a reader gives to speakers under this key.
        "key": hashlib.sha256(os.fsencode(f"{title}:{transcript.sample_count}")).hexdigest()[:16],
        "audio": sound.src,
        "note": sound.note,
        "transcript": transcript.to_dict(),
    }
    # "<" as an escape of JSON: no text can end the element that it is in.
    text = json.dumps(data, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return _filled(
        title,
        _policy(sound),
        f'<noscript><p class="plain">{html.escape(_plain(transcript))}</p></noscript>',
        f'<script type="application/json" id="report">{text}</script>\n'
        f'<script type="module">{_script()}</script>',
    )


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


@dataclass(frozen=True)
class Sound:
    """The sound of a page: a URL or None, and a note for the reader."""

    src: str | None
    note: str = ""


INDEX_COLUMNS = ("Recording", "Result", "Language", "Length", "Speed", "Drafts accepted")


def render_index(rows: Iterable[str]) -> str:
    policy = f"default-src 'none'; style-src {_hash(_style())}; base-uri 'none'"
    head = "".join(f'<th scope="col">{column}</th>' for column in INDEX_COLUMNS)
    body = "\n".join(rows)
    return _filled(
        "Recordings",
        policy,
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>",
    )


def _row(source: str, href: str | None, status: str, *figures: str) -> str:
    """A recording in the list: the address of its page, if it has one, and its other columns."""
    name = html.escape(source)
    link = name if href is None else f'<a href="{html.escape(href)}">{name}</a>'
    failed = ' class="failed"' if href is None else ""
    cells = "".join(f"<td>{html.escape(text)}</td>" for text in figures or ("", "", "", ""))
    return f'<tr><th scope="row" dir="auto">{link}</th><td{failed}>{html.escape(status)}</td>{cells}</tr>'


def view(name: str) -> str:
    """Return a file that the service's page and reports share."""
    return (files(__package__) / "view" / name).read_text(encoding="utf-8")


def _status(transcript: Transcript) -> str:
    status = "done" if transcript.segments else "no speech"
    count = len(transcript.warnings)
    return status if not count else f"{status}, {count} warning{'s' if count > 1 else ''}"


def _plain(transcript: Transcript) -> str:
    warned = "".join(f"Warning: {notice.message}\n" for notice in transcript.warnings)
    return warned + ("\n" if warned else "") + txt(transcript)


@cache
def _style() -> str:
    return view("view.css")


@cache
def _script() -> str:
    """Join the modules, without imports and exports; no two of them define the same name."""
    return "".join(
        re.sub(r"^import .*;\n", "", re.sub(r"^export ", "", view(name), flags=re.M), flags=re.M)
        for name in MODULES
    )


def _policy(sound: Sound) -> str:
    media = "data:" if (sound.src or "").startswith("data:") else "'self' file:"
    return (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_style())}; "
        f"media-src {media}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _filled(title: str, policy: str, body: str, program: str = "") -> str:
    """Fill the template in one pass: a placeholder inside of an inserted text is left alone."""
    parts = {
        "TITLE": html.escape(title),
        "POLICY": html.escape(policy),
        "STYLE": _style(),
        "BODY": body,
        "PROGRAM": program,
    }
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], view("report.html"))
