"""Known speakers: voices that somebody has enrolled under a name, and how to find them again.

A voice is personal data: nothing is stored unless asked for, everything can be listed and removed,
and a file holds a vector, never sound. Vectors of two encoders are never compared. Knows nothing of
how a vector is made.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.errors import OutputError, UsageError
from forescribe.asr.formats.transcript import SAMPLE_RATE

from ..blocks import mean_voice
from ..diarizer import Diarization, SimilarityThresholds, Voice

FOLDER_VARIABLE = "FORESCRIBE_SPEAKERS"
FORMAT = 1

MARGIN = 0.05
"""By how much the likest must be liker than the runner-up: between two who sound alike, nobody is
named."""

LEAST_S = 3.0
"""Seconds of speech: a vector of less says more of the moment than of the voice."""


@dataclass(frozen=True, eq=False)
class KnownSpeaker:
    """A person's voice. `encoder` made the vector [D]; `note` is for people, such as the consent."""

    name: str
    encoder: str
    vector: NDArray[np.float32]
    samples: int
    clips: int
    added: str  # ISO 8601
    note: str = ""

    @property
    def seconds(self) -> float:
        """Of speech that it was made from."""
        return self.samples / SAMPLE_RATE


@dataclass(frozen=True)
class Match:
    """What a speaker of a recording has to do with a known one. `sure` means that the name may be
    used; else it is for a person to confirm."""

    speaker: str
    name: str
    score: float
    sure: bool


class KnownSpeakers:
    """A folder with a file for each person and encoder, readable by its owner only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def list(self) -> list[KnownSpeaker]:
        """All, by name. Raises UsageError for a file that is broken."""
        if not self.folder.is_dir():
            return []
        return sorted(map(_read, self.folder.glob("*.json")), key=lambda k: (k.name, k.encoder))

    def add(self, name: str, encoder: str, voice: Voice, note: str = "") -> KnownSpeaker:
        """Enrols a voice; a person who is known already gets the mean of all clips.

        Raises UsageError for a name without letters and for a voice of less than LEAST_S of speech,
        OutputError where the folder cannot be written.
        """
        name = " ".join(unicodedata.normalize("NFC", name).split())
        if not name:
            raise UsageError("a speaker needs a name")
        require_enough_speech(Voice(name, voice.vector, voice.samples))
        path = self._path(name, encoder)
        before = _read(path) if path.is_file() else None
        if before is not None:
            voice = mean_voice(name, [Voice(name, before.vector, before.samples), voice])
        assert voice.vector is not None
        known = KnownSpeaker(
            name,
            encoder,
            voice.vector,
            voice.samples,
            clips=1 + (before.clips if before else 0),
            added=before.added if before else datetime.now(UTC).isoformat(timespec="seconds"),
            note=note or (before.note if before else ""),
        )
        _write(path, known)
        return known

    def remove(self, name: str) -> int:
        """Forgets a person, whatever encoders there are vectors of; how many files that were.
        Raises UsageError if nobody has this name."""
        files = [
            self._path(known.name, known.encoder) for known in self.list() if known.name == name
        ]
        if not files:
            names = ", ".join(sorted({known.name for known in self.list()})) or "nobody"
            raise UsageError(f"no speaker {name!r} is known; known: {names}")
        for file in files:
            file.unlink()
        return len(files)

    def _path(self, name: str, encoder: str) -> Path:
        """A name may hold any sign; a file's may not."""
        return self.folder / f"{sha256(f'{encoder}/{name}'.encode()).hexdigest()[:32]}.json"


def require_enough_speech(
    voice: Voice, where: str = "in the recording", least_s: float = LEAST_S
) -> Voice:
    """The voice itself. Raises UsageError, which says how much speech was found `where` and how much
    is needed, for one without a vector or of less than `least_s` of speech."""
    if voice.vector is not None and voice.samples >= least_s * SAMPLE_RATE:
        return voice
    heard = f"{voice.samples / SAMPLE_RATE:.1f} s of speech" if voice.samples else "no speech"
    needed = f"at least {least_s:g} s of speech are needed, " if least_s else ""
    raise UsageError(
        f"{heard} found {where}, too little to know {voice.speaker!r} by: "
        f"{needed}10 to 30 s of speech are best"
    )


def default_folder() -> Path:
    """Where voices are kept: FORESCRIBE_SPEAKERS, or the user's data folder."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "forescribe" / "speakers"


def match_voices(
    voices: Sequence[Voice],
    known: Sequence[KnownSpeaker],
    encoder: str | None,
    thresholds: SimilarityThresholds,
    margin: float = MARGIN,
) -> list[Match]:
    """Who of the known is who, one to one, the likest first: the greatest sum of likeness would give
    somebody a second choice so that another one gets a name too.

    Sure from `thresholds.same` on, with `margin` to every other known person; a suggestion from
    `thresholds.possible` on; below that nobody. Known voices of other encoders do not count.
    """
    heard = [(v.speaker, v.vector) for v in voices if v.vector is not None]
    usable = [one for one in known if one.encoder == encoder]
    if not heard or not usable:
        return []
    cosines = np.array(
        [[float(vector @ k.vector) for k in usable] for _, vector in heard]
    )  # [V, K]
    found, free = list[Match](), np.ones(cosines.shape, bool)
    for place in np.argsort(-cosines, axis=None, kind="stable"):
        row, column = divmod(int(place), len(usable))
        score = float(cosines[row, column])
        if score < thresholds.possible:
            break
        if not free[row, column]:
            continue
        free[row], free[:, column] = False, False
        others = np.delete(cosines[row], column)
        clear = not len(others) or score - float(others.max()) >= margin
        sure = score >= thresholds.same and clear
        found.append(Match(heard[row][0], usable[column].name, score, sure))
    return found


def name_known_speakers(
    diarization: Diarization, known: Sequence[KnownSpeaker]
) -> tuple[Diarization, list[Match]]:
    """The diarization with the names of those who are surely known, and all matches. Who is not
    known keeps a number: a name is never forced."""
    engine = diarization.engine
    found = match_voices(diarization.voices, known, engine.encoder, engine.thresholds)
    names = {match.speaker: match.name for match in found if match.sure}
    return diarization.renamed(names), found


def _read(path: Path) -> KnownSpeaker:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}")
        vector = np.array(data["vector"], np.float32)
        return KnownSpeaker(
            str(data["name"]),
            str(data["encoder"]),
            vector / np.linalg.norm(vector),
            int(data["samples"]),
            int(data["clips"]),
            str(data["added"]),
            str(data["note"]),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{str(path)!r} holds no known speaker ({error}); remove it") from error


def _write(path: Path, known: KnownSpeaker) -> None:
    data = {
        "format": FORMAT,
        "name": known.name,
        "encoder": known.encoder,
        "samples": known.samples,
        "clips": known.clips,
        "added": known.added,
        "note": known.note,
        "vector": [round(float(value), 6) for value in known.vector],
    }
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(private, "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(
            f"cannot store a speaker in {str(path.parent)!r}: {error.strerror}; "
            f"name another folder in {FOLDER_VARIABLE}"
        ) from error
