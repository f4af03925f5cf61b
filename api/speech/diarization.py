"""Speakers of a request: the loaded diarizer, and the diarization of one recording during its transcription.

The diarizer is loaded before the server is ready, and works on one recording at a time. Does not know forms.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from forescribe.asr.audio import fork_server
from forescribe.asr.audio.sandbox import Decoders
from forescribe.asr.errors import ForescribeError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE
from forescribe.diarize.turns import letter

from ..errors import ApiError, invalid

if TYPE_CHECKING:
    from forescribe.asr.live.events import Tell
    from forescribe.diarize.diarizer import (
        Bounds,
        Diarization,
        Diarizer,
        Engine,
        Samples,
        StageHook,
    )
    from forescribe.diarize.engines.embedded import EmbeddedDiarizer
    from forescribe.diarize.engines.online import OnlineSpeakers
    from forescribe.diarize.known_speakers import KnownSpeaker
    from forescribe.diarize.live_speakers import LiveSpeakers

log = logging.getLogger("forescribe.api")

REFERENCE_S = (2.0, 10.0)
"""The shortest and the longest sample of a known speaker (OpenAI's contract)."""

TOLERANCE_S = 0.1
"""For the delay of codecs."""

T = TypeVar("T")

Label = Callable[[int], str]
"""The label of the n-th unknown speaker, counted from 0."""


class Speakers:
    """A diarizer with the interface of `Diarizer`, whose calls wait for each other."""

    def __init__(self, load: Callable[[], Diarizer], decoders: Decoders) -> None:
        self._load, self._decoders = load, decoders
        self._diarizer: Diarizer | None = None
        self._lock, self._live_lock = threading.RLock(), threading.Lock()
        self._online: Future[EmbeddedDiarizer] | None = None
        self._worker: ThreadPoolExecutor | None = None  # of live streams

    @property
    def engine(self) -> Engine:
        return self._loaded().engine

    def diarize(
        self, samples: Samples, bounds: Bounds | None = None, hook: StageHook | None = None
    ) -> Diarization:
        from forescribe.diarize.diarizer import ignore_progress

        with self._lock:
            diarizer = self._loaded()
            return _in_own_thread(
                lambda: diarizer.diarize(samples, bounds, hook or ignore_progress)
            )

    def _loaded(self) -> Diarizer:
        with self._lock:
            if self._diarizer is None:
                self._diarizer = _in_own_thread(self._load)
            return self._diarizer

    def prepare(self) -> None:
        """Load the diarizer, so that no request waits for it. One that cannot be loaded is logged, and
        refused to who asks for speakers."""
        with suppress(ApiError), refused():
            self._loaded()

    def unload(self) -> None:
        """Free the diarizer, which is loaded again when it is needed."""
        with self._lock:
            self._diarizer = self._online = None

    def live(
        self, tell: Tell, device: str, names: Sequence[str] = (), references: Sequence[str] = ()
    ) -> LiveSpeakers:
        """The speakers of a live stream, labelled A, B, ..., or by their names where `references` are data
        URLs of their voices. Streams share a thread, and do not wait for `diarize`, which may take minutes.
        The engine is loaded there, and waited for only where references are given. Raises ApiError if that is
        known to fail, and for a reference that cannot be used, with the field."""
        from forescribe.diarize.engines import registry
        from forescribe.diarize.live_speakers import LiveSpeakers
        from forescribe.speculative.device import keep_to_one_core

        with self._live_lock, refused():
            registry.check_online()
            if self._worker is None:
                self._worker = ThreadPoolExecutor(
                    1, thread_name_prefix="live speakers", initializer=keep_to_one_core
                )
            if self._online is None:
                self._online = self._worker.submit(
                    registry.load_online, self._diarizer, device=device
                )
            elif self._online.done() and (error := self._online.exception()) is not None:
                self._online = None  # the next session tries it again
                raise error
            online, worker = self._online, self._worker
        known: list[KnownSpeaker] = []

        def load() -> OnlineSpeakers:
            from forescribe.diarize.engines.online import OnlineSpeakers

            return OnlineSpeakers(online.result(), letter, known)

        if names or references:
            with refused():
                engine = online.result()
            known = _in_own_thread(lambda: self._enrolled(engine, names, references))
        return LiveSpeakers(load, tell, worker)

    async def enrol(self, names: Sequence[str], references: Sequence[str]) -> list[KnownSpeaker]:
        """The voices of known speakers, from data URLs. Raises ApiError that names the field."""
        return await asyncio.to_thread(lambda: self._enrolled(self, names, references))

    def _enrolled(
        self, diarizer: Diarizer, names: Sequence[str], references: Sequence[str]
    ) -> list[KnownSpeaker]:
        check_pairs(names, references)
        return [self._enrol(diarizer, *pair) for pair in zip(names, references, strict=True)]

    def _enrol(self, diarizer: Diarizer, name: str, reference: str) -> KnownSpeaker:
        from forescribe.asr.audio.reading import read_audio
        from forescribe.diarize.known_speakers import KnownSpeaker, extract_voice

        try:
            shortest, longest = REFERENCE_S
            limits = fork_server.Bounds(max_s=10 * longest, wall_s=60, cpu_s=60)
            with closing(
                self._decoders.decode(_decoded(reference), limits, name=name)
            ) as decoded_file:
                samples = read_audio(decoded_file)
            if not shortest - TOLERANCE_S <= len(samples) / SAMPLE_RATE <= longest + TOLERANCE_S:
                text = f"a reference is {shortest:g} to {longest:g} s long"
                raise ApiError("invalid_value", text)
            voice = extract_voice(diarizer, samples, name)
        except (ApiError, ForescribeError) as error:
            text = f"the reference of {name!r}: {error}"
            raise ApiError("invalid_value", text, param="known_speaker_references") from error
        encoder = diarizer.engine.encoder
        assert voice.vector is not None and encoder is not None  # set by extract_voice
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return KnownSpeaker(name, encoder, voice.vector, voice.samples, clips=1, added=now)

    def start(
        self, known: Sequence[KnownSpeaker] = (), bounds: Bounds | None = None
    ) -> RecordingDiarization:
        """Begin to diarize a recording, with bounds for the number of speakers, once the diarizer is loaded:
        not on the event loop. Raises ApiError if it cannot be loaded."""
        with refused():
            self._loaded()
        return RecordingDiarization(self, known, bounds)


class RecordingDiarization:
    """The diarization of one recording while it is transcribed. Its samples go to `add_samples`, on the
    thread that reads them; it is closed in any case."""

    def __init__(
        self, speakers: Speakers, known: Sequence[KnownSpeaker] = (), bounds: Bounds | None = None
    ) -> None:
        from forescribe.diarize.diarizer import Bounds
        from forescribe.diarize.speaker_finder import SpeakerFinder

        self._taken = [person.name for person in known]
        finder = SpeakerFinder(speakers, bounds or Bounds(), known)
        self._thread = ExitStack()
        self._task = self._thread.enter_context(finder.begin())()
        self.add_samples = self._task.feed

    async def assign(self, transcript: Transcript, label: Label = letter) -> Transcript:
        """The transcript with a speaker for every segment: a known name, or else the label of the n-th
        unknown speaker. Raises ApiError if the diarizer fails."""
        try:
            found = await asyncio.wrap_future(self._task.finish(transcript))
            return relabelled(found, self._taken, label)
        except ForescribeError as error:
            raise ApiError.of(error) from error

    def assign_blocking(self, transcript: Transcript, label: Label) -> Transcript:
        """As `assign`; waits for the diarizer. Raises ForescribeError."""
        return relabelled(self._task.finish(transcript).result(), self._taken, label)

    def close(self) -> None:
        """Drop what has not begun, without waiting for the block in progress."""
        self._task.cancel()
        threading.Thread(target=self._thread.close, daemon=True).start()


def check_pairs(names: Sequence[str], references: Sequence[str]) -> None:
    """Raises ApiError `invalid_value` where there is not a reference for each name."""
    if len(names) != len(references):
        text = f"{len(names)} names and {len(references)} references do not pair"
        raise invalid("known_speaker_references", text)


@contextmanager
def refused() -> Iterator[None]:
    """Raises ApiError where a diarizer cannot be loaded; the log says why."""
    try:
        yield
    except ForescribeError as error:
        log.error("the diarizer cannot be loaded: %s", error)
        raise ApiError("internal_error", "this server cannot diarize") from error


def _in_own_thread(work: Callable[[], T]) -> T:
    """Run work in a thread that ends with it. Its OpenMP threads end too; they would slow down the
    engine's (keep_to_one_core)."""
    with ThreadPoolExecutor(1, thread_name_prefix="speakers") as thread:
        return thread.submit(work).result()


def relabelled(transcript: Transcript, taken: Sequence[str], label: Label) -> Transcript:
    """Replace the diarizer's labels of unknown speakers, in order of appearance; `taken` are the names of
    known ones."""
    unknown = [s.speaker for s in transcript.segments if s.speaker and s.speaker not in taken]
    free = (name for name in map(label, count()) if name not in taken)
    names = {speaker: next(free) for speaker in dict.fromkeys(unknown)}
    segments = (
        replace(s, speaker=names.get(s.speaker, s.speaker) if s.speaker else None)
        for s in transcript.segments
    )
    return replace(transcript, segments=tuple(segments))


def numbered(number: int) -> str:
    """SPEAKER_00, ..., as pyannote's users know them."""
    return f"SPEAKER_{number:02}"


def _decoded(reference: str) -> bytes:
    """The bytes of a data URL. Raises ApiError if it is not one, or not base64."""
    head, comma, body = reference.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise ApiError("invalid_value", "not a data URL with base64")
    try:
        return base64.b64decode(body, validate=True)
    except ValueError as error:  # also for text that is not ASCII
        raise ApiError("invalid_value", "not base64") from error
