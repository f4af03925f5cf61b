"""Where results go: a folder or stdout, checked before anything is loaded.

    outputs = Outputs.plan(sources, "out", "txt,srt")
    outputs.write("calls/a.mp3", transcript)        # out/a.txt, out/a.srt

Knows files and formats; how names are chosen is in `output_names`, what earlier runs wrote in
`manifest`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OutputError, UsageError
from ..formats.files import TEMPORARY, formats, write
from ..formats.subtitles import PLAIN, LineRules
from ..formats.transcript import Transcript
from ..records.recording_sources import Source
from .manifest import Manifest
from .output_names import choose_stems, hashed_names

STDOUT = "-"


@dataclass(frozen=True)
class Outputs:
    """A folder, or stdout, and for every recording the path of its files there, without extension.

    In a folder, `manifest` knows what earlier runs wrote, and `owners` holds the recording that
    each name belonged to when the names were chosen."""

    folder: Path | None  # None: stdout
    formats: tuple[str, ...]
    stems: dict[str, str]
    rules: LineRules = PLAIN
    manifest: Manifest | None = None
    owners: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        sources: Sequence[Source],
        folder: str,
        names: str,
        *,
        rules: LineRules = PLAIN,
        make_folder: bool = True,
    ) -> Outputs:
        """Choose names for the results of `sources` in the formats `names`, and check everything
        that can be checked without a transcript; create the folder if `make_folder`.

        Raises UsageError for unknown formats, for several formats on stdout and for line rules without
        subtitles; OutputError for a folder that cannot be written.
        """
        chosen = tuple(format_.name for format_ in formats(names))
        if not rules.plain and not {"srt", "vtt"} & set(chosen):
            raise UsageError(
                "line rules and --highlight-words shape subtitles: add srt or vtt to -f"
            )
        if folder == STDOUT:
            if len(chosen) > 1:
                raise UsageError("stdout takes one format: choose it, as in `-o - -f txt`")
            return cls(None, chosen, choose_stems(sources, chosen), rules)
        path = Path(folder)
        if make_folder:
            _check_writable(path, folder)
        manifest = _manifest(path, folder)
        stems = choose_stems(sources, chosen, manifest)
        owners = {stem: manifest.owner(stem) for stem in stems.values()}
        return cls(path, chosen, stems, rules, manifest, owners)

    @property
    def keeps_order(self) -> bool:
        """Whether results come in the order of the sources: on stdout only the order tells texts apart."""
        return self.folder is None

    @property
    def leaves_terminal_free(self) -> bool:
        """Whether the text is not printed to the terminal by itself."""
        return self.folder is not None or not sys.stdout.isatty()

    def files(self, source: str) -> list[Path]:
        """The files of a recording's results; none on stdout."""
        if self.folder is None:
            return []
        return [self.folder / f"{self.stems[source]}.{name}" for name in self.formats]

    def write(self, source: str, transcript: Transcript) -> list[Path]:
        """Write the transcript in all formats. In a folder, hold the manifest's lock from `settle`
        until the record is written. Raises OutputError."""
        if self.folder is None:
            _print(formats(self.formats, self.rules)[0].render(transcript))
            return []
        place, stem = os.path.split(self.stems[source])
        return write(transcript, self.folder / place, stem, self.formats, self.rules)

    def settle(self, source: str) -> None:
        """Give a recording another name if another process has taken its own since the run began."""
        manifest, stem = self.manifest, self.stems[source]
        if manifest is None:
            return
        if manifest.owner(stem) in (None, manifest.key(source), self.owners.get(stem)):
            return
        place, _ = os.path.split(stem)
        self.stems[source] = next(
            name
            for name in hashed_names(Source(source, place))
            if manifest.owner(name) in (None, manifest.key(source))
        )

    def sweep(self) -> None:
        """Remove files that a killed process left half written. Files are written under the manifest's
        lock, so those that exist while we hold it are abandoned."""
        if self.folder is None or self.manifest is None or not self.manifest.path.exists():
            return
        folders = {(self.folder / stem).parent for stem in self.stems.values()}
        with suppress(OSError), self.manifest.locked():
            for folder in folders:
                for path in folder.glob(TEMPORARY.format("*")):
                    path.unlink(missing_ok=True)


def _check_writable(path: Path, folder: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder!r}: {error.strerror}; "
            "name another one with -o"
        ) from error


def _manifest(path: Path, folder: str) -> Manifest:
    try:
        return Manifest(path)
    except OSError as error:
        raise OutputError(
            f"cannot read the manifest in {folder!r}: {error.strerror}; "
            "name another output folder with -o"
        ) from error


def _print(text: str) -> None:
    """Write to stdout in UTF-8, as in files, whatever the locale is."""
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has closed it: not an error of ours
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error
