"""Where results go: one name per recording, decided and tried before anything is loaded.

What a run finds in a folder it searched goes to the same place below the output folder. A name that
another recording's results have, in this run or by the manifest of an earlier one, is not taken;
neither is a name under which the output would replace a recording.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import OutputError, UsageError
from ..formats.files import TEMPORARY, formats, write
from ..formats.subtitles import PLAIN, LineRules
from ..formats.transcript import Transcript
from . import fingerprint
from .inputs import STDIN, Source, identity
from .manifest import Manifest

STDOUT = "-"


@dataclass(frozen=True)
class Destination:
    """A folder, or stdout, and for every recording the path of its files in it, without extension.

    In a folder, `manifest` knows what is there already, and `owners` whose the names were when they
    were chosen.
    """

    folder: Path | None  # None: stdout
    names: tuple[str, ...]  # of the formats
    stems: dict[str, str]
    rules: LineRules = PLAIN
    manifest: Manifest | None = None
    owners: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        folder: str,
        names: str,
        *,
        rules: LineRules = PLAIN,
        make: bool = True,
    ) -> Destination:
        """Checks everything that can be wrong without a transcript; `make` the folder, too.

        Raises UsageError for unknown formats, for several formats on stdout and for line rules
        without subtitles; OutputError for a folder that cannot be written.
        """
        wanted = tuple(f.name for f in formats(names))
        if not rules.plain and not {"srt", "vtt"} & set(wanted):
            raise UsageError(
                "line rules and --highlight-words shape subtitles: add srt or vtt to -f"
            )
        if folder == STDOUT:
            if len(wanted) > 1:
                raise UsageError("stdout takes one format: choose it, as in `-o - -f txt`")
            return cls(None, wanted, _stems(sources, wanted), rules)
        path = Path(folder)
        if make:
            _try(path, folder)
        try:
            manifest = Manifest(path)
        except OSError as error:
            raise OutputError(
                f"cannot read the manifest in {folder!r}: {error.strerror}; "
                "name another output folder with -o"
            ) from error
        stems = _stems(sources, wanted, manifest)
        owners = {stem: manifest.owner(stem) for stem in stems.values()}
        return cls(path, wanted, stems, rules, manifest, owners)

    def files(self, source: str) -> list[Path]:
        """Where the results of a recording go."""
        if self.folder is None:
            return []
        return [self.folder / f"{self.stems[source]}.{name}" for name in self.names]

    def write(self, source: str, transcript: Transcript) -> list[Path]:
        """The transcript in all formats. In a folder, hold the manifest's lock from `settle` to the
        record. Raises OutputError."""
        if self.folder is None:
            _print(formats(self.names, self.rules)[0].render(transcript))
            return []
        place, stem = os.path.split(self.stems[source])
        return write(transcript, self.folder / place, stem, self.names, self.rules)

    def settle(self, source: str) -> None:
        """Gives a recording another name if another process has taken its own since the run began."""
        manifest, stem = self.manifest, self.stems[source]
        if manifest is None:
            return
        if manifest.owner(stem) in (None, manifest.key(source), self.owners.get(stem)):
            return
        place, name = os.path.split(stem)
        _, _, *hashed = _choices(Source(source, place))
        self.stems[source] = next(
            choice for choice in hashed if manifest.owner(choice) in (None, manifest.key(source))
        )

    def sweep(self) -> None:
        """Removes what a killed process had half written. Files are written under the manifest's
        lock, so what is there while we hold it is nobody's."""
        if self.folder is None or self.manifest is None or not self.manifest.path.exists():
            return
        folders = {(self.folder / stem).parent for stem in self.stems.values()}
        with suppress(OSError), self.manifest.locked():
            for folder in folders:
                for path in folder.glob(TEMPORARY.format("*")):
                    path.unlink(missing_ok=True)


def _try(path: Path, folder: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder!r}: {error.strerror}; "
            "name another one with -o"
        ) from error


def _print(text: str) -> None:
    """To stdout, in UTF-8 as in files, whatever the locale says."""
    try:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough: no fault
        raise
    except OSError as error:
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _stems(
    sources: Sequence[Source], formats: Sequence[str], manifest: Manifest | None = None
) -> dict[str, str]:
    """File stems by source: the one its results have by the manifest, or the shortest that no other
    recording could take.

    `a.mp3` and `a.wav` keep their extensions, `x/a.mp3` and `y/a.mp3` get a short hash of their
    place, so no result ever overwrites another one.
    """
    choices = {source.path: _choices(source) for source in sources if source.error is None}
    kept = _kept(choices, manifest) if manifest else {}
    claims = Counter(
        name
        for path, names in choices.items()
        for name in ({kept[path]} if path in kept else set(names))
    )
    taken = _Taken(choices, formats, manifest)
    return {
        path: kept.get(path)
        or next((n for n in names if claims[n] == 1 and not taken(n, path)), names[-1])
        for path, names in choices.items()
    }


def _kept(choices: dict[str, tuple[str, ...]], manifest: Manifest) -> dict[str, str]:
    """The names of earlier runs: a second `a` in the folder must not rename the first one."""
    kept = {}
    for path, names in choices.items():
        earlier = manifest.stems_of(manifest.key(path))
        if found := next((stem for stem in earlier if stem in names), None):
            kept[path] = found
    return kept


class _Taken:
    """Whether a name's files are another recording's, or a recording itself."""

    def __init__(
        self, choices: dict[str, tuple[str, ...]], formats: Sequence[str], manifest: Manifest | None
    ) -> None:
        self.formats, self.manifest = formats, manifest
        self.inputs = {identity(path) for path in choices}
        self.keys = {manifest.key(path) for path in choices} if manifest else set()

    def __call__(self, stem: str, path: str) -> bool:
        if self.manifest is None:
            return False
        files = (os.path.join(self.manifest.folder, f"{stem}.{name}") for name in self.formats)
        if any(file in self.inputs for file in files):
            return True
        owner = self.manifest.owner(stem)
        if owner in (None, self.manifest.key(path)):
            return False
        return owner in self.keys or not self._moved(stem, path)

    def _moved(self, stem: str, path: str) -> bool:
        """Whether the owner is this recording, in another place: its bytes are the same."""
        assert self.manifest is not None
        found = fingerprint.content(path)
        return found is not None and any(
            known is not None and known.startswith(f"sha256:{found}+")
            for known in (self.manifest.fingerprint(f"{stem}.{name}") for name in self.formats)
        )


def _choices(source: Source) -> tuple[str, ...]:
    """Possible stems, the best first; the last one is nobody else's."""
    digest = hashlib.sha256(os.fsencode(source.path)).hexdigest()
    path = Path("stdin" if source.path == STDIN else source.path)
    names = path.stem, path.name, f"{path.stem}-{digest[:8]}", f"{path.stem}-{digest}"
    return tuple(os.path.join(source.place, name) for name in names)
