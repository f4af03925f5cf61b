"""Reports: a recording as one HTML file that can be looked at, heard and passed on.

    reports = Reports.plan("report.html", sources)
    reports.add(ended)          # a recording that has ended
    reports.close()

The file asks nobody for anything: text, figures, program and, up to EMBEDDED_BYTES, the recording
itself are in it, and its Content-Security-Policy lets nothing else in. What was said and how files
are called is hostile until it is escaped: it travels as JSON, and the program sets it as text only.

The program is that of the service's page: the modules in view/, joined into one.
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
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..batch.inputs import STDIN
from ..errors import OutputError, UsageError
from .files import put, txt
from .transcript import Json, Transcript

if TYPE_CHECKING:
    from ..batch.recording_results import RecordingResult

EMBEDDED_BYTES = 24 << 20
"""A recording up to this size travels in the page, a third larger there (base64). Browsers open
pages of 32 MiB at once, and mail takes few that are larger."""

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
"""In the order in which they are joined: each after those that it imports."""


@dataclass(frozen=True)
class Sound:
    """What a page plays: a URL, or nothing, and what its reader must know about it."""

    src: str | None
    note: str = ""

    @property
    def embedded(self) -> bool:
        return self.src is not None and self.src.startswith("data:")


def sound(source: str, folder: Path) -> Sound:
    """The recording for a page in `folder`: in it, or beside it where it is large."""
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
        f"The recording ({size / (1 << 20):.0f} MiB) is not in this page. It plays from {place}, "
        "as long as page and recording stay where they are."
    )
    return Sound(quote(os.fsencode(place)), note)


def page(transcript: Transcript, title: str, played: Sound) -> str:
    """The report of one recording."""
    data: dict[str, Json] = {
        "title": title,
        # Names that a reader gives to speakers are kept under it.
        "key": hashlib.sha256(os.fsencode(f"{title}:{transcript.sample_count}")).hexdigest()[:16],
        "audio": played.src,
        "note": played.note,
        "transcript": transcript.to_dict(),
    }
    return _filled(
        "report.html",
        TITLE=html.escape(title),
        POLICY=html.escape(_policy(played)),
        STYLE=_style(),
        PLAIN=f'<p class="plain">{html.escape(_plain(transcript))}</p>',
        # As JSON is read, "<" may be written so: no text can end the element that it is in.
        DATA=json.dumps(data, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c"),
        SCRIPT=_script(),
    )


@dataclass(frozen=True)
class Row:
    """A recording in the list: its page, or None, and what became of it. `speed` is audio seconds per
    second, `kept` the share of drafts accepted."""

    href: str | None
    name: str
    told: str
    length_s: float | None = None
    language: str | None = None
    speed: float | None = None
    kept: float | None = None

    def to_html(self) -> str:
        said = html.escape(self.name)
        link = said if self.href is None else f'<a href="{html.escape(self.href)}">{said}</a>'
        bad = ' class="failed"' if self.href is None else ""
        numbers = (
            "" if self.length_s is None else f"{self.length_s:.1f} s",
            "" if self.speed is None else f"{self.speed:.1f}×",
            "" if self.kept is None else f"{100 * self.kept:.1f} %",
        )
        cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
        return (
            f'<tr><th scope="row" dir="auto">{link}</th><td{bad}>{html.escape(self.told)}</td>'
            f"<td>{html.escape(self.language or '')}</td>{cells}</tr>"
        )


def index(rows: Iterable[Row]) -> str:
    """A list of reports, without any program."""
    return _filled(
        "reports.html",
        POLICY=html.escape(f"default-src 'none'; style-src {_hash(_style())}; base-uri 'none'"),
        STYLE=_style(),
        ROWS="\n".join(row.to_html() for row in rows),
    )


@dataclass
class Reports:
    """The reports of one run. `file` for one recording, else `folder`, with a page for each and an
    index.

    What cannot be written stops no recording: `close` raises it.
    """

    folder: Path
    stems: Mapping[str, str]
    file: Path | None = None
    _rows: list[Row] = field(default_factory=list)
    _error: OutputError | None = None

    @classmethod
    def plan(cls, where: str, stems: Mapping[str, str]) -> Reports:
        """`where` ends in .html for one recording, and is a folder else; `stems` are recordings
        with the names that their results have. Raises UsageError for several recordings in one
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

    def add(self, ended: RecordingResult) -> None:
        """A recording that has ended, in whatever way."""
        record, transcript = ended.record, ended.transcript
        if transcript is None or ended.error is not None:
            told = ended.error.message if ended.error is not None else record.status
            self._rows.append(Row(None, record.path, told))
            return
        self._page(record.path, transcript)

    def add_skipped(self, ended: RecordingResult) -> bool:
        """A recording whose results an earlier run has left; False where no JSON that can be read is
        among them, so that nothing can be shown."""
        for path in ended.files:
            if path.suffix == ".json":
                try:
                    told = Transcript.from_dict(json.loads(path.read_text(encoding="utf-8")))
                except (OSError, ValueError, KeyError, TypeError):  # somebody has changed it since
                    return False
                self._page(ended.record.path, told)
                return True
        return False

    def close(self) -> list[Path]:
        """Writes the index; the files to open. Raises OutputError."""
        if self.file is None and self._error is None:
            self._write(self.folder / "index.html", index(self._rows))
        if self._error is not None:
            raise self._error
        return [self.folder / "index.html"] if self.file is None else [self.file]

    def _page(self, source: str, transcript: Transcript) -> None:
        path = self.file or self.folder / f"{self.stems[source]}.html"
        title = os.path.basename(source) if source != STDIN else "stdin"
        text = page(transcript, title, sound(source, path.parent))
        self._write(path, text)
        stats, href = transcript.stats, quote(os.fsencode(os.path.relpath(path, self.folder)))
        wall_s, kept = stats.get("wall_s"), stats.get("acceptance_rate")
        self._rows.append(
            Row(
                href,
                source,
                _told(transcript),
                transcript.duration,
                transcript.language,
                transcript.duration / wall_s if isinstance(wall_s, float) and wall_s else None,
                kept if isinstance(kept, float) else None,
            )
        )

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, text)
        except OSError as error:
            said = f"cannot write the report {str(path)!r}: {error.strerror or error}"
            self._error = self._error or OutputError(f"{said}; name another place with --report")


def _told(transcript: Transcript) -> str:
    """What became of a recording that was transcribed."""
    told = "done" if transcript.segments else "no speech"
    count = len(transcript.warnings)
    return told if not count else f"{told}, {count} warning{'s' if count > 1 else ''}"


def _plain(transcript: Transcript) -> str:
    """For readers without programs."""
    warned = "".join(f"Warning: {notice.message}\n" for notice in transcript.warnings)
    return warned + ("\n" if warned else "") + txt(transcript)


# -- the files in view/ -------------------------------------------------------------------------------


def view(name: str) -> str:
    """One of the files that page and report share."""
    return (files(__package__) / "view" / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    return view("view.css") + view("report.css")


@cache
def _script() -> str:
    """The modules as one: without their imports and exports, as their names differ."""
    return "".join(
        re.sub(r"^import .*;\n", "", re.sub(r"^export ", "", view(name), flags=re.M), flags=re.M)
        for name in MODULES
    )


def _policy(played: Sound) -> str:
    heard = "data:" if played.embedded else "'self' file:"
    return (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_style())}; "
        f"media-src {heard}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _filled(template: str, **parts: str) -> str:
    """In one pass: a part that looks like a place for another stays as it is."""
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], view(template))
