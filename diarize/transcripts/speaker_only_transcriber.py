"""Transcripts without words: who spoke when, and nothing else.

Has the `transcribe` method of `Transcriber`, so that the same batch code runs `forescribe diarize`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reading import open_audio
from forescribe.asr.decode.options import Hook, Options, Outcome, Progress
from forescribe.asr.errors import AudioError, ForescribeError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import Coverage, Span, samples_at
from forescribe.speculative.stats import Stats

from ..blocks import diarize_blocks, split_into_blocks
from ..diarizer import Bounds, Diarizer
from ..speakers.known_speakers import KnownSpeaker
from ..speakers.linked_speakers import LinkedSpeakers
from .diarizing_transcriber import add_speakers


class SpeakerOnlyTranscriber:
    """Diarizes recordings. `known` speakers get their names where they are recognised with certainty;
    with `linked`, the others have the same label in all recordings."""

    def __init__(
        self,
        diarizer: Diarizer,
        bounds: Bounds | None = None,
        known: Sequence[KnownSpeaker] = (),
        linked: LinkedSpeakers | None = None,
    ) -> None:
        self.diarizer, self.bounds = diarizer, bounds or Bounds()
        self.known, self.linked = tuple(known), linked

    def transcribe(
        self, sources: Iterable[Input], options: Options | None = None, hook: Hook | None = None
    ) -> Iterator[Outcome]:
        """Yield outcomes in the order of `sources`; `options` are ignored."""
        for source in sources:
            started = time.perf_counter()
            try:
                transcript = self._transcript(source, hook)
            except ForescribeError as error:
                yield Outcome(source, error=error, wall_s=time.perf_counter() - started)
            except Exception as cause:  # a bug here or in the engine: the other recordings continue
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

            diarization = diarize_blocks(
                self.diarizer,
                split_into_blocks(recording.blocks()),
                self.bounds,
                report,
                sample_count=None if declared is None else samples_at(declared),
            )
            decoded = Span(0, diarization.sample_count, "decoded", "for voices only")
            empty = Transcript(
                segments=(),
                sample_count=diarization.sample_count,
                coverage=Coverage((decoded,) if diarization.sample_count else ()),
                warnings=recording.warnings,
            )
        return add_speakers(
            empty, diarization, self.known, self.linked, source=Outcome(source).name
        )
