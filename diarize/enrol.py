"""From a recording to a voice that can be known: a clip of one person, or a speaker of a transcript."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from asr.audio import Input, read_audio
from asr.errors import UsageError
from asr.transcript import Transcript
from diarize.diarizer import Bounds, Diarizer, Samples, Voice


def voice_of(diarizer: Diarizer, samples: Samples, name: str) -> Voice:
    """The voice of the one person who speaks in `samples` [T].

    Raises UsageError where the engine has no speaker encoder, or nobody speaks.
    """
    engine = diarizer.engine
    if engine.encoder is None:
        raise UsageError(f"the engine {engine.name} keeps no voices; take another --diarizer")
    voices = diarizer.diarize(samples, Bounds(exactly=1)).voices
    if not voices or voices[0].vector is None:
        raise UsageError(f"nobody speaks long enough to know {name!r} by")
    return Voice(name, voices[0].vector, voices[0].samples)


def clip(source: Input) -> Samples:
    """A recording of one person. Raises AudioError."""
    return read_audio(source)


def part(source: Input, transcript: Path, speaker: str) -> Samples:
    """What `speaker` says in a recording, by its transcript (JSON of a diarized run), without words
    into which somebody else speaks.

    Raises AudioError, and UsageError for a file that is no transcript and for a speaker who is not
    in it.
    """
    try:
        told = Transcript.from_dict(json.loads(transcript.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{str(transcript)!r} is no transcript of ours: {error}") from error
    spans = [
        (span.start_sample, span.end_sample)
        for segment in told.segments
        for span in segment.words or (segment,)
        if span.speaker == speaker and not getattr(span, "overlap", False)
    ]
    spans = spans or [(t.start_sample, t.end_sample) for t in told.turns if t.speaker == speaker]
    if not spans:
        known = dict.fromkeys(
            [*(t.speaker for t in told.turns), *(s.speaker for s in told.segments)]
        )
        names = ", ".join(name for name in known if name) or "nobody"
        raise UsageError(f"{speaker!r} says nothing in {str(transcript)!r}; its speakers: {names}")
    samples = read_audio(source)
    return np.concatenate([samples[start:end] for start, end in spans])
