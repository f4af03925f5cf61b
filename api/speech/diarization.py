"""Speakers: the serving's diarizer, and one recording heard by it beside the transcription.

    hearing = await speakers.hear(known)
    ... the samples go to hearing.hear, on whatever thread reads them ...
    transcript = await hearing.told(transcript, letter)
    hearing.close()                                    # in any case

The diarizer is loaded when it is first asked for, and hears one recording's samples at a time.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from string import ascii_uppercase
from typing import TYPE_CHECKING, TypeVar

from forescribe.asr.audio.fork_server import Bounds as Limits
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import ForescribeError
from forescribe.asr.formats.transcript import SAMPLE_RATE, Transcript

from ..errors import ApiError

if TYPE_CHECKING:
    from forescribe.diarize.diarizer import Bounds, Diarization, Diarizer, Engine, Hook, Samples
    from forescribe.diarize.speakers.known_speakers import KnownSpeaker

log = logging.getLogger("forescribe.api")

REFERENCE_S = (2.0, 10.0)
"""How long a known speaker's sample may be (contract)."""

SLACK_S = 0.1
"""Of a codec's delay."""


Made = TypeVar("Made")

Called = Callable[[int], str]
"""What the n-th speaker to appear is called, from 0."""


class Speakers:
    """A Diarizer, as others know it, whose calls wait for each other."""

    def __init__(self, load: Callable[[], Diarizer], decoders: Decoders) -> None:
        self._load, self._decoders = load, decoders
        self._diarizer: Diarizer | None = None
        self._one = threading.RLock()

    @property
    def engine(self) -> Engine:
        return self._loaded().engine

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: Hook | None = None
    ) -> Diarization:
        from forescribe.diarize.diarizer import ignore_progress

        with self._one:
            diarizer = self._loaded()
            return _apart(lambda: diarizer.diarize(samples, bounds, hook or ignore_progress))

    def _loaded(self) -> Diarizer:
        with self._one:
            if self._diarizer is None:
                self._diarizer = _apart(self._load)
            return self._diarizer

    async def known(self, names: Sequence[str], references: Sequence[str]) -> list[KnownSpeaker]:
        """The voices of people, from data URLs. Raises ApiError with the field that is wrong."""
        if len(names) != len(references):
            text = f"{len(names)} names and {len(references)} references do not pair"
            raise ApiError("invalid_value", text, param="known_speaker_references")
        return await asyncio.to_thread(
            lambda: [self._known(*pair) for pair in zip(names, references, strict=True)]
        )

    def _known(self, name: str, reference: str) -> KnownSpeaker:
        from forescribe.asr.audio.reading import read_audio
        from forescribe.diarize.speakers.enrolment import extract_voice
        from forescribe.diarize.speakers.known_speakers import KnownSpeaker

        try:
            shortest, longest = REFERENCE_S
            limits = Limits(max_s=10 * longest, wall_s=60, cpu_s=60)
            with closing(self._decoders.decode(_decoded(reference), limits, name=name)) as spool:
                samples = read_audio(spool)
            if not shortest - SLACK_S <= len(samples) / SAMPLE_RATE <= longest + SLACK_S:
                raise ApiError("invalid_value", f"a reference has {shortest:g} to {longest:g} s")
            voice = extract_voice(self, samples, name)
        except (ApiError, ForescribeError) as error:
            text = f"the reference of {name!r}: {error}"
            raise ApiError("invalid_value", text, param="known_speaker_references") from error
        assert (
            voice.vector is not None and self.engine.encoder is not None
        )  # extract_voice saw to it
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return KnownSpeaker(
            name, self.engine.encoder, voice.vector, voice.samples, clips=1, added=now
        )

    async def hear(
        self, known: Sequence[KnownSpeaker] = (), bounds: Bounds | None = None
    ) -> Hearing:
        """Ready for a recording, with so many speakers. Raises ApiError where the diarizer cannot be
        loaded."""
        return await asyncio.to_thread(self.heard, known, bounds)

    def heard(self, known: Sequence[KnownSpeaker] = (), bounds: Bounds | None = None) -> Hearing:
        """The same; waits for the diarizer."""
        try:
            self._loaded()
        except ForescribeError as error:
            log.error("the diarizer cannot be loaded: %s", error)
            raise ApiError("internal_error", "this server cannot tell speakers apart") from error
        return Hearing(self, known, bounds)


class Hearing:
    """One recording on its way to the diarizer."""

    def __init__(
        self, speakers: Speakers, known: Sequence[KnownSpeaker] = (), bounds: Bounds | None = None
    ) -> None:
        from forescribe.diarize.transcripts.background import BackgroundDiarizer

        self._known = known
        self._beside = BackgroundDiarizer(speakers, bounds)
        self._listening = self._beside.start()
        self.hear = self._listening.feed

    async def told(self, transcript: Transcript, called: Called | None = None) -> Transcript:
        """With a speaker on every segment: a known name, else what the n-th to appear is `called`,
        A, B, ... Raises ApiError where the diarizer fails."""
        made = asyncio.wrap_future(self._listening.finish())
        try:
            return self._attributed(transcript, await made, called or letter)
        except ForescribeError as error:
            raise ApiError.of(error) from error

    def answer(self, transcript: Transcript, called: Called) -> Transcript:
        """The same; waits for it. Raises ForescribeError."""
        return self._attributed(transcript, self._listening.finish().result(), called)

    def _attributed(
        self, transcript: Transcript, diarization: Diarization, called: Called
    ) -> Transcript:
        from forescribe.diarize.transcripts.diarizing_transcriber import add_speakers

        return _renamed(add_speakers(transcript, diarization, self._known), self._known, called)

    def close(self) -> None:
        """What has not begun is dropped; the block at hand is not waited for."""
        self._listening.cancel()
        threading.Thread(target=self._beside.close, daemon=True).start()


def _apart(work: Callable[[], Made]) -> Made:
    """In a thread that ends with it, and with that thread its team of helpers, which would slow the
    engine's down (keep_to_one_core)."""
    with ThreadPoolExecutor(1, thread_name_prefix="speakers") as thread:
        return thread.submit(work).result()


def _renamed(transcript: Transcript, known: Sequence[KnownSpeaker], called: Called) -> Transcript:
    taken = {one.name for one in known}
    found = [s.speaker for s in transcript.segments if s.speaker and s.speaker not in taken]
    free = (name for name in map(called, count()) if name not in taken)
    names = {speaker: next(free) for speaker in dict.fromkeys(found)}
    segments = (
        replace(s, speaker=names.get(s.speaker, s.speaker) if s.speaker else None)
        for s in transcript.segments
    )
    return replace(transcript, segments=tuple(segments))


def letter(number: int) -> str:
    """A to Z, then A1, B1, ..."""
    turn, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(turn) if turn else "")


def _decoded(reference: str) -> bytes:
    """Raises ApiError for what is no data URL with base64."""
    head, comma, body = reference.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise ApiError("invalid_value", "not a data URL with base64")
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:  # also for what is not ASCII
        raise ApiError("invalid_value", "no base64") from error
