"""Sources: the recordings of a run, as values, and what tells them apart.

    Source("calls/a.mp3").path                 # a file
    remote_source(Location.parse("s3://calls/a.mp3"), entry)

Knows names and locations; reads nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import ForescribeError
from .storage.locations import Entry, Location, is_url

STDIN = "-"
LIST = ".jsonl"
RESULTS = frozenset({".txt", ".srt", ".vtt", ".tsv", ".json", ".rttm", LIST})

NAMES = frozenset(
    "wav wave w64 rf64 aif aiff aifc au snd caf flac mp3 mp2 m4a m4b m4v aac ogg oga opus spx "
    "wma asf webm mkv mka mp4 mov 3gp 3g2 avi flv mpg mpeg m2ts mts amr ac3 eac3 dts ape wv tta "
    "tak mpc dsf gsm voc nut mxf".split()
)
"""Extensions of recordings. `ts` is not included: most such files are TypeScript."""


@dataclass(frozen=True)
class Source:
    """A recording to be transcribed.

    `path` is its path, or the identity of its location. `place` is its path below the folder that was
    named; its results go to the same place below the output folder. `length_s` is its length by a list.
    `error` is the reason why it cannot be read. `location` is where it is fetched from, with what its store
    says about it in `entry`; None for files of this machine.
    """

    path: str
    place: str = ""
    length_s: float | None = None
    error: ForescribeError | None = None
    location: Location | None = None
    entry: Entry | None = None

    @property
    def version(self) -> str | None:
        """Tells contents of a location apart without reading them; None for files of this machine."""
        return self.entry.version if self.entry is not None and self.entry.etag else None


def remote_source(
    location: Location,
    entry: Entry | None = None,
    *,
    place: str = "",
    length_s: float | None = None,
    error: ForescribeError | None = None,
) -> Source:
    """The source at a location."""
    return Source(location.identity, place, length_s, error, location, entry)


def identity(path: str) -> str:
    """The key of a recording: its absolute path, links kept, or its location."""
    return path if path == STDIN or is_url(path) else os.path.abspath(path)
