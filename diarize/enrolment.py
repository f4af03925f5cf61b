"""Enrolment: from a clip of one person, or from a speaker of a transcript, to a voice."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forescribe.asr.audio.inputs import Input
from forescribe.asr.audio.reading import read_audio
from forescribe.asr.errors import UsageError
from forescribe.asr.formats.transcript import Transcript
from forescribe.asr.formats.transcript_parts import SAMPLE_RATE

from .diarizer import Bounds, Diarizer, Samples, Voice
from .known_speakers import require_enough_speech


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
        known = dict.fromkeys(
            [*(t.speaker for t in data.turns), *(s.speaker for s in data.segments)]
        )
        names = ", ".join(name for name in known if name) or "none"
        raise UsageError(f"{speaker!r} says nothing in {str(transcript)!r}; its speakers: {names}")
    samples = read_audio(source)
    return np.concatenate([samples[start:end] for start, end in spans])
