"""The same people across recordings: whoever is heard again keeps the label of the first time.

    people = LinkedSpeakers(Path("out"))
    diarization, found = people.relabel("calls/monday.wav", diarization)

Recordings come one after the other, the longest first in a batch run, and labels that were given are
never taken back: results are in place before the next recording is heard. So that a run that goes on
later, or finds new recordings, knows who was there, `speakers.jsonl` in the folder has a line for
every recording. It holds voices: personal data, for its owner only, written only where linking was
asked for. Without a folder nothing is stored. Knows nothing of audio.
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

from forescribe.asr.batch.inputs import STDIN, identity
from forescribe.asr.errors import OutputError

from ..blocks import mean_voice
from ..diarizer import Diarization, Voice
from ..turns import ANONYMOUS
from .known_speakers import LEAST_S, KnownSpeaker, Match, match_voices

NAME = "speakers.jsonl"


@dataclass(frozen=True)
class _Heard:
    """The voices of one recording, by their labels."""

    encoder: str | None
    voices: tuple[Voice, ...]


class LinkedSpeakers:
    """Whoever was heard in the recordings whose results are in `folder`; None keeps them in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = None if folder is None else Path(os.path.abspath(folder)) / NAME
        self._heard: dict[str, _Heard] = {}  # by recording
        self._read = 0  # bytes

    def relabel(self, recording: str, diarization: Diarization) -> tuple[Diarization, list[Match]]:
        """The diarization with labels that mean the same in all recordings, and who was found again.

        A speaker who has a name keeps it. A voice that is surely one that was heard before gets that
        one's label, one to one; a doubtful likeness is a match that is not `sure`; every other voice
        gets a label that nobody had. A recording that comes again is heard as if for the first
        time. Raises OutputError where the folder cannot be written.
        """
        with self._alone() as file:
            key = self._key(recording)
            self._heard.pop(key, None)
            found = self._matches(diarization)
            labels = {match.speaker: match.name for match in found if match.sure}
            number = self._next()
            for speaker in filter(_anonymous, diarization.speakers):
                if speaker not in labels:
                    labels[speaker] = f"{ANONYMOUS}{number:02d}"
                    number += 1
            renamed = diarization.renamed(labels)
            self._learn(file, key, renamed)
        return renamed, [replace(match, speaker=labels[match.speaker]) for match in found]

    def _matches(self, diarization: Diarization) -> list[Match]:
        """Of voices with enough speech to know them by."""
        encoder = diarization.engine.encoder
        voices = [
            voice
            for voice in diarization.voices
            if _anonymous(voice.speaker) and voice.samples >= LEAST_S * 16_000
        ]
        # Who was split in two once is like both: the liker one is no worse a label than a third.
        return match_voices(
            voices, self._persons(encoder), encoder, diarization.engine.thresholds, margin=0.0
        )

    def _persons(self, encoder: str | None) -> list[KnownSpeaker]:
        """By label the mean of their voices, weighted by speech."""
        own: dict[str, list[Voice]] = {}
        for heard in self._heard.values():
            for voice in heard.voices:
                long = voice.samples >= LEAST_S * 16_000
                if encoder is not None and heard.encoder == encoder and long:
                    own.setdefault(voice.speaker, []).append(voice)
        means = [mean_voice(label, voices) for label, voices in sorted(own.items())]
        return [
            KnownSpeaker(mean.speaker, encoder or "", mean.vector, mean.samples, 1, "")
            for mean in means
            if mean.vector is not None
        ]

    def _next(self) -> int:
        """The first number behind all that were given."""
        labels = {voice.speaker for heard in self._heard.values() for voice in heard.voices}
        numbers = (label.removeprefix(ANONYMOUS) for label in labels)
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)

    # -- the file ---------------------------------------------------------------------------------

    def _key(self, recording: str) -> str:
        """From the folder, as in the manifest, so that both can move together."""
        if self.path is None or recording == STDIN:
            return recording
        return os.path.relpath(identity(recording), self.path.parent)

    @contextmanager
    def _alone(self) -> Iterator[BinaryIO | None]:
        """With the lock of the file, and what other processes have added to it."""
        if self.path is None:
            yield None
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "r+b") as file:
                with suppress(OSError):  # where a file system has no locks
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
            # Half a line that a killed process left: its recording has no result either.
            with suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                voices = tuple(
                    Voice(v["speaker"], _vector(v["vector"]), int(v["samples"]))
                    for v in told["voices"]
                )
                self._heard.pop(told["recording"], None)
                self._heard[told["recording"]] = _Heard(told["encoder"], voices)

    def _learn(self, file: BinaryIO | None, key: str, diarization: Diarization) -> None:
        """A label without a voice counts too: nobody else may get it."""
        known = {voice.speaker: voice for voice in diarization.voices}
        labels = filter(_anonymous, diarization.speakers)
        voices = tuple(known.get(label) or Voice(label, None, 0) for label in labels)
        self._heard[key] = _Heard(diarization.engine.encoder, voices)
        if file is None:
            return
        told = {
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
        line = json.dumps(told).encode() + b"\n"
        if file.seek(0, os.SEEK_END) > self._read:
            line = b"\n" + line  # behind half a line of the killed
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
