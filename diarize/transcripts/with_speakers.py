"""A transcriber whose transcripts say who spoke: the recording is decoded once, heard twice.

    speaking = WithSpeakers(transcriber, diarizer)
    for outcome in speaking.transcribe(["call.mp3"]):
        print(outcome.transcript.segments[0].speaker)

Diarization works in a thread of its own while windows are decoded; what comes out is what the
transcriber said, with speakers. Has the transcriber's `transcribe`, so that it takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from forescribe.asr.audio.reading import Input, Open, Recording, open_audio
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.outcome import Hook, Outcome
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.rttm import RECORDING
from forescribe.asr.formats.transcript import Json, Notice, Transcript

from ..attribution.attribute import attributed
from ..diarizer import Bounds, Diarization, Diarizer
from ..people.known import Known, Match, named
from ..people.recurring import People
from .listening import Beside, Listening


class Transcribes(Protocol):
    """The part of `asr.decode.transcriber.Transcriber` that is needed: `open` opens its recordings."""

    def transcribe(
        self,
        sources: Iterable[Any],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = open_audio,
    ) -> Iterator[Outcome]: ...


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A transcript whose speakers are still being found."""

    outcome: Outcome
    listening: Listening
    turns: Future[Diarization]
    started: float


class WithSpeakers:
    """`known` are speakers to be called by their names where they are surely recognised; with `people`
    the others have one label in all recordings."""

    def __init__(
        self,
        transcriber: Transcribes,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        known: Sequence[Known] = (),
        people: People | None = None,
    ) -> None:
        self.transcriber, self.diarizer = transcriber, diarizer
        self.bounds, self.known, self.people = bounds or Bounds(), tuple(known), people

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Outcomes as they end. A recording that cannot be diarized fails: a transcript without
        the speakers that were asked for would look like one in which nobody is known."""
        options = replace(options or Options(), words=True)
        listening: dict[int, tuple[Listening, float]] = {}
        waiting: list[_Waiting] = []
        with Beside(self.diarizer, self.bounds) as beside:

            def opened(source: Input) -> Recording:
                recording = open_audio(source)
                heard = beside.listen()
                listening[id(source)] = heard, time.perf_counter()
                recording.tap = heard.hear
                return recording

            try:
                for outcome in self.transcriber.transcribe(sources, options, hook, open=opened):
                    heard, started = listening.pop(id(outcome.source), (None, 0.0))
                    if heard is None or outcome.transcript is None:
                        if heard is not None:
                            heard.drop()
                        yield outcome
                    else:
                        waiting.append(_Waiting(outcome, heard, heard.finish(), started))
                    for one in [one for one in waiting if one.turns.done()]:
                        waiting.remove(one)
                        yield self._finished(one)
                while waiting:
                    yield self._finished(waiting.pop(0))
            finally:  # the caller may leave at any outcome
                for heard, _ in listening.values():
                    heard.drop()
                for one in waiting:
                    one.listening.drop()

    def _finished(self, waiting: _Waiting) -> Outcome:
        outcome = waiting.outcome
        assert outcome.transcript is not None
        try:
            transcript = with_speakers(
                outcome.transcript,
                waiting.turns.result(),
                self.known,
                self.people,
                source=outcome.name,
            )
        except ForescribeError as error:
            return replace(outcome, transcript=None, error=error)
        except Exception as cause:  # a fault of ours, or of the engine: the others go on
            text = f"{outcome.name}: {type(cause).__name__} while diarizing: {cause}"
            failure = AudioError(text, code="internal_error")
            failure.__cause__ = cause
            return replace(outcome, transcript=None, error=failure)
        return replace(outcome, transcript=transcript, wall_s=time.perf_counter() - waiting.started)


def with_speakers(
    transcript: Transcript,
    diarization: Diarization,
    known: Sequence[Known] = (),
    people: People | None = None,
    *,
    source: str = RECORDING,
) -> Transcript:
    """The transcript with the diarization's speakers on every word, and what explains them. `source`
    is the recording's path. Raises OutputError where `people` cannot be stored."""
    diarization, found = named(diarization, known)
    again = list[Match]()
    if people is not None:
        diarization, again = people.introduced(source, diarization)
    spoken = attributed(transcript, diarization.regular, diarization.exclusive)
    told: dict[str, Json] = {**diarization.engine.to_dict(), "matches": [_match(m) for m in found]}
    if people is not None:
        told["links"] = [_match(m) for m in again]
    doubts = [*map(_suggestion, _unsure(found)), *map(_link, _unsure(again))]
    return replace(
        spoken,
        warnings=(*spoken.warnings, *diarization.warnings, *doubts),
        settings={**spoken.settings, "diarization": told, RECORDING: Path(source).stem},
    )


def _match(match: Match) -> Json:
    score = round(match.score, 3)
    return {"speaker": match.speaker, "name": match.name, "score": score, "sure": match.sure}


def _unsure(found: Iterable[Match]) -> list[Match]:
    return [match for match in found if not match.sure]


def _suggestion(match: Match) -> Notice:
    text = f"{match.speaker} may be {match.name} (likeness {match.score:.2f}); not named so"
    return Notice("speaker_suggestion", text)


def _link(match: Match) -> Notice:
    text = (
        f"{match.speaker} may be {match.name} of another recording (likeness {match.score:.2f}); "
        "not linked"
    )
    return Notice("speaker_link", text)
