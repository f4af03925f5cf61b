"""A transcriber whose transcripts say who spoke.

    transcriber = DiarizingTranscriber(transcriber, diarizer)
    for outcome in transcriber.transcribe(["call.mp3"]):
        print(outcome.transcript.segments[0].speaker)

A recording is decoded once. Diarization runs in its own thread while windows are transcribed; the
result is the transcriber's text with speakers. The class has the `transcribe` method of `Transcriber`
and can replace one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reading import Open, Recording, open_audio
from forescribe.asr.decode.options import Hook, Options, Outcome
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.files import RECORDING
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Json, Notice

from ..attribution.transcript_speakers import attribute_speakers
from ..diarizer import Bounds, Diarization, Diarizer
from ..speakers.known_speakers import KnownSpeaker, Match, name_known_speakers
from ..speakers.linked_speakers import LinkedSpeakers
from .background import BackgroundDiarizer, DiarizationTask


class SupportsTranscribe(Protocol):
    """The part of `asr.decode.transcriber.Transcriber` that is used. `open` opens the recordings."""

    def transcribe(
        self,
        sources: Iterable[Any],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = open_audio,
    ) -> Iterator[Outcome]: ...


@dataclass(frozen=True, eq=False)
class _Started:
    """A recording that is being read."""

    task: DiarizationTask
    at: float  # seconds, time.perf_counter()


@dataclass(frozen=True, eq=False)
class _Pending:
    """A transcript whose diarization is not finished."""

    outcome: Outcome
    started: _Started
    diarization: Future[Diarization]


class DiarizingTranscriber:
    """Adds speakers to transcripts. `known` speakers get their names where they are recognised with
    certainty; with `linked`, the others have the same label in all recordings."""

    def __init__(
        self,
        transcriber: SupportsTranscribe,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        known: Sequence[KnownSpeaker] = (),
        linked: LinkedSpeakers | None = None,
    ) -> None:
        self.transcriber, self.diarizer = transcriber, diarizer
        self.bounds, self.known, self.linked = bounds or Bounds(), tuple(known), linked

    def transcribe(
        self,
        sources: Iterable[Input],
        options: Options | None = None,
        hook: Hook | None = None,
        *,
        open: Open = open_audio,
    ) -> Iterator[Outcome]:
        """Yield outcomes as they are finished. `open` opens the recordings.

        A recording that cannot be diarized fails: without speakers its transcript would look as if
        no speaker had been recognised.
        """
        options = replace(options or Options(), words=True)
        started: dict[int, _Started] = {}
        pending: list[_Pending] = []
        with BackgroundDiarizer(self.diarizer, self.bounds) as background:

            def open_and_start(source: Input) -> Recording:
                recording = open(source)
                task = background.start()
                started[id(source)] = _Started(task, time.perf_counter())
                recording.tap = task.feed
                return recording

            try:
                for outcome in self.transcriber.transcribe(
                    sources, options, hook, open=open_and_start
                ):
                    own = started.pop(id(outcome.source), None)
                    if own is not None and outcome.transcript is not None:
                        pending.append(_Pending(outcome, own, own.task.finish()))
                    else:
                        if own is not None:
                            own.task.cancel()
                        yield outcome
                    for item in [item for item in pending if item.diarization.done()]:
                        pending.remove(item)
                        yield self._finish(item)
                while pending:
                    yield self._finish(pending.pop(0))
            finally:  # the caller may stop after any outcome
                for own in (*started.values(), *(item.started for item in pending)):
                    own.task.cancel()

    def _finish(self, pending: _Pending) -> Outcome:
        outcome = pending.outcome
        assert outcome.transcript is not None
        try:
            transcript = add_speakers(
                outcome.transcript,
                pending.diarization.result(),
                self.known,
                self.linked,
                source=outcome.name,
            )
        except ForescribeError as error:
            return replace(outcome, transcript=None, error=error)
        except Exception as cause:  # a bug here or in the engine: the other recordings continue
            text = f"{outcome.name}: {type(cause).__name__} while diarizing: {cause}"
            failure = AudioError(text, code="internal_error")
            failure.__cause__ = cause
            return replace(outcome, transcript=None, error=failure)
        return replace(
            outcome, transcript=transcript, wall_s=time.perf_counter() - pending.started.at
        )


def add_speakers(
    transcript: Transcript,
    diarization: Diarization,
    known: Sequence[KnownSpeaker] = (),
    linked: LinkedSpeakers | None = None,
    *,
    source: str = RECORDING,
) -> Transcript:
    """Add the diarization's speakers to every word, with warnings for uncertain matches.

    `source` is the recording's path. Raises OutputError where `linked` cannot be stored.
    """
    diarization, matches = name_known_speakers(diarization, known)
    links = list[Match]()
    if linked is not None:
        diarization, links = linked.relabel(source, diarization)
    attributed = attribute_speakers(transcript, diarization.regular, diarization.exclusive)
    details: dict[str, Json] = {
        **diarization.engine.to_dict(),
        "matches": [_match(m) for m in matches],
    }
    if linked is not None:
        details["links"] = [_match(m) for m in links]
    doubts = [*map(_suggestion, _uncertain(matches)), *map(_link, _uncertain(links))]
    return replace(
        attributed,
        warnings=(*attributed.warnings, *diarization.warnings, *doubts),
        settings={
            **attributed.settings,
            "diarization": details,
            RECORDING: Path(source).stem,
        },
    )


def _match(match: Match) -> Json:
    score = round(match.score, 3)
    return {"speaker": match.speaker, "name": match.name, "score": score, "sure": match.sure}


def _uncertain(matches: Iterable[Match]) -> list[Match]:
    return [match for match in matches if not match.sure]


def _suggestion(match: Match) -> Notice:
    text = f"{match.speaker} may be {match.name} (similarity {match.score:.2f}); not renamed"
    return Notice("speaker_suggestion", text)


def _link(match: Match) -> Notice:
    text = (
        f"{match.speaker} may be {match.name} of another recording (similarity {match.score:.2f}); "
        "not linked"
    )
    return Notice("speaker_link", text)
