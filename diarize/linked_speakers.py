"""Labels that mean the same speaker in all recordings of a run.

    linked = LinkedSpeakers(Path("out"))
    diarization, matches = linked.relabel("calls/monday.wav", diarization)

Recordings are processed one after the other, the longest first in a batch run. Labels are final, as
results are written before the next recording is processed. `speakers.jsonl` in the folder has a line
for every recording, so that a later run knows the speakers of earlier ones. It holds voices, which are
personal data: only its owner can read it, and it is written only if linking was requested. Without a
folder nothing is stored. Knows nothing of audio.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from forescribe.asr.errors import OutputError
from forescribe.asr.records.sources import STDIN, identity

from .blocks import mean_voice
from .diarizer import Diarization, Voice
from .known_speakers import LEAST_S, KnownSpeaker, Match, match_voices
from .turns import ANONYMOUS

NAME = "speakers.jsonl"


@dataclass(frozen=True)
class _RecordingVoices:
    """The voices of one recording, with their labels."""

    encoder: str | None
    voices: tuple[Voice, ...]


class LinkedSpeakers:
    """The speakers of all recordings whose results are in `folder`; None stores nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = None if folder is None else Path(os.path.abspath(folder)) / NAME
        self._recordings: dict[str, _RecordingVoices] = {}  # by recording
        self._read = 0  # bytes

    def relabel(self, recording: str, diarization: Diarization) -> tuple[Diarization, list[Match]]:
        """Return the diarization with linked labels, and the matches with earlier recordings.

        Named speakers keep their names. A voice with a sure match gets the label of that speaker, one
        to one. An uncertain match is returned with `sure` false, and its voice gets a new label, as do
        all other voices. A recording that is processed again replaces its earlier entry. Raises
        OutputError if the folder cannot be written.
        """
        with self._locked() as file:
            key = self._key(recording)
            self._recordings.pop(key, None)
            found = self._matches(diarization)
            labels = {match.speaker: match.name for match in found if match.sure}
            number = self._next()
            for speaker in filter(_anonymous, diarization.speakers):
                if speaker not in labels:
                    labels[speaker] = f"{ANONYMOUS}{number:02d}"
                    number += 1
            renamed = diarization.renamed(labels)
            self._store(file, key, renamed)
        return renamed, [replace(match, speaker=labels[match.speaker]) for match in found]

    def _matches(self, diarization: Diarization) -> list[Match]:
        """Matches of the voices with enough speech."""
        encoder = diarization.engine.encoder
        voices = [
            voice
            for voice in diarization.voices
            if _anonymous(voice.speaker) and voice.samples >= LEAST_S * 16_000
        ]
        # A speaker once split in two resembles both; either label is better than a third one.
        return match_voices(
            voices, self._persons(encoder), encoder, diarization.engine.thresholds, margin=0.0
        )

    def _persons(self, encoder: str | None) -> list[KnownSpeaker]:
        """The mean voice of each label, weighted by speech."""
        own: dict[str, list[Voice]] = {}
        for recording in self._recordings.values():
            for voice in recording.voices:
                long = voice.samples >= LEAST_S * 16_000
                if encoder is not None and recording.encoder == encoder and long:
                    own.setdefault(voice.speaker, []).append(voice)
        means = [mean_voice(label, voices) for label, voices in sorted(own.items())]
        return [
            KnownSpeaker(mean.speaker, encoder or "", mean.vector, mean.samples, 1, "")
            for mean in means
            if mean.vector is not None
        ]

    def _next(self) -> int:
        """The lowest number above all labels in use."""
        labels = {
            voice.speaker for recording in self._recordings.values() for voice in recording.voices
        }
        numbers = (label.removeprefix(ANONYMOUS) for label in labels)
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)

    # -- the file ---------------------------------------------------------------------------------

    def _key(self, recording: str) -> str:
        """The path relative to the folder, as in the manifest, so that both can be moved together."""
        if self.path is None or recording == STDIN:
            return recording
        return os.path.relpath(identity(recording), self.path.parent)

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO | None]:
        """Open and lock the file, and read what other processes have added."""
        if self.path is None:
            yield None
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "r+b") as file:
                with suppress(OSError):  # the file system has no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                self._refresh(file)
                yield file
        except OSError as error:
            raise OutputError(
                f"cannot write {str(self.path)!r}: {error.strerror or error}; "
                "name another folder with -o, or leave out --link-speakers"
            ) from error

    def _refresh(self, file: BinaryIO) -> None:
        file.seek(self._read)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.split(b"\n"):
            # An incomplete line of a killed process: its recording has no result either.
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                voices = tuple(
                    Voice(v["speaker"], _vector(v["vector"]), int(v["samples"]))
                    for v in entry["voices"]
                )
                self._recordings.pop(entry["recording"], None)
                self._recordings[entry["recording"]] = _RecordingVoices(entry["encoder"], voices)

    def _store(self, file: BinaryIO | None, key: str, diarization: Diarization) -> None:
        """Store the labels, including those without a voice, which must not be given again."""
        known = {voice.speaker: voice for voice in diarization.voices}
        labels = filter(_anonymous, diarization.speakers)
        voices = tuple(known.get(label) or Voice(label, None, 0) for label in labels)
        self._recordings[key] = _RecordingVoices(diarization.engine.encoder, voices)
        if file is None:
            return
        entry = {
            "recording": key,
            "encoder": diarization.engine.encoder,
            "voices": [
                {
                    "speaker": voice.speaker,
                    "samples": voice.samples,
                    "vector": None
                    if voice.vector is None
                    else [round(float(value), 6) for value in voice.vector],
                }
                for voice in voices
            ],
        }
        line = json.dumps(entry).encode() + b"\n"
        if file.seek(0, os.SEEK_END) > self._read:
            line = b"\n" + line  # after the incomplete line of a killed process
        file.write(line)
        file.flush()
        self._read = file.seek(0, os.SEEK_END)


def _anonymous(speaker: str) -> bool:
    return speaker.startswith(ANONYMOUS)


def _vector(values: list[float] | None) -> np.ndarray | None:
    if values is None:
        return None
    vector = np.array(values, np.float32)
    return np.asarray(vector / np.linalg.norm(vector))


__all__ = ["NAME", "LinkedSpeakers"]
