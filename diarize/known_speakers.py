"""Known speakers: voices enrolled under a name, and their recognition in recordings.

A voice is personal data: it is stored on request only, can be listed and removed, and its file holds
a vector, never audio. Vectors of two encoders are never compared.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forescribe.asr.audio.inputs import Input
from forescribe.asr.errors import OutputError, UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from .blocks import mean_voice
from .diarizer import Bounds, Diarization, Diarizer, Samples, SimilarityThresholds, Voice
from .turns import is_label

FOLDER_VARIABLE = "FORESCRIBE_SPEAKERS"
FORMAT = 1

MARGIN = 0.05
"""Required difference between the best match and the second best. Between two similar voices no name
is used."""

LEAST_S = 3.0
"""Seconds of speech. Vectors of less depend more on the moment than on the voice."""


@dataclass(frozen=True, eq=False)
class KnownSpeaker:
    """The voice of a person. `encoder` computed the vector [D]; `note` is free text, such as consent."""

    name: str
    encoder: str
    vector: NDArray[np.float32]
    samples: int
    clips: int
    added: str  # ISO 8601
    note: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of speech from which the vector was computed."""
        return self.samples / SAMPLE_RATE


@dataclass(frozen=True)
class Match:
    """A speaker of a recording who resembles a known one. If `sure`, the name is used; otherwise it is
    a suggestion to confirm."""

    speaker: str
    name: str
    score: float
    sure: bool


class KnownSpeakers:
    """A folder with one file per person and encoder, readable by its owner only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()

    def list(self) -> list[KnownSpeaker]:
        """Return all known speakers, sorted by name. Raises UsageError for a damaged file."""
        if not self.folder.is_dir():
            return []
        return sorted(map(_read, self.folder.glob("*.json")), key=lambda k: (k.name, k.encoder))

    def add(self, name: str, encoder: str, voice: Voice, note: str = "") -> KnownSpeaker:
        """Enrol a voice. For a person who is known already, store the mean of all clips.

        Raises UsageError for an empty name, a label of speakers without one, or less than LEAST_S of
        speech, and OutputError if the folder cannot be written.
        """
        name = " ".join(unicodedata.normalize("NFC", name).split())
        if not name:
            raise UsageError("a speaker needs a name")
        if is_label(name):
            raise UsageError(f"{name!r} cannot be a name: results call speakers so who have none")
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
        """Remove a person's vectors of all encoders and return the number of files. Raises UsageError
        for an unknown name."""
        files = [
            self._path(known.name, known.encoder) for known in self.list() if known.name == name
        ]
        if not files:
            names = ", ".join(sorted({known.name for known in self.list()})) or "none"
            raise UsageError(f"no speaker {name!r} is known; known: {names}")
        for file in files:
            file.unlink()
        return len(files)

    def _path(self, name: str, encoder: str) -> Path:
        """A hash, as a name may contain characters that a file name may not."""
        return self.folder / f"{sha256(f'{encoder}/{name}'.encode()).hexdigest()[:32]}.json"


def require_enough_speech(
    voice: Voice, where: str = "in the recording", least_s: float = LEAST_S
) -> Voice:
    """Return the voice. Raises UsageError for one without a vector or of less than `least_s` of speech;
    the message says how much was found `where`, and how much is needed."""
    if voice.vector is not None and voice.samples >= least_s * SAMPLE_RATE:
        return voice
    amount = f"{voice.samples / SAMPLE_RATE:.1f} s of speech" if voice.samples else "no speech"
    best = f": at least {least_s:g} s of speech are needed, 10 to 30 s of speech are best"
    needed = best if least_s else ""
    raise UsageError(f"{amount} found {where}, too little to recognise {voice.speaker!r}{needed}")


def extract_voice(
    diarizer: Diarizer,
    samples: Samples,
    name: str,
    *,
    source: str = "the recording",
    least_s: float = 0.0,
) -> Voice:
    """Return the voice of the only speaker in `samples` [T], which were read from `source`.

    Raises UsageError if the engine has no speaker encoder or there is less than `least_s` of speech.
    """
    engine = diarizer.engine
    if engine.encoder is None:
        raise UsageError(
            f"the engine {engine.name} has no speaker encoder; choose another --diarizer"
        )
    voices = diarizer.diarize(samples, Bounds(exactly=1)).voices
    found = voices[0] if voices else Voice(name, None, 0)
    where = f"in the {len(samples) / SAMPLE_RATE:.1f} s of {source}"
    return require_enough_speech(Voice(name, found.vector, found.samples), where, least_s)


def read_speaker_audio(source: Input, transcript: Path, speaker: str) -> Samples:
    """Read what `speaker` says in a recording, without overlapped words.

    `transcript` is the JSON result of a diarized run. Raises AudioError, and UsageError if the file is
    no transcript or the speaker is not in it.
    """
    data = Transcript.load(transcript)
    spans = [
        (span.start_sample, span.end_sample)
        for segment in data.segments
        for span in segment.words or (segment,)
        if span.speaker == speaker and not getattr(span, "overlap", False)
    ]
    spans = spans or [(t.start_sample, t.end_sample) for t in data.turns if t.speaker == speaker]
    if not spans:
        names = ", ".join(data.speakers) or "none"
        raise UsageError(f"{speaker!r} says nothing in {str(transcript)!r}; its speakers: {names}")
    from forescribe.asr.audio.reading import read_audio

    samples = read_audio(source)
    return np.concatenate([samples[start:end] for start, end in spans])


def default_folder() -> Path:
    """The folder of stored voices: FORESCRIBE_SPEAKERS, or in the user's data folder."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "forescribe" / "speakers"


def match_voices(
    voices: Sequence[Voice],
    known: Sequence[KnownSpeaker],
    encoder: str | None,
    thresholds: SimilarityThresholds,
) -> list[Match]:
    """Match voices to known speakers, one to one, the most similar pair first. (The greatest sum of
    similarities would give one voice its second choice so that another voice gets a name too.)

    A match is sure from `thresholds.same` on if it exceeds every other known speaker by `MARGIN`. From
    `thresholds.possible` on it is a suggestion. Known voices of other encoders are ignored.
    """
    voiced = [(v.speaker, v.vector) for v in voices if v.vector is not None]
    usable = [speaker for speaker in known if speaker.encoder == encoder]
    if not voiced or not usable:
        return []
    cosines = np.array([[float(v @ k.vector) for k in usable] for _, v in voiced])  # [V, K]
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
        clear = not len(others) or score - float(others.max()) >= MARGIN
        sure = score >= thresholds.same and clear
        found.append(Match(voiced[row][0], usable[column].name, score, sure))
    return found


def name_known_speakers(
    diarization: Diarization, known: Sequence[KnownSpeaker]
) -> tuple[Diarization, list[Match]]:
    """Return the diarization with the names of sure matches, and all matches. Unknown speakers keep
    their labels."""
    engine = diarization.engine
    found = match_voices(diarization.voices, known, engine.encoder, engine.thresholds)
    names = {match.speaker: match.name for match in found if match.sure}
    return diarization.renamed(names), found


def _read(path: Path) -> KnownSpeaker:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if (version := data.pop("format")) != FORMAT:
            raise ValueError(f"format {version}")
        vector = np.array(data.pop("vector"), np.float32)
        return KnownSpeaker(vector=vector / np.linalg.norm(vector), **data)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{str(path)!r} is not the file of a known speaker ({error}); remove it"
        ) from error


def _write(path: Path, known: KnownSpeaker) -> None:
    vector = [round(float(value), 6) for value in known.vector]
    data = {"format": FORMAT, **asdict(known), "vector": vector}
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
            f"set another folder in {FOLDER_VARIABLE}"
        ) from error
