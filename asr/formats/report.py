"""The HTML reports of a run: a page for each recording, and an index.

    reports = Reports.plan("report.html", stems)
    reports.add(result)          # for each recording that has ended
    reports.close()

Knows the results of a run and where pages are written; what they look like is in `report_page`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import OutputError, UsageError
from ..records.recording_sources import STDIN
from .files import put
from .report_page import IndexRow, page_sound, render_index, render_page
from .transcript import Transcript

if TYPE_CHECKING:
    from ..batch.recording_results import RecordingResult


@dataclass
class Reports:
    """The reports of one run: `file` for one recording, else a page for each in `folder`, and an index.

    A page that cannot be written does not stop the run: `close` raises the first error.
    """

    folder: Path
    stems: Mapping[str, str]
    file: Path | None = None
    _rows: list[IndexRow] = field(default_factory=list)
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

    def add(self, result: RecordingResult) -> None:
        """Add a recording that has ended: its page, or the reason why there is none."""
        record, transcript = result.record, result.transcript
        if transcript is None or result.error is not None:
            status = result.error.message if result.error is not None else record.status
            self._rows.append(IndexRow(None, record.path, status))
            return
        self._page(record.path, transcript)

    def add_skipped(self, result: RecordingResult) -> bool:
        """Add a recording that an earlier run has transcribed; returns False if its results include no
        readable JSON."""
        for path in result.files:
            if isinstance(path, Path) and path.suffix == ".json":  # no report has URLs
                try:
                    transcript = Transcript.from_dict(json.loads(path.read_text(encoding="utf-8")))
                except (OSError, ValueError, KeyError, TypeError):  # changed by another program
                    return False
                self._page(result.record.path, transcript)
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
        self._rows.append(
            IndexRow(
                href,
                source,
                _status(transcript),
                transcript.duration,
                transcript.language,
                transcript.duration / wall_s if isinstance(wall_s, float) and wall_s else None,
                accepted if isinstance(accepted, float) else None,
            )
        )

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            put(path, text)
        except OSError as error:
            message = f"cannot write the report {str(path)!r}: {error.strerror or error}"
            self._error = self._error or OutputError(f"{message}; name another place with --report")


def _status(transcript: Transcript) -> str:
    """The status of a recording that was transcribed."""
    status = "done" if transcript.segments else "no speech"
    count = len(transcript.warnings)
    return status if not count else f"{status}, {count} warning{'s' if count > 1 else ''}"
