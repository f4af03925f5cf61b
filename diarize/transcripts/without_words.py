"""Recordings to transcripts without words: who spoke when, and nothing else.

Has the transcriber's `transcribe`, so that a batch run serves `forescribe diarize` too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from forescribe.asr.audio.reading import Input, open_audio
from forescribe.asr.decode.options import Options
from forescribe.asr.decode.outcome import Hook, Outcome, Progress
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.transcript import Coverage, Span, Transcript, samples_at
from forescribe.speculative.engine.stats import Stats

from ..blocks import diarize_blocks, in_blocks
from ..diarizer import Bounds, Diarizer
from ..people.known import Known
from ..people.recurring import People
from .with_speakers import with_speakers


class OnlySpeakers:
    """`known` are speakers to be called by their names where they are surely recognised; with `people`
    the others have one label in all recordings."""

    def __init__(
        self,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        known: Sequence[Known] = (),
        people: People | None = None,
    ) -> None:
        self.diarizer, self.bounds = diarizer, bounds or Bounds()
        self.known, self.people = tuple(known), people

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Outcomes in the order of `sources`; `options` say nothing about speakers."""
        for source in sources:
            started = time.perf_counter()
            try:
                transcript = self._transcript(source, hook)
            except ForescribeError as error:
                yield Outcome(source, error=error, wall_s=time.perf_counter() - started)
            except Exception as cause:  # a fault of ours, or of the engine: the others go on
                text = f"{Outcome(source).name}: {type(cause).__name__} while diarizing: {cause}"
                failure = AudioError(text, code="internal_error")
                failure.__cause__ = cause
                yield Outcome(source, error=failure, wall_s=time.perf_counter() - started)
            else:
                yield Outcome(source, transcript, wall_s=time.perf_counter() - started)

    def _transcript(self, source: Input, hook: Hook | None) -> Transcript:
        with open_audio(source) as recording:
            declared = recording.declared_s

            def report(step: str, done: float) -> None:
                if hook is not None:
                    hook(Progress(source, done * (declared or 0.0), declared, (), Stats()))

            found = diarize_blocks(
                self.diarizer,
                in_blocks(recording.blocks()),
                self.bounds,
                report,
                sample_count=None if declared is None else samples_at(declared),
            )
            heard = (
                Span(0, found.sample_count, "decoded", "for voices only")
                if found.sample_count
                else None
            )
            empty = Transcript(
                segments=(),
                sample_count=found.sample_count,
                coverage=Coverage((heard,) if heard else ()),
                warnings=recording.warnings,
            )
        return with_speakers(empty, found, self.known, self.people, source=Outcome(source).name)
